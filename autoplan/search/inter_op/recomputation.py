"""How much of a stage is recomputed: the cheapest mix of kept, selectively and fully recomputed segments that fits.

Of a stage's repeated segments, in the order of the chain, the first c keep their inputs alone and run again in the
backward, the next e keep what is dear to compute (``kept``) and run the rest again. With f_i and g_i the bytes that
segment i saves either way, α_i and β_i the seconds that it runs again, n the microbatches in flight:

    minimise  Σ_{i<c} α_i + Σ_{c≤i<c+e} β_i   subject to   n·(Σ_{i<c} f_i + Σ_{c≤i<c+e} g_i) ≥ need(c, e)

need(c, e) is by how much the stage exceeds the memory limit with everything kept, and what stands beside that while one
segment's backward runs: the largest of what autograd keeps of one of the c, or a selective one of the e computes
again.

For a given c the fewest selective segments follow by bisection, so the mix is exact: c counts up from the least that
can suffice, and stops where full recomputation alone costs as much as the best found. Blocks of one class being alike,
their order doesn't matter; where several classes repeat, their order in the chain does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

EXACT = 1 - 1e-12  # of a need: rounding of sums of bytes
NEARLY = 1 - 1e-9  # where too few to suffice may be looked at, but none that suffice be missed


@dataclass(frozen=True)
class RecomputeMix:
    """The cheapest recomputation that makes each run of segments fit: arrays of one shape.

    seconds          spent again; infinite where nothing suffices
    full, selective  how many segments are recomputed in full, and then selectively
    """

    seconds: np.ndarray
    full: np.ndarray
    selective: np.ndarray


@dataclass(frozen=True)
class RecomputeSavings:
    """Sums over the first 0, 1, … of the chain's repeated segments, in one microbatch.

    full_bytes, full_s   saved by keeping their inputs alone, and spent on it
    part_bytes, part_s   saved by selective recomputation, and spent on it

    kept, rebuilt  [R+1, R+1] by first and last repeated segment: the largest that autograd keeps of one of them, and
                   that a selective one of them computes again; it stands beside all else while its backward runs
    """

    full_bytes: np.ndarray
    full_s: np.ndarray
    part_bytes: np.ndarray
    part_s: np.ndarray
    kept: np.ndarray
    rebuilt: np.ndarray

    @property
    def mixes(self) -> bool:
        """Whether selective recomputation saves bytes of every segment; else it has no place in a mix."""
        return bool((np.diff(self.part_bytes) > 0).all())

    def all_of(self, kind: str, begin: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(bytes saved, seconds spent) where ``count`` segments from ``begin`` on are recomputed, all "full" or all
        "selective"."""
        saved, spent = (self.full_bytes, self.full_s) if kind == "full" else (self.part_bytes, self.part_s)
        return saved[begin + count] - saved[begin], spent[begin + count] - spent[begin]

    @cached_property
    def most_bytes(self) -> np.ndarray:
        """What any recomputation of the first 0, 1, … may save."""
        return np.concatenate([[0.0], np.cumsum(np.maximum(np.diff(self.full_bytes), np.diff(self.part_bytes)))])

    def cheapest(self, begin: np.ndarray, count: np.ndarray, over: np.ndarray, flight: int) -> RecomputeMix:
        """The cheapest mix of each run of segments, all arrays [runs].

        begin, count  its repeated segments
        over          bytes by which it exceeds the limit with everything kept
        flight        microbatches in flight
        """
        mix = self.selective_alone(begin, count, over, flight)
        end = begin + count
        first = np.minimum(begin + 1, len(self.kept) - 1)
        need, most_need = ((over + self.kept[begin, at]) / flight for at in (first, end))
        part = self.part_bytes if self.mixes else np.zeros_like(self.part_bytes)
        least = np.searchsorted(self.full_bytes - part, need * NEARLY + self.full_bytes[begin] - part[end]) - begin
        most = np.searchsorted(self.full_bytes, self.full_bytes[begin] + most_need * EXACT) - begin
        least, most = np.maximum(least, 1), np.minimum(most, count)
        rising, rate = self.rate()
        left = np.flatnonzero(least <= most)
        full = least.copy()
        while len(left):
            lower_s = self.try_full(mix, left, begin[left], full[left], end[left], over[left], flight, rate)
            full[left] += 1
            left = left[(full[left] <= most[left]) & ((lower_s < mix.seconds[left]) | (not rising))]
        return mix

    def selective_alone(self, begin: np.ndarray, count: np.ndarray, over: np.ndarray, flight: int) -> RecomputeMix:
        """As few selective segments as suffice, none in full."""
        none = np.zeros_like(begin)
        last, enough = self.fewest_selective(begin, begin, begin + count, over, flight)
        seconds = np.where(enough, self.part_s[last] - self.part_s[begin], np.inf)
        return RecomputeMix(seconds, none, last - begin)

    def fewest_selective(
        self, begin: np.ndarray, first: np.ndarray, end: np.ndarray, over: np.ndarray, flight: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(the end of the selective segments, whether they suffice) where those from ``begin`` to ``first`` are
        recomputed in full: bisection by what stands beside those, then one by one while a selective segment brings
        along more than that."""
        saved = self.full_bytes[first] - self.full_bytes[begin]
        held = self.kept[begin, first]
        need = (over + held) / flight * EXACT - saved
        last = first.copy()
        if self.mixes:
            found = np.searchsorted(self.part_bytes, self.part_bytes[first] + need)
            last = np.where(need > 0, np.minimum(found, end), first)
        while True:
            need = (over + np.maximum(held, self.rebuilt[first, last])) / flight * EXACT - saved
            short = self.part_bytes[last] - self.part_bytes[first] < need
            further = short & (last < end) & self.mixes
            if not further.any():
                return last, ~short
            last = last + further

    def try_full(
        self, mix: RecomputeMix, runs: np.ndarray, begin: np.ndarray, full: np.ndarray, end: np.ndarray,
        over: np.ndarray,
        flight: int, rate: float,
    ) -> np.ndarray:  # fmt: skip
        """Takes over what is cheaper with so many segments in full; seconds that no larger number undercuts."""
        first = begin + full
        rest = (over + self.kept[begin, first]) / flight * EXACT - (self.full_bytes[first] - self.full_bytes[begin])
        spent_s = self.full_s[first] - self.full_s[begin]
        last, enough = self.fewest_selective(begin, first, end, over, flight)
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
    kept: np.ndarray, inputs: np.ndarray, selective: np.ndarray, rebuilt: np.ndarray, full_s: np.ndarray,
    part_s: np.ndarray,
) -> RecomputeSavings:  # fmt: skip
    """From what each repeated segment keeps as it is, where it keeps its input alone, and where it recomputes
    selectively; what it computes again then; and what it spends on either."""
    full = (prefix(np.maximum(kept - inputs, 0.0)), prefix(full_s))
    return RecomputeSavings(*full, prefix(kept - selective), prefix(part_s), range_max(kept), range_max(rebuilt))


def prefix(values: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, … of them."""
    return np.concatenate([[0.0], np.cumsum(values)])


def range_max(values: np.ndarray) -> np.ndarray:
    """[N+1, N+1]: the largest of values[first:last], none of which is negative; 0 where there is none."""
    size = len(values) + 1
    each = np.broadcast_to(np.concatenate([[0.0], values]), (size, size))
    return np.asarray(np.maximum.accumulate(np.triu(each, 1), axis=1))
