"""A user's ``torch.autograd.Function``: export writes down what its forward computes and loses its backward.

So it is tried on numbers whether its backward is the derivative of its forward; where it isn't, the model is refused,
for it would be trained by other gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from autoplan.errors import TraceError

LARGEST, CLIPPED = 1 << 20, 8  # elements of what is tried as it is; the longest dim where that would be more
SCALES = ((1.0, 1.0), (50.0, 1.0), (1.0, 1e9))  # of operands and of the gradient of the result
ALIKE = 1e-9  # relative, in the 2-norm: constants are often written with few digits


@dataclass(frozen=True)
class Operand:
    """A tensor as it was given: only what it looks like."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool


@dataclass(frozen=True)
class Call:
    function: type[Function]
    args: tuple[object, ...]


class Context:
    """What a forward leaves for its backward, which isn't run."""

    def __init__(self, needed: tuple[bool, ...]) -> None:
        self.needs_input_grad = needed
        self.saved_tensors: tuple[Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *_: Tensor) -> None: ...

    def mark_non_differentiable(self, *_: Tensor) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


@contextmanager
def watched() -> Iterator[list[Call]]:
    """Within it, what functions of the user's are applied to tensors that gradients are wanted of. torch's own, such as
    its checkpointing, have the backward of what they run."""
    calls: list[Call] = []
    whole = Function.__dict__["apply"]

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        operands = tuple(map(described, args))
        wanted = any(isinstance(o, Operand) and o.trained for o in operands)
        if torch.is_grad_enabled() and wanted and not cls.__module__.startswith("torch."):
            calls.append(Call(cls, operands))
        return whole.__func__(cls, *args, **kwargs)

    Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
    try:
        yield calls
    finally:
        Function.apply = whole  # type: ignore[method-assign]


def described(value: object) -> object:
    return Operand(tuple(value.shape), value.dtype, value.requires_grad) if isinstance(value, Tensor) else value


def check_backwards(calls: Sequence[Call]) -> None:
    """TraceError for a call whose backward isn't its forward's derivative, or can't be tried."""
    tried: list[Call] = []
    for call in calls:
        if call in tried:
            continue
        tried.append(call)
        name = f"{call.function.__qualname__}.apply"
        try:
            alike = all(is_derivative(call, *scales) for scales in SCALES)
        except Exception as error:  # whatever the user's code says of operands that aren't its own
            cause = f"its backward can't be tried on numbers ({type(error).__name__}: {error}), and isn't traced"
            raise TraceError(name, cause, REMEDY) from error
        if not alike:
            cause = "its backward isn't the derivative of its forward, and only what forward computes is traced"
            raise TraceError(name, cause, REMEDY)


REMEDY = (
    "write it in operators whose derivatives are what you mean (x + (f(x) - x).detach() passes gradients straight "
    "through), or make it a torch.library operator with a backward and a rule"
)


def is_derivative(call: Call, scale: float, gradient_scale: float) -> bool:
    """Whether both give the same gradients at random operands, wherever the forward has a finite derivative."""
    found = gradients(call, scale, gradient_scale, call.function.apply)
    expected = gradients(call, scale, gradient_scale, lambda *args: forward_of(call.function, args))
    for got, wanted in zip(found, expected, strict=True):
        finite = wanted.isfinite()
        error = (got - wanted)[finite]
        if not error.norm() <= ALIKE * wanted[finite].norm():
            return False
    return True


def forward_of(function: Any, args: tuple) -> object:
    """What forward computes, differentiated by torch."""
    context = Context(tuple(isinstance(arg, Tensor) and arg.requires_grad for arg in args))
    apart = function.setup_context is not Function.setup_context
    return function.forward(*args) if apart else function.forward(context, *args)


def gradients(call: Call, scale: float, gradient_scale: float, run: Callable[..., object]) -> list[Tensor]:
    """Of every operand that wants one, in float64, zero where none comes; always of the same operands."""
    generator = torch.Generator().manual_seed(0)
    clipped = sum(torch.Size(o.shape).numel() for o in call.args if isinstance(o, Operand)) > LARGEST
    args = [sample(o, generator, clipped, scale) if isinstance(o, Operand) else o for o in call.args]
    leaves = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        result = run(*(arg.clone() if isinstance(arg, Tensor) else arg for arg in args))
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
