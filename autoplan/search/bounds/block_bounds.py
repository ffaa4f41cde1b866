"""What one segment of each block takes and holds at least, whatever its operators: the items of the knapsack bound.

A plan of a candidate chooses a way to run the operators, cuts of the chain, and for each segment whether it keeps
everything, recomputes selectively or in full. Let λ be the price of a byte that is kept of one microbatch. A segment
of block b that recomputes nothing takes at least B_b(λ), the bound of its block's problem (``Problem.of_block``)

    minimise  time + λ·kept bytes

over all its operators' strategies. One that recomputes keeps less and runs again, so that a segment takes

    L_b(λ) = min( B_b(λ),  B_b(0) + again_full_b + λ·inputs_b,  B_b(0) + again_part_b + λ·selective_b )

or the one of the three that is pinned. Time is that of the operators and of adding gradients up, which parameters of
more bytes take longer for. What the data axis adds, what 1F1B hides of the forwards, and what a recomputed segment runs
again and keeps, are those of the leanest or the fastest operators that are known, whichever is less; all else holds for
every strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoplan.search.block_cost.account import BlockCost
from autoplan.search.inter_op.chain import Chain
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.intra_op.solve import FloorOf


@dataclass(frozen=True)
class BlockBounds:
    """What is known of a candidate's operators.

    stage_model  of the fastest, with the least that the data axis adds to any operators known
    lean    a chain that holds no more than any operators known (``leanest_of``)
    own_s   [segments] of the fastest: forward, backward, adding gradients up; without what the data axis adds
    blocks  of each segment
    floor   B_b
    rates   [λ] prices of a byte kept that are alike for all candidates with the same operators (``rates_of``)
    forward_s  [segments] at most, of which 1F1B hides
    once_s  what happens once a step, of the whole chain, at least
    """

    stage_model: StageModel
    lean: Chain
    own_s: np.ndarray
    blocks: tuple[int, ...]
    floor: FloorOf
    rates: np.ndarray
    forward_s: np.ndarray
    once_s: float = 0.0

    def least(self, name: str) -> np.ndarray:
        """[segments] the lesser of the fastest's and of ``lean``."""
        return np.minimum(getattr(self.stage_model.chain, name), getattr(self.lean, name))

    @cached_property
    def segment_s(self) -> np.ndarray:
        """[segments, λ]: L_b(λ), with what the data axis adds."""
        stage_model, chain, prices = self.stage_model, self.stage_model.chain, self.rates
        rows = {b: self.floor(b, 0.0, prices) for b in dict.fromkeys(self.blocks)}
        floor, price = np.array([rows[b] for b in self.blocks]), prices[None, :]
        repeats, asked = chain.repeated[:, None], stage_model.candidate.recompute
        least = np.where(repeats & (asked not in ("auto", "none")), np.inf, floor)
        for kind, again_s, kept in (("full", "forward_s", "inputs"), ("selective", "again_s", "selective")):
            other = floor[:, :1] + self.least(again_s)[:, None] + price * self.least(kept)[:, None]
            least = np.where(repeats & (asked in ("auto", kind)), np.minimum(least, other), least)
        return least + (chain.forward_s + chain.backward_s - self.own_s)[:, None]


BYTES = (
    "kept", "inputs", "outputs", "constants", "working", "parameters", "owned", "frozen", "frozen_owned",
    "gathered_frozen", "selective", "rebuilt",
)  # fmt: skip
"""Columns of a chain that leaner operators may lessen."""

AGAIN = ("forward_s", "again_s")
"""Columns of what is recomputed."""


def leanest_of(chains: Sequence[Chain]) -> Chain:
    """Of each column the least of several operators': the fastest, and those that hold least."""
    least = {name: np.minimum.reduce([getattr(chain, name) for chain in chains]) for name in (*BYTES, *AGAIN)}
    return chains[0].holding(least)


def rates_of(prices: Sequence[BlockCost], uses: Mapping[int, int]) -> np.ndarray:
    """Prices of a byte kept at which two ways to keep a segment cost the same: there L_b has its corners. Of the blocks
    that may be recomputed, whatever the data axis adds to their seconds and bytes. With nothing, and one above them all
    for where bytes must be saved otherwise. Rounded, so that candidates with about the same operators ask for the same.
    """
    rows = [
        (p.forward_s, p.selective.again_s, p.kept_bytes - p.input_bytes, p.kept_bytes - p.selective.kept_bytes)
        for block, p in enumerate(prices)
        if uses[block] > 1
    ]
    full_s, part_s, full, part = np.array(rows, dtype=float).reshape(-1, 4).T
    pairs = [(full_s, full), (part_s, part), (full_s - part_s, full - part)]
    saving = [(seconds, saved, (seconds > 0) & (saved > 0)) for seconds, saved in pairs]
    corners = np.concatenate([[0.0], *(seconds[where] / saved[where] for seconds, saved, where in saving)])
    return np.unique([float(f"{price:.1e}") for price in np.append(corners, 3 * corners.max())])
