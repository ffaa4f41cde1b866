"""A user's ``torch.autograd.Function`` whose backward isn't its forward's derivative, in operators with that backward.

A backward b is linear in the gradient g that it is given. Its transpose L, for which <L(x), g> = <x, b(g)>, is linear
in the operand x, and b(g) is the gradient of L(x). So ``forward(x) + L(x) - L(x).detach()`` has the forward's values
and the user's gradients: straight-through estimators, reversed gradients, a router's own. L is what torch gives as the
derivative of <x, b(g)> by g. A backward that isn't linear in g (one that clips it) has no such L.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import Function
from torch.func import functionalize, vjp
from torch.fx.experimental.proxy_tensor import make_fx


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


@dataclass(frozen=True)
class Form:
    """What a call computes, to be traced in its place.

    graph    (operands without gradients, then those that are trained) -> the results that are tensors, and L of each
    results  what forward returns, as True where it is a tensor
    single   whether it returns one, in no tuple
    dirty    of each result that is a tensor the number of the tensor operand that it was written into; else None
    """

    call: Call
    graph: fx.GraphModule
    results: tuple[object, ...]
    single: bool
    dirty: tuple[int | None, ...]

    def run(self, args: Sequence[object]) -> object:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        found = iter(self.graph.forward(*(t.detach() for t in tensors), *(t for t in tensors if t.requires_grad)))
        place = iter(self.dirty)
        results = [
            written(joined(next(found), next(found)), tensors, next(place)) if one is True else one
            for one in self.results
        ]
        return results[0] if self.single else tuple(results)


class Context:
    """What a forward leaves for its backward."""

    def __init__(self, needed: tuple[bool, ...]) -> None:
        self.needs_input_grad = needed
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self.dirty: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *tensors: Tensor) -> None:
        self.dirty = tensors

    def mark_non_differentiable(self, *_: Tensor) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


def form_of(call: Call) -> Form:
    """The operators of a call, for operands of its shapes; raises what the user's code does without values."""
    with FakeTensorMode(), torch.enable_grad():
        given = [torch.empty(o.shape, dtype=o.dtype) if isinstance(o, Operand) else o for o in call.args]
        tensors = [value for value in given if isinstance(value, Tensor)]
        trained = [o.trained for o in call.args if isinstance(o, Operand)]
        shown: list[Any] = []
        dirty: list[int | None] = []

        def computed(*entering: Tensor) -> list[Tensor | None]:
            left = iter(entering[: len(tensors)])
            args = [next(left) if isinstance(value, Tensor) else value for value in given]
            result, transposed, marked = with_transpose(call, args, entering[len(tensors) :])
            shown[:] = [result]
            results = result if isinstance(result, tuple) else (result,)
            operands = [arg for arg in args if isinstance(arg, Tensor)]
            dirty[:] = [place_of(r, operands, marked) for r in results if isinstance(r, Tensor)]
            return [
                part for pair in zip(results, transposed, strict=True) if isinstance(pair[0], Tensor) for part in pair
            ]

        moved = [value.clone() for value, moves in zip(tensors, trained, strict=True) if moves]
        graph = make_fx(functionalize(computed, remove="mutations"))(*tensors, *moved)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    results = shown[0] if isinstance(shown[0], tuple) else (shown[0],)
    marks = tuple(True if isinstance(one, Tensor) else one for one in results)
    return Form(call, graph, marks, not isinstance(shown[0], tuple), tuple(dirty))


def place_of(result: Tensor, operands: Sequence[Tensor], marked: Sequence[Tensor]) -> int | None:
    """Which operand a result is, where forward marked it as changed in place."""
    if not any(result is one for one in marked):
        return None
    return next((i for i, operand in enumerate(operands) if operand is result), None)


def written(result: Tensor, tensors: Sequence[Tensor], place: int | None) -> Tensor:
    """The result, put where forward puts it: what reads that operand later reads this, and its gradients."""
    return result if place is None else tensors[place].copy_(result)


def straight_through(call: Call, args: Sequence[object]) -> object:
    """The same on tensors with values."""
    moved = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
    plain = [arg.detach() if isinstance(arg, Tensor) else arg for arg in args]
    result, transposed, _ = with_transpose(call, plain, moved)
    results = result if isinstance(result, tuple) else (result,)
    found = [joined(r, t) if isinstance(r, Tensor) else r for r, t in zip(results, transposed, strict=True)]
    return tuple(found) if isinstance(result, tuple) else found[0]


def joined(result: Tensor, transposed: Tensor | None) -> Tensor:
    """The result with L's gradient; where L isn't finite, as of a masked score, no gradient comes through it."""
    if transposed is None:
        return result.detach()
    difference = transposed - transposed.detach()
    return result.detach() + torch.where(difference == 0, difference, torch.zeros_like(difference))


def with_transpose(call: Call, args: Sequence[object], moved: Sequence[Tensor]) -> tuple[
    Any, list[Tensor | None], tuple[Tensor, ...]
]:  # fmt: skip
    """What forward gives, L of each result, None where no gradient comes back from it; and what it marked as dirty.

    args   without gradients
    moved  the operands that are trained, in order
    """
    needed = tuple(isinstance(o, Operand) and o.trained for o in call.args)
    context: Any = Context(needed)
    function: Any = call.function
    if function.setup_context is not Function.setup_context:
        result = function.forward(*args)
        function.setup_context(context, tuple(args), result)
    else:
        result = function.forward(context, *args)
    results = result if isinstance(result, tuple) else (result,)
    floating = [isinstance(r, Tensor) and r.is_floating_point() for r in results]

    def backward(*seeds: Tensor) -> tuple[Tensor, ...]:
        left = iter(seeds)
        given = [next(left) if f else torch.zeros_like(r) if isinstance(r, Tensor) else None
                 for r, f in zip(results, floating, strict=True)]  # fmt: skip
        back = inspect.unwrap(function.backward)(context, *given)  # without once_differentiable, which records nothing
        back = back if isinstance(back, tuple) else (back,)
        found = [gradient for gradient, moves in zip(back, needed, strict=False) if moves]
        return tuple(torch.zeros_like(x) if b is None else b for b, x in zip(found, moved, strict=True))

    seeds = [torch.zeros_like(r) for r, f in zip(results, floating, strict=True) if f]
    transpose = vjp(backward, *seeds)[1]
    left = iter(transpose(tuple(moved)))
    return result, [next(left) if f else None for f in floating], context.dirty
