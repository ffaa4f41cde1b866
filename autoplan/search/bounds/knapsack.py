"""A lower bound under a memory limit, by what each pipeline rank can hold in a given time.

It needs no cuts and no solver. It takes a fraction of a millisecond whatever the chain's length, and leaves most
candidates unpriced.

A rank with n microbatches in flight, which in each takes t seconds and keeps k bytes beside its states, has for every
price λ of a byte, with x_b segments of each block b on it (in fractions),

    t + λ·k  ≥  Σ_b x_b·L_b(λ)                     and             n·k + Σ_b x_b·states_b  ≤  budget

where L_b(λ) is the least seconds + λ·kept bytes of a segment over all its operators and over what may be recomputed
(``block_bounds``). A schedule that is done in T seconds leaves it

    slots·t - hidden·Σ_b x_b·f_b  ≤  T - once through the chain

with f_b the forward that 1F1B hides of it (``local_search``). So what it holds of the chain, in seconds μ_b of its
segments, is no more than, for every λ (``RankKnapsacks.most``),

    max Σ_b μ_b·x_b   subject to   Σ_b x_b·(slots·(L_b(λ) + λ·states_b/n) - hidden·f_b)  ≤  T - once + slots·λ·budget/n
                                   0 ≤ x_b ≤ segments of b

a knapsack in fractions, filled by μ_b for each second; and however fast, no more than its bytes allow. All ranks have
to hold the chain: the least such T, by bisection, is the bound. The same with μ_b = 1 for segments that repeat and 0
for others counts the former, of which a rank holds a whole number; beside them the first rank holds the chain's first
segment and the last rank its last.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from autoplan.cost.interleaved import is_interleaved, least_held
from autoplan.search.bounds.block_bounds import BlockBounds
from autoplan.search.inter_op.parameter_shares import (
    border_bytes,
    gathered_bytes,
    least_gathered,
    least_share,
    message_buffers,
    parameter_share,
)
from autoplan.search.inter_op.stage_model import StageModel

HALVINGS = 14       # of what is open: 1e-4 of the bound
AMPLE = 0.75        # of a rank's budget: where an even share of the chain takes less, bytes don't matter
MOST_TIMES = 64.0   # times what it takes were nothing short of bytes: what takes longer counts as not fitting
LEAST = 1e-30
ROUNDING = 1e-9


@dataclass(frozen=True)
class RankKnapsacks:
    """What bounds each pipeline rank, as rows of knapsacks whose items are sorted by their worth.

    size    [ranks, rows, blocks] what all segments of a block take of a rank's budget
    worth   [ranks, rows, blocks] and how much of the chain they are
    before  [ranks, rows, blocks] what the items before take
    fixed   [ranks, rows] a rank's budget beside the time
    timed   [rows] whether the time counts in it
    """

    size: np.ndarray
    worth: np.ndarray
    before: np.ndarray
    fixed: np.ndarray
    timed: np.ndarray

    def most(self, left_s: float) -> np.ndarray:
        """[ranks] how much of the chain each can hold in the time that is left."""
        budget = (self.fixed + self.timed * left_s)[..., None]
        share = np.clip((budget - self.before) / self.size, 0.0, 1.0)
        return np.asarray((share * self.worth).sum(axis=-1).min(axis=-1))


def knapsacks(size: np.ndarray, worth: np.ndarray, fixed: np.ndarray, timed: np.ndarray) -> RankKnapsacks:
    """Those of blocks with these sizes and worths [blocks], the items sorted."""
    worths = np.broadcast_to(worth, size.shape)
    order = np.argsort(-worths / size, axis=-1)
    size, worths = (np.take_along_axis(part, order, axis=-1) for part in (size, worths))
    return RankKnapsacks(size, worths, np.cumsum(size, axis=-1) - size, fixed, timed)


def knapsack_bound(known: BlockBounds, stage_model: StageModel, memory_limit: float, unlimited_s: float) -> float:
    """Seconds that the schedule of a candidate takes at least, what happens once a step aside; infinite where nothing
    fits.

    stage_model  that of ``known``, with the candidate's schedule
    unlimited_s  such seconds by the operators alone
    """
    chain = stage_model.chain
    parts, repeated, once_s = ranks_of(known, stage_model, memory_limit)
    whole_s, count = float((chain.forward_s + chain.backward_s).sum()), int(chain.repeated.sum())

    def enough(step_s: float) -> bool:
        left_s = step_s - once_s
        if parts.most(left_s).sum() < whole_s * (1 - ROUNDING):
            return False
        return bool(np.floor(repeated.most(left_s) + count * ROUNDING).sum() >= count)

    if enough(unlimited_s):
        return unlimited_s
    low, high = unlimited_s, 2 * max(unlimited_s, whole_s)
    most_s = MOST_TIMES * high / 2
    while not enough(high):
        low, high = high, 2 * high
        if low > most_s:
            return float("inf")
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low


def short_of_bytes(stage_model: StageModel, memory_limit: float) -> bool:
    """Whether some rank's even share of the chain, nothing recomputed, comes near the memory limit."""
    chain, ranks = stage_model.chain, stage_model.candidate.pp
    share = parameter_share(stage_model.data, stage_model.states)
    states = float(chain.owned.sum()) * share + float(chain.frozen_owned.sum())
    most = (states + float(chain.kept.sum()) * max(flights(stage_model))) / ranks
    most += float(chain.working.max() + gathered_bytes(stage_model.data, chain).max())
    return most > AMPLE * (memory_limit + stage_model.headroom - beside(stage_model))


def flights(stage_model: StageModel) -> tuple[int, ...]:
    """Microbatches that each rank holds at once, at least, of all its segments."""
    candidate = stage_model.candidate
    if is_interleaved(candidate.schedule):
        return least_held(candidate.schedule, candidate.pp, candidate.microbatches)
    return stage_model.in_flight


def beside(stage_model: StageModel) -> float:
    """Bytes that a rank holds beside states and what is kept, at least, whatever it has of the chain."""
    each = float(stage_model.chain.working.min() + least_gathered(stage_model.data, stage_model.chain))
    message = float(border_bytes(stage_model.chain).min(initial=np.inf)) if stage_model.candidate.stages > 1 else 0.0
    return each + message_buffers(stage_model.candidate) * message


def ranks_of(
    known: BlockBounds, stage_model: StageModel, memory_limit: float
) -> tuple[RankKnapsacks, RankKnapsacks, float]:
    """(what bounds each rank, in seconds of the chain; the same in whole segments that repeat; seconds once through the
    chain)."""
    chain, uses = stage_model.chain, Counter(known.blocks)
    first = [known.blocks.index(block) for block in uses]
    count, again = np.array(list(uses.values()), dtype=float), chain.repeated[first]
    by_rows, candidate = bool(stage_model.chain.untouched.any()), stage_model.candidate
    states = least_of_blocks(known, "owned") * least_share(stage_model.data, stage_model.states, candidate, by_rows)
    states = states * (not candidate.tables) + least_of_blocks(known, "frozen_owned")
    flight, prices = np.array(flights(stage_model), dtype=float), known.rates
    names = ("working", "parameters", "gathered_frozen", "inputs", "outputs")
    lean = {name: known.least(name) for name in names}
    budget = memory_limit + stage_model.headroom - beside(replace(stage_model, chain=chain.holding(lean)))
    slots, hidden, once_s = slots_and_hidden(stage_model)
    priced = known.segment_s[first].T[None] + prices[None, :, None] * states / flight[:, None, None]
    lasting = slots * priced - hidden[:, None, None] * known.forward_s[first]  # [ranks, λ, blocks]
    held = (states + flight[:, None] * least_kept(known)[first])[:, None, :]
    each = np.maximum(np.concatenate([lasting, held], axis=1), LEAST)            # and a row of bytes
    fixed = np.append(slots * prices * (budget / flight)[:, None], np.full((len(flight), 1), budget), axis=1)
    timed = np.append(np.ones(len(prices)), 0.0)
    parts = knapsacks(each * count, (chain.forward_s + chain.backward_s)[first] * count, fixed, timed)
    beside_ends = fixed.copy()
    for rank, end in ((0, 0), (-1, len(chain) - 1)):
        if not chain.repeated[end]:
            beside_ends[rank] -= each[rank, :, list(uses).index(known.blocks[end])]
    return parts, knapsacks(each * count, again * count, beside_ends, timed), once_s


def least_of_blocks(known: BlockBounds, column: str) -> np.ndarray:
    """[blocks] bytes of one of its segments, at least."""
    places = {block: place for place, block in enumerate(dict.fromkeys(known.blocks))}
    found = np.full(len(places), np.inf)
    np.minimum.at(found, [places[block] for block in known.blocks], known.least(column))
    return found


def least_kept(known: BlockBounds) -> np.ndarray:
    """[segments] bytes kept of a microbatch at least."""
    chain = known.stage_model.chain
    again = np.minimum(known.least("inputs"), known.least("selective"))
    return np.where(chain.repeated, np.minimum(again, known.least("kept")), known.least("kept"))


def slots_and_hidden(stage_model: StageModel) -> tuple[float, np.ndarray, float]:
    """(times that a rank's seconds of a microbatch count, times that its forward of one is hidden, seconds once through
    the chain beside)"""
    candidate, chain = stage_model.candidate, stage_model.chain
    hidden = np.zeros(candidate.pp)
    if is_interleaved(candidate.schedule) or candidate.pp == 1:
        return float(candidate.microbatches), hidden, 0.0
    more = candidate.microbatches - 1
    if candidate.schedule == "1f1b":
        hidden = np.minimum(more, np.arange(candidate.pp)[::-1]).astype(float)
    return float(more), hidden, float((chain.forward_s + chain.backward_s).sum()) + stage_model.least_messages_s
