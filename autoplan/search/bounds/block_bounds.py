"""What no plan of a setting undercuts, its memory wall included: the other side of the reported gap.

A plan of a setting is a way to run the operators, cuts of the chain, and for each segment whether it keeps everything,
recomputes selectively or in full. A stage with n microbatches in flight holds share·state bytes of parameters and n
times what its segments keep of one microbatch. With λ/n the price of a byte on it, a segment of block b that recomputes
nothing takes at least B_b(λ), the bound of its block's operator problem alone (``alone``)

    minimise  time + λ·kept bytes + λ·share/n·state bytes

over all its operators' strategies; one that recomputes keeps less and runs again, so that segment b takes

    L_b(λ) = min( B_b(λ),  B_b(0) + again_full_b + λ·inputs_b + σ_b,  B_b(0) + again_part_b + λ·selective_b + σ_b )

with σ_b = λ·share/n·(its least state bytes); where it is pinned what recomputes, that one of the three    segment_s
and the stage, holding segments [i, j) and with room for so many bytes of states and of what is kept,

    seconds[i, j]  ≥  max over λ of  Σ_{i≤s<j} L_s(λ) - λ·room[i, j] / n                                   stage_s

(Lagrange). The best cuts over these (``choose_cuts``) are below every cut into every count of blocks. Time is that of
the operators and of adding gradients up, which parameters of more bytes take longer for. What the data axis adds, what
1F1B hides of the forwards, and what a recomputed segment runs again and keeps, are those of the leanest or the fastest
operators that are known, whichever is less; all else holds for every strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autoplan.search.block_cost.account import BlockPrice
from autoplan.search.inter_op.chain import Chain
from autoplan.search.inter_op.chain_costs import Pieces
from autoplan.search.inter_op.partition import choose_cuts
from autoplan.search.inter_op.stage_model import Loads, parameter_share, range_max
from autoplan.search.intra_op.classes import GroupKey
from autoplan.search.intra_op.problem import Problem, Tensor
from autoplan.search.intra_op.solve import Weights
from autoplan.search.proof.boxes import Cell
from autoplan.search.proof.interleaved_lp import Leaner

FloorOf = Callable[[int, Weights], float]
"""B_b at prices of (state bytes, kept bytes), of one segment of a block."""


@dataclass(frozen=True)
class Known:
    """What is known of a setting's operators.

    loads   of the fastest, with the least that the data axis adds to any operators known
    lean    a chain that holds no more than any operators known (``leanest_of``)
    own_s   [segments] of the fastest: forward, backward, adding gradients up; without what the data axis adds
    blocks  of each segment
    floor   B_b
    rates   prices of a byte kept that are alike for all settings with the same operators (``rates_of``)
    adding  seconds for each byte of parameters that B_b and ``own_s`` hold beside the operators' own
    once_s  what happens once a step, of the whole chain, at least
    forward_s  [segments] at most, of which 1F1B hides; None: those of the fastest
    """

    loads: Loads
    lean: Chain
    own_s: np.ndarray
    blocks: tuple[int, ...]
    floor: FloorOf
    rates: np.ndarray
    adding: float = 0.0
    once_s: float = 0.0
    forward_s: np.ndarray | None = None

    @property
    def hides(self) -> Loads:
        """The loads, with the forwards that may be hidden."""
        forward_s = {} if self.forward_s is None else {"forward_s": self.forward_s}
        return replace(self.loads, chain=self.loads.chain.holding(forward_s))

    @cached_property
    def prices(self) -> np.ndarray:
        """[λ]"""
        return ties(self)

    @cached_property
    def per_segment(self) -> np.ndarray:
        """[segments, λ]: L_b(λ)"""
        return segment_s(self, self.prices)

    @cached_property
    def stateless(self) -> np.ndarray:
        """[segments, rates]: L_b(λ) of what is kept alone."""
        return segment_s(self, self.rates, 0.0)

    def least(self, name: str) -> np.ndarray:
        """[segments] the lesser of the fastest's and of ``lean``."""
        return np.minimum(getattr(self.loads.chain, name), getattr(self.lean, name))

    @cached_property
    def heaviest(self) -> int | None:
        """The block whose segments keep most, of those that may be recomputed."""
        held = dict.fromkeys(self.blocks, 0.0)
        for block, kept, again in zip(self.blocks, self.loads.chain.kept, self.loads.chain.repeated, strict=True):
            held[block] += float(kept) if again else 0.0
        return max(held, key=held.__getitem__) if self.loads.chain.repeated.any() else None

    def within(self, cell: Cell) -> Known:
        """The same where the operators of the heaviest block are in a cell."""
        mine, floor = np.array(self.blocks) == self.heaviest, self.floor

        def floor_in(block: int, weights: Weights) -> float:
            inside_s = cell.least_s + (self.adding + weights.state) * cell.state + weights.kept * cell.kept
            return max(floor(block, weights), inside_s) if block == self.heaviest else floor(block, weights)

        def held(chain: Chain) -> Chain:
            kept = cell.kept + self.loads.data.cast_share * cell.state
            states, keeps = np.where(mine, cell.state, 0.0), np.where(mine, kept, 0.0)
            owns = np.where(chain.owned < chain.parameters, 0.0, states)  # of the cell, a share of what others read
            least = {"parameters": states, "owned": owns, "kept": keeps}
            return chain.holding({name: np.maximum(getattr(chain, name), more) for name, more in least.items()})

        loads = replace(self.loads, chain=held(self.loads.chain))
        return replace(self, loads=loads, lean=held(self.lean), floor=floor_in)


BYTES = ("kept", "inputs", "outputs", "constants", "working", "parameters", "owned", "selective", "rebuilt")
"""Columns of a chain that leaner operators may lessen."""

AGAIN = ("forward_s", "again_s")
"""Columns of what is recomputed."""


def leanest_of(chains: Sequence[Chain], cast: float) -> Chain:
    """Of each column the least of several operators': the fastest, and those that hold least.

    cast  bytes kept for each of parameters (``DataAxis.cast_share``), which those that keep least may have many of
    """
    least = {name: np.minimum.reduce([getattr(chain, name) for chain in chains]) for name in (*BYTES, *AGAIN)}
    beside = np.minimum.reduce([chain.kept - cast * chain.parameters for chain in chains])
    return chains[0].holding(least | {"kept": beside + cast * least["parameters"]})


def alone(problem: Problem, block: int, shares: Mapping[GroupKey, float]) -> Problem:
    """The part of a problem that belongs to one block: its operators and the ways of its values. Borders cost nothing,
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


def least_schedule_s(ranks: Sequence[Known], wall: float) -> float:
    """Seconds that the schedule of a setting without virtual stages takes at least, what happens once a step aside;
    infinite where nothing fits. Where there is no tensor axis operators leave no choice, and it is the best there is.

    ranks  what is known on each pipeline rank's devices
    """
    if ranks[0].loads.setting.tp == 1:
        seconds = [known.loads.options(stage, wall).seconds for stage, known in enumerate(ranks)]
    else:
        seconds = [stage_s(known, stage, wall) for stage, known in enumerate(ranks)]
    slow = [part - known.hides.hidden_s(k) for k, (known, part) in enumerate(zip(ranks, seconds, strict=True))]
    cuts = choose_cuts(seconds, ranks[0].loads.setting.microbatches, slow)
    return np.inf if cuts is None else cuts.bound_s


def ties(known: Known) -> np.ndarray:
    """``tied`` of the segments that may be recomputed."""
    chain = known.loads.chain
    columns = (chain.forward_s, chain.again_s, chain.kept - chain.inputs, chain.kept - chain.selective)
    return tied(*(column[chain.repeated] for column in columns)).round(24)


def rates_of(prices: Sequence[BlockPrice], uses: Mapping[int, int]) -> np.ndarray:
    """``tied`` of the blocks that may be recomputed, whatever the data axis adds to their seconds and bytes. Rounded,
    so that settings with about the same operators ask for the same."""
    again = [price for block, price in enumerate(prices) if uses[block] > 1]
    rows = [
        (p.forward_s, p.selective.again_s, p.kept_bytes - p.input_bytes, p.kept_bytes - p.selective.kept_bytes)
        for p in again
    ]
    columns = np.array(rows, dtype=float).reshape(-1, 4).T
    return np.unique([float(f"{price:.1e}") for price in tied(*columns)])


def tied(full_s: np.ndarray, part_s: np.ndarray, full: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Nothing, and the prices at which two ways to keep a segment cost the same: there the bound has its corners. And
    one above them, for where bytes must be saved otherwise.

    full_s, part_s  [segments] spent where it is recomputed in full, and selectively
    full, part      [segments] bytes saved
    """
    pairs = [(full_s, full), (part_s, part), (full_s - part_s, full - part)]
    saving = [(seconds, saved, (seconds > 0) & (saved > 0)) for seconds, saved in pairs]
    rates = [seconds[where] / saved[where] for seconds, saved, where in saving]
    prices = np.concatenate([[0.0], *rates])
    return np.unique(np.append(prices, 3 * prices.max()))


def leaner_of(known: Known, flight: float) -> Leaner:
    """What keeping less than the fastest do costs the segments that may be recomputed.

    flight  microbatches of which about a stage holds what is kept, by which bytes of parameters are priced beside these
    """
    chain, prices, data = known.loads.chain, known.rates, known.loads.data
    share = parameter_share(data, known.loads.states)
    state = 2.0 ** math.floor(math.log2(share / flight))  # a few, for many settings
    owned, kept = known.least("owned"), known.least("kept") - data.cast_share * known.least("parameters")
    slower = np.zeros((len(known.blocks), len(prices)))
    places = np.flatnonzero(chain.repeated)
    for block in sorted({known.blocks[place] for place in places}):
        mine = [place for place in places if known.blocks[place] == block]
        least_s = np.array([known.floor(block, Weights(price * state, price)) for price in prices.tolist()])
        least_s = least_s - known.own_s[mine[0]]
        slower[mine] = least_s - prices * (kept[mine] + state * owned[mine])[:, None]
    return Leaner(prices, prices * state, share, slower, np.zeros(len(known.blocks)))


def held_in(known: Known, pieces: Pieces, leaner: Leaner, cell: Cell) -> tuple[Pieces, Leaner]:
    """The same where the operators of the heaviest block are in a cell."""
    mine = np.array(known.blocks) == known.heaviest
    kept = known.least("kept") - known.loads.data.cast_share * known.least("parameters")
    above = cell.kept - kept, cell.state - known.least("owned")
    more = (np.where(mine, np.maximum(held, 0.0), 0.0) for held in above)
    sure_s = cell.least_s + known.adding * cell.state - known.own_s
    return leaner.within(pieces, np.where(mine, np.maximum(sure_s, 0.0), 0.0), *more)


def segment_s(known: Known, prices: np.ndarray, share: float | None = None) -> np.ndarray:
    """[segments, λ]: L_b(λ), with what the data axis adds.

    share  of the price of a byte kept that a byte of parameters has for its states; None: as on the stage with most in
           flight
    """
    loads, chain = known.loads, known.loads.chain
    share = parameter_share(loads.data, loads.states) / max(loads.in_flight) if share is None else share
    repeated = {b for b, again in zip(known.blocks, chain.repeated, strict=True) if again}
    rows = {b: [known.floor(b, priced(p, share, b in repeated)) for p in prices] for b in dict.fromkeys(known.blocks)}
    floor, price = np.array([rows[b] for b in known.blocks]), prices[None, :]
    states = known.least("owned")[:, None] * share * price
    cast = loads.data.cast_share * known.least("parameters")[:, None] * price
    alike, asked = chain.repeated[:, None], loads.setting.recompute
    least = np.where(alike, floor if asked in ("auto", "none") else np.inf, floor + states) + cast
    for kind, again_s, kept in (("full", "forward_s", "inputs"), ("selective", "again_s", "selective")):
        other = floor[:, :1] + known.least(again_s)[:, None] + price * known.least(kept)[:, None] + states
        least = np.where(alike & (asked in ("auto", kind)), np.minimum(least, other), least)
    return least + (chain.forward_s + chain.backward_s - known.own_s)[:, None]


def priced(price: float, share: float, states: bool) -> Weights:
    """A price on what is kept; of states too where the block's own problem shall choose how they are stored."""
    return Weights(price * share if states else 0.0, float(price))


def stage_s(known: Known, stage: int, wall: float) -> np.ndarray:
    """[N+1, N+1]: seconds of a stage in a microbatch at least, by its first and last segment."""
    prices, per_segment = known.prices, known.per_segment
    loads, size, flight = known.loads, len(per_segment) + 1, known.loads.in_flight[stage]
    share = parameter_share(loads.data, loads.states)
    least = {name: known.least(name) for name in BYTES} | {"kept": np.zeros(size - 1)}
    beside = replace(loads, chain=loads.chain.holding(least))
    held = sums(known.least("owned") * share)
    room = wall + loads.spare - beside.bytes_beside_states(stage)
    further = (1 / flight - 1 / max(loads.in_flight)) * held  # states, as priced here above what L_b has of them
    must = sums(known.least("kept")) * flight + held > room
    again = np.minimum(beside.largest["rebuilt"], range_max(np.where(known.lean.repeated, known.lean.kept, 0.0)))
    room = room - np.where(must, again, 0.0)
    spent = np.stack([sums(column) for column in per_segment.T], axis=-1)
    least_s = (spent + prices * (further - room / flight)[:, :, None]).max(axis=-1)
    runs = np.triu(np.ones((size, size), dtype=bool), 1) & (room >= held)
    return np.where(runs, least_s, np.inf) + loads.messages_s(stage)


def sums(values: np.ndarray) -> np.ndarray:
    """[N+1, N+1]: of every run of segments."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return total[None, :] - total[:, None]

