"""The part of an operator problem that belongs to one block: what its operators take at least, whatever stands beside
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from autoplan.search.intra_op.classes import GroupKey
from autoplan.search.intra_op.problem import Problem, Tensor
from autoplan.search.intra_op.solve import Weights

FloorOf = Callable[[int, Weights], float]
"""Seconds that no operators of one segment of a block undercut, at prices of (state bytes, kept bytes)."""


def alone(problem: Problem, block: int, shares: Mapping[GroupKey, float]) -> Problem:
    """The operators of one block and the ways of its values. Borders cost nothing,
    nor does what a parameter costs once a step, however it is stored: a stage's gradients are summed together.

    shares  of each way to store parameters, how much of what is stored so is the block's
    """
    tensors = [t for t in problem.tensors if t.block == block]
    mine = {t.source for t in tensors} | {g for t in tensors for g, _ in t.sinks}
    mine |= {i for i, group in enumerate(problem.groups) if group.key[:2] == ("node", block)}
    place = {old: new for new, old in enumerate(sorted(mine))}
    groups = [problem.groups[old] for old in sorted(mine)]
    groups = [
        replace(g, time_s=0 * g.time_s, state_bytes=g.state_bytes * shares[g.key]) if g.key[0] == "stored" else g
        for g in groups
    ]
    return Problem(tuple(groups), tuple(moved(t, place) for t in tensors))


def moved(tensor: Tensor, place: dict[int, int]) -> Tensor:
    return replace(
        tensor,
        source=place[tensor.source],
        sinks=tuple((place[g], taken) for g, taken in tensor.sinks),
        keepers=tuple((place[g], kept) for g, kept in tensor.keepers),
    )
