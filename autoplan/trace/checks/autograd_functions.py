"""A user's ``torch.autograd.Function``: export writes down what its forward computes and loses its backward.

So it is tried on numbers whether its backward is the derivative of its forward. Where it isn't, the call is traced as
other operators (``straight_through``), or refused, for the model would be trained by other gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from autoplan.errors import TraceError
from autoplan.trace.checks.straight_through import Call, Context, Form, Operand, form_of, straight_through

LARGEST, CLIPPED = 1 << 20, 8  # elements of what is tried as it is; the longest dim where that would be more
SCALES = ((1.0, 1.0), (0.03, 1.0), (50.0, 1.0), (1.0, 1e9))  # of operands and of the gradient of the result
Run = Callable[[Call, Sequence[object]], object]
ALIKE = 1e-9  # relative, in the 2-norm: constants are often written with few digits


@contextmanager
def watched(forms: Sequence[Form] = ()) -> Iterator[list[Call]]:
    """Within it, what functions of the user's are applied to tensors that gradients are wanted of. torch's own, such as
    its checkpointing, have the backward of what they run.

    forms  run in the place of these calls
    """
    calls: list[Call] = []
    whole = Function.__dict__["apply"]

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        operands = tuple(map(described, args))
        wanted = any(isinstance(o, Operand) and o.trained for o in operands)
        if torch.is_grad_enabled() and wanted and not cls.__module__.startswith("torch."):
            call = Call(cls, operands)
            form = next((form for form in forms if form.call == call), None)
            if form is not None:
                return form.run(args)
            calls.append(call)
        return whole.__get__(None, cls)(*args, **kwargs)

    Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
    try:
        yield calls
    finally:
        Function.apply = whole  # type: ignore[method-assign]


def described(value: object) -> object:
    return Operand(tuple(value.shape), value.dtype, value.requires_grad) if isinstance(value, Tensor) else value


def forms_of(calls: Sequence[Call]) -> list[Form]:
    """Other operators for each call whose backward isn't its forward's derivative; TraceError where there are none, or
    the call can't be tried."""
    tried: list[Call] = []
    forms = []
    for call in calls:
        if call in tried:
            continue
        tried.append(call)
        name = f"{call.function.__qualname__}.apply"
        try:
            told = [alike(call, *scales, forward_of) for scales in SCALES]
            if any(set(operand) == {None} for operand in zip(*told, strict=True)):
                raise ValueError("its forward has no finite derivative at any numbers that were tried")
            if not any(False in operands for operands in told):
                continue
            linear = not any(False in alike(call, *scales, straight_through) for scales in SCALES)
            forms += [form_of(call)] if linear else []
        except Exception as error:  # whatever the user's code says of operands that aren't its own
            cause = f"its backward can't be tried on numbers ({type(error).__name__}: {error}), and isn't traced"
            raise TraceError(name, cause, REMEDY) from error
        if not linear:
            cause = "its backward isn't the derivative of its forward, nor linear in the gradient that it is given"
            raise TraceError(name, cause, REMEDY)
    return forms


REMEDY = (
    "write it in operators whose derivatives are what you mean (x + (f(x) - x).detach() passes gradients straight "
    "through), or make it a torch.library operator with a backward and a rule"
)


def alike(call: Call, scale: float, gradient_scale: float, run: Run) -> list[bool | None]:
    """Of each trained operand, whether the call and what is run in its place give the same gradient at random numbers,
    wherever the latter has a finite one; None where it has none."""
    found = gradients(call, scale, gradient_scale, applied)
    expected = gradients(call, scale, gradient_scale, run)
    same: list[bool | None] = []
    for got, wanted in zip(found, expected, strict=True):
        finite = wanted.isfinite()
        error = (got - wanted)[finite]
        known = bool(finite.any()) or not wanted.numel()
        same.append(bool(error.norm() <= ALIKE * wanted[finite].norm()) if known else None)
    return same


def applied(call: Call, args: Sequence[object]) -> object:
    return call.function.apply(*args)


def forward_of(call: Call, args: Sequence[object]) -> object:
    """What forward computes, differentiated by torch."""
    function: Any = call.function
    context = Context(tuple(isinstance(arg, Tensor) and arg.requires_grad for arg in args))
    apart = function.setup_context is not Function.setup_context
    return function.forward(*args) if apart else function.forward(context, *args)


def gradients(call: Call, scale: float, gradient_scale: float, run: Run) -> list[Tensor]:
    """Of every operand that wants one, in float64, zero where none comes; always of the same operands. What torch
    differentiates may be changed in place afterwards, as a forward does with its softmax: the graph changes copies."""
    mutable = torch.autograd.graph.allow_mutation_on_saved_tensors() if run is forward_of else nullcontext()
    with mutable:
        return tried_gradients(call, scale, gradient_scale, run)


def tried_gradients(call: Call, scale: float, gradient_scale: float, run: Run) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    clipped = sum(torch.Size(o.shape).numel() for o in call.args if isinstance(o, Operand)) > LARGEST
    args = [sample(o, generator, clipped, scale) if isinstance(o, Operand) else o for o in call.args]
    leaves = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        result = run(call, [arg.clone() if isinstance(arg, Tensor) else arg for arg in args])
    results = [r for r in (result if isinstance(result, tuple) else (result,)) if isinstance(r, Tensor)]
    weights = [torch.randn(r.shape, dtype=torch.float64, generator=generator) * gradient_scale for r in results]
    pairs = [(r, w.to(r.dtype)) for r, w in zip(results, weights, strict=True) if r.requires_grad]
    if not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    outputs, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, leaves, given, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]


def sample(operand: Operand, generator: torch.Generator, clipped: bool, scale: float) -> Tensor:
    """Numbers for an operand; integers are zeros and ones, which index whatever there is."""
    shape = [min(size, CLIPPED) for size in operand.shape] if clipped else operand.shape
    if operand.dtype.is_complex:
        return (torch.randn(shape, dtype=torch.complex128, generator=generator) * scale).requires_grad_(operand.trained)
    if operand.dtype.is_floating_point:
        return (torch.randn(shape, dtype=torch.float64, generator=generator) * scale).requires_grad_(operand.trained)
    return torch.randint(2, shape, generator=generator).to(operand.dtype)
