"""Watches dropout at work: which elements of the whole tensors each rank dropped, seen in what came out.

A mask is read off the result, not computed: an element that went in as something and came out as zero was dropped. Of
one that went in as zero nothing can be seen (what causal attention doesn't look at).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from autoplan.emit.random_arguments import most_dropouts
from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.randomness import ATTENTION, random_operators
from autoplan.ir.typed_program import Compute, Lowered
from autoplan.runtime import ops
from autoplan.runtime.ops import global_random
from autoplan.runtime.ops.attention import heads
from autoplan.runtime.parallel.own_box import Part, part_of

DROPPED, KEPT, UNSEEN = 0, 1, 2


@dataclass(frozen=True)
class Seen:
    """One run of one dropout on one rank.

    call        its number in the model
    microbatch
    mask        DROPPED, KEPT or UNSEEN for each element that the rank has, uint8
    """

    call: int
    microbatch: int
    mask: Tensor


@contextmanager
def watching() -> Iterator[list[Seen]]:
    """Programs that are loaded within write down here what their dropouts do."""
    seen: list[Seen] = []
    drop = global_random.dropout

    def watched(x: Tensor, p: float, *, key: Tensor, call: int, **where: object) -> Tensor:
        result = drop(x, p, key=key, call=call, **where)  # type: ignore[arg-type]
        with torch.no_grad():
            mask = torch.where(x == 0, UNSEEN, torch.where(result == 0, DROPPED, KEPT)).to(torch.uint8)
        seen.append(Seen(int(call), int(key.view(-1)[1]), mask))
        return result

    with (
        patch.object(global_random, "dropout", watched),
        patch.object(ops, "dropout", watched),
        patch.object(heads, "dropout", watched),
    ):
        yield seen


def calls_of(lowered: Lowered) -> dict[int, Compute]:
    """The operator behind each number of a call, all different."""
    found: dict[int, Compute] = {}
    for number, segment in enumerate(lowered.segments):
        for place, compute in enumerate(random_operators(lowered.blocks[segment.block])):
            call = most_dropouts(lowered) * number + place
            assert call not in found
            found[call] = compute
    return found


def kind_of(compute: Compute) -> str:
    return "attention" if compute.op == ATTENTION else "elements"


def place_of(lowered: Lowered, compute: Compute, rank: int, microbatch: int, mask: Tensor) -> Part:
    """The box of the whole tensor that a rank drops from, by the layout that the operator's result is typed with.

    What attention drops from are its scores, [.., heads, rows, keys]: they lie as its result does, keys whole.
    """
    mesh = lowered.mesh
    at = {axis.name: mesh.coordinate(rank, axis.name) for axis in mesh.device_axes} | {MICROBATCH: microbatch}
    kind, layout = compute.value.type, compute.value.layout
    part = part_of(kind.shape, layout, mesh, at)
    if kind_of(compute) == "attention":
        keys = mask.shape[-1]
        part = Part((*part.start[:-1], 0), (*part.shape[:-1], keys))
    assert part.shape == tuple(mask.shape), f"{compute.value.name}: {part} isn't {tuple(mask.shape)}"
    return part


Box = tuple[int, Part]
"""(call, place in the whole tensor)"""


def by_place(lowered: Lowered, rank: int, seen: Sequence[Seen]) -> dict[Box, list[Tensor]]:
    """A rank's masks by what they are of; more than one where a forward ran again."""
    calls, found = calls_of(lowered), dict[Box, list[Tensor]]()
    for one in seen:
        part = place_of(lowered, calls[one.call], rank, one.microbatch, one.mask)
        found.setdefault((one.call, part), []).append(one.mask)
    return found


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether two masks of the same box are one, as far as both can be seen.

    What passes through as summands is zero on some ranks and not on others.
    """
    seen = (one != UNSEEN) & (other != UNSEEN)
    return torch.equal(one[seen], other[seen])


def whole(ranks: Sequence[Mapping[Box, Sequence[Tensor]]]) -> dict[int, Tensor]:
    """Each call's mask of the whole tensor, put together from all ranks; UNSEEN where no rank sees an element."""
    masks: dict[int, Tensor] = {}
    for boxes in ranks:
        for (call, part), seen in boxes.items():
            ends = tuple(a + n for a, n in zip(part.start, part.shape, strict=True))
            mask = grown(masks.get(call), ends)
            box = mask[part.slices]
            box.copy_(torch.where(box == UNSEEN, seen[0], box))
            masks[call] = mask
    return masks


def grown(mask: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """A mask of at least this shape, that begins as the one given."""
    before = (0,) * len(shape) if mask is None else tuple(mask.shape)
    larger = torch.full([max(a, b) for a, b in zip(shape, before, strict=True)], UNSEEN, dtype=torch.uint8)
    if mask is not None:
        larger[tuple(slice(n) for n in before)] = mask
    return larger
