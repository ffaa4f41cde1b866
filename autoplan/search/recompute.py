"""How much of a stage is recomputed: the cheapest mix of kept, selectively and fully recomputed segments under a wall.

Of a stage's repeated segments, in the order of the chain, the first c keep their inputs alone and run again in the
backward, the next e keep what is dear to compute (``kept``) and run the rest again. With f_i and g_i the bytes that
segment i saves either way, α_i and β_i the seconds that it runs again, n the microbatches in flight:

    minimise  Σ_{i<c} α_i + Σ_{c≤i<c+e} β_i   subject to   n·(Σ_{i<c} f_i + Σ_{c≤i<c+e} g_i) ≥ need(c)

need(c) is by how much the stage exceeds its wall with everything kept, and what stands beside that while one segment's
backward runs: the largest of what autograd keeps of one (c > 0), or of what a selective one computes again (c = 0).

For a given c the fewest selective segments follow by bisection, so the mix is exact: c counts up from the least that
can suffice, and stops where full recomputation alone costs as much as the best found. Blocks of one class being alike,
their order doesn't matter; where several classes repeat, their order in the chain does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EXACT = 1 - 1e-12  # of a need: rounding of sums of bytes
NEARLY = 1 - 1e-9  # where too few to suffice may be looked at, but none that suffice be missed


@dataclass(frozen=True)
class Mix:
    """Of each run of segments: seconds spent again (infinite where nothing suffices), and how many segments are
    recomputed in full, then selectively. Arrays of one shape."""

    seconds: np.ndarray
    full: np.ndarray
    selective: np.ndarray


@dataclass(frozen=True)
class Savings:
    """Sums over the first 0, 1, … of the chain's repeated segments, in one microbatch.

    full_bytes, full_s   saved by keeping their inputs alone, and spent on it
    part_bytes, part_s   saved by selective recomputation, and spent on it
    """

    full_bytes: np.ndarray
    full_s: np.ndarray
    part_bytes: np.ndarray
    part_s: np.ndarray

    @property
    def mixes(self) -> bool:
        """Whether selective recomputation saves bytes of every segment; else it has no place in a mix."""
        return bool((np.diff(self.part_bytes) > 0).all())

    def all_of(self, kind: str, begin: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(bytes saved, seconds spent) where ``count`` segments from ``begin`` on are recomputed, all "full" or all
        "selective"."""
        saved, spent = (self.full_bytes, self.full_s) if kind == "full" else (self.part_bytes, self.part_s)
        return saved[begin + count] - saved[begin], spent[begin + count] - spent[begin]

    def cheapest(self, begin: np.ndarray, count: np.ndarray, need: np.ndarray, need_part: np.ndarray) -> Mix:
        """The cheapest mix of each run of segments, all arrays [runs].

        begin, count  its repeated segments
        need          bytes to be saved where any segment is recomputed in full
        need_part     the same where none is
        """
        mix = self.selective_alone(begin, count, need_part)
        end = begin + count
        part = self.part_bytes if self.mixes else np.zeros_like(self.part_bytes)
        least = np.searchsorted(self.full_bytes - part, need * NEARLY + self.full_bytes[begin] - part[end]) - begin
        most = np.searchsorted(self.full_bytes, self.full_bytes[begin] + need * EXACT) - begin
        least, most = np.maximum(least, 1), np.minimum(most, count)
        rising, rate = self.rate()
        left = np.flatnonzero(least <= most)
        full = least.copy()
        while len(left):
            at, c = begin[left], full[left]
            lower_s = self.try_full(mix, left, at, c, count[left], need[left], rate)
            full[left] += 1
            left = left[(full[left] <= most[left]) & ((lower_s < mix.seconds[left]) | (not rising))]
        return mix

    def selective_alone(self, begin: np.ndarray, count: np.ndarray, need: np.ndarray) -> Mix:
        """As few selective segments as suffice, none in full."""
        none = np.zeros_like(begin)
        if not self.mixes:
            return Mix(np.full(len(begin), np.inf), none, none.copy())
        last = np.searchsorted(self.part_bytes, self.part_bytes[begin] + need * EXACT)
        enough = last <= begin + count
        last = np.where(enough, last, begin)
        seconds = np.where(enough, self.part_s[last] - self.part_s[begin], np.inf)
        return Mix(seconds, none, last - begin)

    def try_full(
        self, mix: Mix, runs: np.ndarray, begin: np.ndarray, full: np.ndarray, count: np.ndarray, need: np.ndarray,
        rate: float,
    ) -> np.ndarray:  # fmt: skip
        """Takes over what is cheaper with so many segments in full; seconds that no larger number undercuts."""
        first = begin + full
        rest = need * EXACT - (self.full_bytes[first] - self.full_bytes[begin])
        spent_s = self.full_s[first] - self.full_s[begin]
        last = first
        if self.mixes:
            last = np.where(rest > 0, np.searchsorted(self.part_bytes, self.part_bytes[first] + rest), first)
        enough = (last <= begin + count) & ((rest <= 0) | (last > first))
        last = np.where(enough, last, first)
        seconds = np.where(enough, spent_s + self.part_s[last] - self.part_s[first], np.inf)
        better = seconds < mix.seconds[runs]
        mix.seconds[runs[better]] = seconds[better]
        mix.full[runs[better]] = full[better]
        mix.selective[runs[better]] = (last - first)[better]
        return spent_s + rate * np.maximum(rest, 0.0)

    def rate(self) -> tuple[bool, float]:
        """(whether a segment costs no less in full than selective ones that save as much, the least seconds for a byte
        of any selective segment): if so, seconds only rise with the number in full."""
        if not self.mixes or len(self.part_s) < 2:
            return True, 0.0
        rate = float((np.diff(self.part_s) / np.diff(self.part_bytes)).min())
        return bool((np.diff(self.full_s) >= rate * np.diff(self.full_bytes)).all()), rate


def savings(
    kept: np.ndarray, inputs: np.ndarray, selective: np.ndarray, full_s: np.ndarray, part_s: np.ndarray
) -> Savings:
    """From what each repeated segment keeps as it is, where it keeps its input alone, and where it recomputes
    selectively; and what it spends on either."""
    totals = (np.maximum(kept - inputs, 0.0), full_s, kept - selective, part_s)
    return Savings(*(np.concatenate([[0.0], np.cumsum(values)]) for values in totals))
