"""Operators as an exported program runs them, ready to be timed: ``start`` makes the tensors and returns what runs.

A training step comes to each activation once forward and, much later, once backward, and keeps most results in between.
So products and memory-bound operators go round many tensors, of which each result is kept until its place comes again:
on the same few tensors every time they would be measured in a cache that a step doesn't find them in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from cost_models.calibrate.cases import Attention, Dispatch, Matmul, Operator, Stream, Update

Run = Callable[[int], object]
"""Runs a case once; takes the number of the repetition."""

_CHAIN = 32
_ROW = 1024  # elements that a layer norm or softmax reduces over
_ROUND_BYTES = {True: 2**28, False: 2**23}
"""Of operands, or of results, that operators go round, on an accelerator and on a CPU: more than caches hold."""


def start(case: Operator, device: torch.device) -> Run:
    """What runs the operator once on tensors of its own, and keeps no result."""
    if isinstance(case, Matmul):
        return _matmul(case, device)
    if isinstance(case, Attention):
        return _attention(case, device)
    if isinstance(case, Dispatch):
        return _dispatch(device)
    return _update(case, device) if isinstance(case, Update) else _stream(case, device)


def calls(case: Operator) -> int:
    """Operators in one run of a case."""
    return 2 * _CHAIN if isinstance(case, Dispatch) else 1


def _matmul(case: Matmul, device: torch.device) -> Run:
    dtype = getattr(torch, case.dtype)
    if case.batch == 1:
        weight = _random((case.n, case.k), dtype, device)
        return _round(lambda x: functional.linear(x, weight), [_random((case.m, case.k), dtype, device)])
    y = _random((case.batch, case.k, case.n), dtype, device)
    return _round(lambda x: torch.bmm(x, y), [_random((case.batch, case.m, case.k), dtype, device)])


def _stream(case: Stream, device: torch.device) -> Run:
    dtype = getattr(torch, case.dtype)
    x = _random((case.elements // _ROW, _ROW), dtype, device)
    if case.name in ("add", "mul"):
        return _round(getattr(torch, case.name), [x, _random(x.shape, dtype, device)])
    if case.name == "copy":
        return _round(torch.clone, [x])
    if case.name == "softmax":
        return _round(lambda x: torch.softmax(x, -1), [x])
    weight, bias = torch.ones(_ROW, dtype=dtype, device=device), torch.zeros(_ROW, dtype=dtype, device=device)
    return _round(lambda x: functional.layer_norm(x, (_ROW,), weight, bias), [x])


def _round(operator: Callable[..., Tensor], operands: Sequence[Tensor]) -> Run:
    """Runs an operator on one copy of its operands after another; each keeps its result until its next turn."""
    largest = max(x.nbytes for x in (*operands, operator(*operands)))
    copies = math.ceil(_ROUND_BYTES[operands[0].device.type != "cpu"] / largest)
    pools = [operand.expand(copies, *operand.shape).contiguous() for operand in operands]
    places = list(zip(*(pool.unbind() for pool in pools), strict=True))
    kept: dict[int, Tensor] = {}

    def run(turn: int) -> None:
        at = turn % copies
        kept[at] = operator(*places[at])

    return run


def _update(case: Update, device: torch.device) -> Run:
    """One update of AdamW, over a parameter in four pieces: on an accelerator in one pass, as programs have it there,
    on a CPU as torch runs it where nothing else is asked for."""
    parameters = [_random((case.elements // 4,), torch.float32, device) for _ in range(4)]
    for parameter in parameters:
        parameter.grad = _random(parameter.shape, torch.float32, device)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=device.type != "cpu" or None)
    optimizer.step()  # makes the states
    return lambda _: optimizer.step()


def _attention(case: Attention, device: torch.device) -> Run:
    shape = (case.batch, case.heads, case.length, case.head_dim)
    q, k, v = (_random(shape, getattr(torch, case.dtype), device) for _ in range(3))
    if not case.backward:
        return lambda _: functional.scaled_dot_product_attention(q, k, v, is_causal=case.causal)
    inputs = (q.requires_grad_(), k.requires_grad_(), v.requires_grad_())
    with torch.enable_grad():
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=case.causal)
    gradient = _random(shape, out.dtype, device)
    return lambda _: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def _dispatch(device: torch.device) -> Run:
    """A chain of small additions, forward and backward."""
    x = _random((16,), torch.float32, device).requires_grad_()
    gradient = torch.ones_like(x)

    def run(_: int) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            y = x
            for _ in range(_CHAIN):
                y = y + x
        return torch.autograd.grad(y, (x,), gradient)

    return run


def _random(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Normal numbers, a few thousand of them over and over: drawing all would take longer than the operators."""
    elements = math.prod(shape)
    few = torch.randn(min(elements, 4099), device=device).to(dtype)
    return few.repeat(-(-elements // len(few)))[:elements].view(shape)
