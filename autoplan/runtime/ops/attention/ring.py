"""Attention with the sequence split: keys and values passed from rank to rank, or gathered.

Ring attention (Liu, Zaharia and Abbeel 2023): every rank keeps its rows of the queries, while the parts of the keys and
values go round, so that no rank ever holds more than two of them; the blocks are joined as they come (``blocks``).
Backward they go round again, each with its gradient behind it, to which every rank adds its summand.

Under causality the ranks' rows would see unlike numbers of keys. So the sequence is cut into twice as many pieces as
there are ranks, and while attention runs rank r has the pieces r and 2n−1−r, from either end (Brandon et al. 2023,
striped; torch's and Megatron's context parallel: zig-zag): all ranks then have the same work. Queries are exchanged for
it on the way in, results on the way out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.collectives.result import cast
from autoplan.runtime.ops.attention.blocks import Joined, Sight, attend, attend_back, join

ROWS = 2  # the dim of the sequence in [b, h, rows, d]
Shapes = tuple[tuple[int, ...], ...]


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """This rank's rows of an attention of which it has as many keys and values: all S(sequence), mask S(rows) with all
    its keys; over one axis.

    q [b.., h, rows/n, d], k [b.., kv, keys/n, d], v [b.., kv, keys/n, e] -> [b.., h, rows/n, e]; n − 1 sends of k and v
    forward; backward as many, and n of their gradients, n + 1 messages in all.
    """
    assert dropout_p == 0, "what is dropped follows from an element's place, which a block doesn't know"
    assert not is_causal or q.shape[-2] == k.shape[-2], "a causal ring has as many queries as keys"
    scale, (axis,) = 1 / math.sqrt(q.shape[-1]) if scale is None else scale, axes
    result = _Ring.apply(*map(four_dims, (q, k, v)), four_dims(mask, q), is_causal, scale, axis)
    return result.reshape(*q.shape[:-1], v.shape[-1])


def four_dims(x: Tensor | None, beside: Tensor | None = None) -> Tensor | None:
    """[b.., h, rows, d] with its leading dims as one; a mask's are first those of what stands ``beside`` it."""
    if x is None:
        return None
    if beside is not None and beside.ndim > 4:
        x = x.expand(*beside.shape[:-3], *((1,) * max(0, 3 - x.ndim)), *x.shape[-min(3, x.ndim) :])
    while x.ndim < 4:
        x = x.unsqueeze(0)
    return x.flatten(0, -4) if x.ndim > 4 else x


@dataclass(frozen=True)
class Ring:
    """The way of the keys and values, and the pieces of the sequence that each rank has.

    balanced  every rank has a piece from either end
    """

    axis: MeshAxis
    balanced: bool

    def pieces(self, rank: int) -> tuple[int, ...]:
        return (rank, 2 * self.axis.size - 1 - rank) if self.balanced else (rank,)

    @property
    def here(self) -> tuple[int, ...]:
        return self.pieces(self.axis.rank)

    def there(self, step: int) -> tuple[int, ...]:
        """The pieces whose keys and values are here at a step: those of the rank as many places back."""
        return self.pieces((self.axis.rank - step) % self.axis.size)

    def last(self, step: int) -> bool:
        return step == self.axis.size - 1

    def send(self, message: Tensor) -> Tensor:
        """Starts to pass it on; what the rank before sends is in flight until ``wire.wait``."""
        return raw.start_shift(message, 1, self.axis)


class _Ring(Function):
    """Each message holds something of the one before, so that a compiler can't exchange them on one of the ranks."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float, axis: MeshAxis
    ) -> Tensor:
        ring = Ring(axis, is_causal and q.shape[ROWS] % 2 == 0)
        q, k, v = to_either_end((q, k, v), ring)
        shapes, here = (k.shape, v.shape), ring.here
        rows: list[Joined | None] = [None] * len(here)
        part = packed((k, v))
        for step in range(axis.size):
            coming = part if ring.last(step) else ring.send(part)
            there, (keys, values) = ring.there(step), unpacked(part, shapes)
            for i, j, sight in blocks_of(here, there, is_causal, scale, columns(mask, there, keys)):
                of_rows, of_keys = piece(q, here, i), (piece(keys, there, j), piece(values, there, j))
                found, before = attend(of_rows, *of_keys, sight), rows[i]
                rows[i] = found if before is None else join(before, found)
            part = raw.wait(coming)
        done = [each for each in rows if each is not None]
        out = cast(torch.cat([each for each, _ in done], ROWS), q.dtype)
        ctx.save_for_backward(q, k, v, mask, out, torch.cat([log for _, log in done], ROWS))
        ctx.ring, ctx.is_causal, ctx.scale = ring, is_causal, scale
        if not ring.balanced:
            return out
        (result,) = from_either_end((out.transpose(1, ROWS),), ring, 1)  # row by row, as what joins its heads reads it
        return result.transpose(1, ROWS)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """A part's gradients follow it a step behind: while a block is computed, the sum over those before arrives."""
        q, k, v, mask, out, log = ctx.saved_tensors
        ring: Ring = ctx.ring
        (gradient,) = to_either_end((gradient,), ring)
        shapes, here = (k.shape, v.shape), ring.here
        dq, part = torch.zeros_like(q, dtype=log.dtype), packed((k, v))
        behind, first = log.new_empty(0), gradient.flatten()[:1]
        for step in range(ring.axis.size):
            sent = [behind.view(part.dtype), *([] if ring.last(step) else [part]), *([] if step else [first])]
            coming = ring.send(torch.cat(sent))
            there, (keys, values) = ring.there(step), unpacked(part, shapes)
            own = torch.zeros_like(part, dtype=log.dtype)
            dk, dv = unpacked(own, shapes)
            for i, j, sight in blocks_of(here, there, ctx.is_causal, ctx.scale, columns(mask, there, keys)):
                back, of_rows, result, total = (piece(x, here, i) for x in (gradient, q, out, log))
                of_keys = (piece(keys, there, j), piece(values, there, j))
                shares = attend_back(back, of_rows, *of_keys, result, total, sight)
                piece(dq, here, i).add_(shares[0])
                piece(dk, there, j).add_(shares[1])
                piece(dv, there, j).add_(shares[2])
            summed, part = raw.wait(coming).tensor_split([sent[0].numel()])
            part = part[: own.numel()]
            behind = own if step == 0 else summed.view(log.dtype) + own
        dk, dv = unpacked(raw.wait(ring.send(behind)), shapes)
        dq, dk, dv = from_either_end([x.to(q.dtype) for x in (dq, dk, dv)], ring)
        return dq, dk, dv, None, None, None, None


def blocks_of(
    here: Sequence[int], there: Sequence[int], is_causal: bool, scale: float, mask: Tensor | None
) -> list[tuple[int, int, Sight]]:
    """The blocks that these pieces of queries and of keys make, by position: under causality a piece of queries sees
    all of an earlier piece of keys, nothing of a later one."""
    return [
        (i, j, Sight(scale, is_causal and rows == keys, mask))
        for i, rows in enumerate(here)
        for j, keys in enumerate(there)
        if not is_causal or keys <= rows
    ]


def piece(x: Tensor, pieces: Sequence[int], position: int, dim: int = ROWS) -> Tensor:
    """One of the pieces that a rank has, of equal length and one behind the other; of a logarithm [b, h, rows] too."""
    length = x.shape[dim] // len(pieces)
    return x.narrow(dim, position * length, length)


def columns(mask: Tensor | None, there: Sequence[int], keys: Tensor) -> Tensor | None:
    """Of a mask over all keys that of these; under a mask a rank has one piece."""
    if mask is None or mask.shape[-1] == 1:
        return mask
    return mask.narrow(-1, there[0] * keys.shape[ROWS], keys.shape[ROWS])


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one flat message."""
    return torch.cat([x.reshape(-1) for x in tensors])


def unpacked(message: Tensor, shapes: Shapes) -> list[Tensor]:
    parts = message.split([math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def to_either_end(tensors: Sequence[Tensor], ring: Ring) -> Sequence[Tensor]:
    """From a rank's own part of the sequence to the pieces that it has while attention runs."""
    if not ring.balanced:
        return tensors
    ranks = range(ring.axis.size)
    return exchanged(tensors, [(2 * r, 2 * r + 1) for r in ranks], [ring.pieces(r) for r in ranks], ring.axis)


def from_either_end(tensors: Sequence[Tensor], ring: Ring, dim: int = ROWS) -> Sequence[Tensor]:
    if not ring.balanced:
        return tensors
    ranks = range(ring.axis.size)
    return exchanged(tensors, [ring.pieces(r) for r in ranks], [(2 * r, 2 * r + 1) for r in ranks], ring.axis, dim)


def exchanged(
    tensors: Sequence[Tensor], held: Sequence[tuple[int, ...]], wanted: Sequence[tuple[int, ...]], axis: MeshAxis,
    dim: int = ROWS,
) -> list[Tensor]:  # fmt: skip
    """Tensors of whose pieces along a dim each rank holds some and wants others, in one exchange."""
    mine, own = held[axis.rank], wanted[axis.rank]
    flat = {n: packed([piece(x, mine, position, dim) for x in tensors]) for position, n in enumerate(mine)}
    nothing, length = tensors[0].new_empty(0), next(iter(flat.values())).numel()
    parts = [packed([nothing, *(flat[n] for n in sorted(set(mine) & set(theirs)))]) for theirs in wanted]
    shared = [sorted(set(theirs) & set(own)) for theirs in held]
    arrived = raw.all_to_all_v(parts, [length * len(numbers) for numbers in shared], axis)
    come: dict[int, Tensor] = {}
    for numbers, message in zip(shared, arrived, strict=True):
        come |= dict(zip(numbers, message.split(length), strict=True)) if numbers else {}
    shapes = tuple((*x.shape[:dim], x.shape[dim] // len(mine), *x.shape[dim + 1 :]) for x in tensors)
    each = [unpacked(come[n], shapes) for n in own]
    return [torch.cat(pieces, dim) for pieces in zip(*each, strict=True)]
