"""Collectives as an exported program calls them, ready to be timed over one process group."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import P2POp, ProcessGroup

from cost_models.calibrate.cases import Collective
from cost_models.calibrate.operators import Run

# Private, yet what exported programs call: the only collectives that a compiler can trace
# (autoplan.runtime.collectives.raw).
_wire = torch.ops._c10d_functional
_ELEMENT_BYTES = 4  # of float32


def start(case: Collective, group: ProcessGroup, device: torch.device) -> Run:
    """What runs the collective once, over this rank's group. Every rank has to run it as often as the others."""
    elements = case.bytes // _ELEMENT_BYTES
    return _STARTS[case.kind](elements, group, device)


def _all_reduce(elements: int, group: ProcessGroup, device: torch.device) -> Run:
    x, name = _ones(elements, device), group.group_name
    return lambda _: _wire.wait_tensor(_wire.all_reduce(x, "sum", name))


def _all_gather(elements: int, group: ProcessGroup, device: torch.device) -> Run:
    size, name = group.size(), group.group_name
    x = _ones(elements // size, device)
    return lambda _: _wire.wait_tensor(_wire.all_gather_into_tensor(x, size, name))


def _reduce_scatter(elements: int, group: ProcessGroup, device: torch.device) -> Run:
    size, name = group.size(), group.group_name
    x = _ones(elements // size * size, device)
    return lambda _: _wire.wait_tensor(_wire.reduce_scatter_tensor(x, "sum", size, name))


def _all_to_all(elements: int, group: ProcessGroup, device: torch.device) -> Run:
    size, name = group.size(), group.group_name
    x, parts = _ones(elements // size * size, device), [elements // size] * size
    return lambda _: _wire.wait_tensor(_wire.all_to_all_single(x, parts, parts, name))


def _broadcast(elements: int, group: ProcessGroup, device: torch.device) -> Run:
    """Each member in turn is the source, so that none runs ahead of the others."""
    x = _ones(elements, device)
    return lambda turn: dist.broadcast(x, group=group, group_src=turn % group.size())


def _send(elements: int, group: ProcessGroup, device: torch.device) -> Run:
    """Neighbours in pairs, each a message to the other at once, as a pipeline's activations and gradients cross: every
    device sends while every other does. Of an odd number of members the last waits."""
    x, y, peer = _ones(elements, device), _ones(elements, device), group.rank() ^ 1
    if peer >= group.size():
        return lambda _: None

    def run(_: int) -> None:
        there = P2POp(dist.isend, x, group=group, group_peer=peer)
        back = P2POp(dist.irecv, y, group=group, group_peer=peer)
        for work in dist.batch_isend_irecv([there, back]):
            work.wait()

    return run


_STARTS: dict[str, Callable[[int, ProcessGroup, torch.device], Run]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "broadcast": _broadcast,
    "send": _send,
}


def _ones(elements: int, device: torch.device) -> Tensor:
    return torch.ones(max(elements, 1), device=device)
