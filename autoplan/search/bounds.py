"""What no plan of a setting undercuts, its memory wall included: the other side of the reported gap.

A plan of a setting is a way to run the operators, cuts of the chain, and for each segment whether it keeps everything,
recomputes selectively or in full. With λ the price of a byte kept of one microbatch, a segment of block b takes, on a
stage whose wall has that price, at least

    L_b(λ) = min( B_b(λ),  B_b(0) + again_full_b + λ·inputs_b,  B_b(0) + again_part_b + λ·selective_b )     segment_s

where B_b(λ) is the least time + λ·kept bytes of the block alone, over all its operators' strategies: the bound of its
operator problem, of which ``alone`` is the part that belongs to it. A stage k with n microbatches in flight, and room
for so many bytes of what they keep, takes with segments [i, j)

    seconds[k][i, j]  ≥  max over λ of  Σ_{i≤s<j} L_b(s)(λ) - λ·room[k][i, j] / n                          stages_s

(Lagrange: what is kept of n microbatches fits in the room). ``choose_cuts`` over these is below every cut into every
count of blocks. What ZeRO's collectives leave in the open, and what a recomputed segment runs again and keeps, are
those of the leanest and the fastest operators that are known; all else holds for every strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoplan.search.load import Chain, Loads
from autoplan.search.problem import Group, Problem, Tensor
from autoplan.search.solve import Infeasible, Solution, Solver, Weights
from autoplan.search.stages import choose_cuts

PRICES = (0.0, 0.03, 0.2, 1.0)
"""Prices of all bytes kept, as shares of the fastest point's time."""


@dataclass(frozen=True)
class Floors:
    """Least times of one microbatch.

    prices   λ, in seconds for a byte kept
    seconds  [blocks, λ]: B_b(λ) of one segment of each block; [segments, λ] where laid along the chain
    """

    prices: np.ndarray
    seconds: np.ndarray

    def along(self, blocks: Sequence[int]) -> Floors:
        return replace(self, seconds=self.seconds[list(blocks)])


def floors(problem: Problem, fastest: Solution, uses: Sequence[int]) -> Floors:
    """The floors of one operator problem.

    uses  how often each block stands in the chain
    """
    prices = np.array(PRICES) * fastest.time_s / max(fastest.kept_bytes, 1.0)
    seconds = np.zeros((len(uses), len(prices)))
    for block, count in enumerate(uses):
        solver = Solver(alone(problem, block))
        for number, price in enumerate(prices):
            try:
                seconds[block, number] = solver.bound(Weights(0.0, float(price))) / count
            except Infeasible:
                break
    return Floors(prices, np.maximum.accumulate(seconds, axis=1))


def alone(problem: Problem, block: int) -> Problem:
    """The part of a problem that belongs to one block: its operators and the ways of its values. Borders cost nothing,
    and what a parameter costs once a step is left out."""
    tensors = [t for t in problem.tensors if t.block == block]
    mine = {t.source for t in tensors} | {g for t in tensors for g, _ in t.sinks}
    mine |= {i for i, group in enumerate(problem.groups) if group.key[:2] == ("node", block)}
    place = {old: new for new, old in enumerate(sorted(mine))}
    groups = [pure(problem.groups[old]) for old in sorted(mine)]
    return Problem(tuple(groups), tuple(moved(t, place) for t in tensors))


def pure(group: Group) -> Group:
    """A group without what it costs once a step: that of a layout is not of the microbatch."""
    return group if group.key[0] == "node" else replace(group, time_s=np.zeros_like(group.time_s))


def moved(tensor: Tensor, place: dict[int, int]) -> Tensor:
    return replace(
        tensor,
        source=place[tensor.source],
        sinks=tuple((place[g], taken) for g, taken in tensor.sinks),
        keepers=tuple((place[g], kept) for g, kept in tensor.keepers),
    )


def least_schedule_s(loads: Loads, lean: Chain, known: Floors, own_s: np.ndarray, wall: float) -> float:
    """Seconds that the schedule of a setting without virtual stages takes at least, what happens once a step aside;
    infinite where nothing fits.

    loads  of the fastest operators that are known
    lean   the chain of the leanest
    known  floors of every segment ([segments, λ])
    own_s  [segments] of the fastest: their forward and backward, without what the data axis adds
    """
    per_segment = segment_s(loads, lean, known, own_s)
    cuts = choose_cuts(stages_s(loads, lean, known.prices, per_segment, wall), loads.setting.microbatches)
    return np.inf if cuts is None else cuts.bound_s


def segment_s(loads: Loads, lean: Chain, known: Floors, own_s: np.ndarray) -> np.ndarray:
    """[segments, λ]: L_b(λ), with what the data axis adds."""
    fast, price = loads.chain, known.prices[None, :]
    cast = loads.data.cast_share * np.minimum(fast.parameters, lean.parameters)[:, None]
    least = known.seconds + price * cast
    inputs, part = np.minimum(fast.inputs, lean.inputs), np.minimum(fast.selective, lean.selective)
    full_s, part_s = np.minimum(fast.forward_s, lean.forward_s), np.minimum(fast.again_s, lean.again_s)
    for again_s, kept in ((full_s, inputs), (part_s, part)):
        other = known.seconds[:, :1] + again_s[:, None] + price * kept[:, None]
        least = np.where(fast.repeated[:, None], np.minimum(least, other), least)
    return least + (fast.forward_s + fast.backward_s - own_s)[:, None]


def stages_s(loads: Loads, lean: Chain, prices: np.ndarray, per_segment: np.ndarray, wall: float) -> list[np.ndarray]:
    """[N+1, N+1] of each stage: its seconds in a microbatch at least, by its first and last segment."""
    size = len(per_segment) + 1
    sums = np.concatenate([np.zeros((1, len(prices))), np.cumsum(per_segment, axis=0)])
    spent = sums[None, :, :] - sums[:, None, :]
    runs = np.triu(np.ones((size, size), dtype=bool), 1)
    beside = replace(loads, chain=replace(lean, kept=np.zeros_like(lean.kept)))
    found = []
    for stage in range(loads.setting.pp):
        room = wall - beside.bytes_without_recompute(stage)
        at_prices = spent - prices * room[:, :, None] / loads.in_flight[stage]
        seconds = np.where(runs & (room >= 0), at_prices.max(axis=-1), np.inf)
        found.append(seconds + loads.messages_s(stage))
    return found
