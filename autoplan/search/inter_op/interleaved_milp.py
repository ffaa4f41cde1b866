"""The integer program over the divisions of a chain into v·d stages, v on each of d ranks.

Segments next to each other whose numbers agree form a run, of n_r segments. With q[k,r] of them before stage k, and
d[k,r] = q[k+1,r] - q[k,r] on it, of which a[k,r] are recomputed in full and b[k,r] - a[k,r] selectively:

    minimise T
    T  ≥  Σ counts·seconds(d, a, b)             for each path through the schedule              add_path
    Σ_r q[k+1,r] ≥ Σ_r q[k,r] + 1               no stage is empty                               borders
    c[k,r] = 1 where q[k,r] = n_r;  q[k,r+1] ≤ n_{r+1}·c[k,r]      runs fill one after another  borders
    0 ≤ a ≤ b ≤ d, both filled from the front                                                   recompute
    Σ_k (n_k·flight + states + gradients) + buffers + transients ≤ memory limit   each rank and moment  add_moment
    Σ_k (states + gradients) + update ≤ memory limit            each rank, with nothing in flight       add_emptied

Where kinds of segments take turns (mixers and mixtures, say), each layer would be a run. In fractions that is hardly
tighter than to count the kinds of such a stretch, for a twentieth of the variables. So a run may be all segments of one
kind in a stretch; c is of stretches then. None is ever far ahead of its share of the stretch's n segments:

    low_r ≤ q[k,r] - n_r / n·Σ q[k,·] ≤ high_r                                                  turns

The step's time is the longest path through the actions, so with every path T is exact; with some it is a lower bound,
and so is the dual bound of the solver. What a border costs, or a buffer on it, depends on the run behind it. Bytes are
those of ``rank_memory``, as shares of the limit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.cost.interleaved import SENT_BACK, SENT_FORWARD, splits
from autoplan.search.inter_op.chain_costs import FULL, PART, ChainCosts, Division, Divisions
from autoplan.search.inter_op.rank_memory import BESIDE
from autoplan.solver.arrays import ArrayProgram

EMPTIED = -1  # the number of the moment at which nothing is in flight
SECONDS = ("forward_s", "backward_s", "weights_s", "whole_s", "full_s", "part_s")
BYTES = (
    "parameters", "elsewhere", "untouched", "bucketed", "frozen", "kept", "inputs", "selective", "rebuilt", "constants",
    "working", "gathered", "alone", "message", "unkept", "repeated",
)  # fmt: skip


@dataclass(frozen=True)
class SegmentRuns:
    """The chain as runs of equal segments, in stretches of one run, or of several whose segments take turns.

    before   [runs, N+1]: how many of the first 0, 1, … segments each run has
    stretch  [runs]: the number of its stretch
    """

    before: np.ndarray
    stretch: np.ndarray

    @staticmethod
    def of(costs: ChainCosts, *, turns: bool) -> SegmentRuns:
        """``turns``: in stretches whose segments take turns, else each run in one. In front of the chain's first
        segment lies no border: it is a run of its own."""
        columns = [getattr(costs, name) for name in SECONDS] + [getattr(costs.memory, name) for name in BYTES]
        table = np.stack([*(column.astype(float) for column in columns), *costs.messages_s])[:, 1:]
        kinds = np.append(-1, np.unique(table, axis=1, return_inverse=True)[1].ravel())
        begins = np.append(True, kinds[1:] != kinds[:-1])
        if turns:
            last = len(kinds) - 1 - np.array([np.argmax(kinds[::-1] == kind) for kind in kinds])
            begins[1:] &= np.arange(1, len(kinds)) > np.maximum.accumulate(last)[:-1]
        stretches = np.cumsum(begins) - 1
        _, first, run = np.unique(np.stack([stretches, kinds]), axis=1, return_index=True, return_inverse=True)
        before = np.zeros((len(first), len(kinds) + 1), dtype=int)
        before[run.ravel(), np.arange(1, len(kinds) + 1)] = 1
        return SegmentRuns(before.cumsum(axis=1), stretches[first])

    @property
    def sizes(self) -> np.ndarray:
        return self.before[:, -1]

    @property
    def first(self) -> np.ndarray:
        """[runs]: the first segment of each."""
        return np.argmax(self.before > 0, axis=1) - 1

    @property
    def several(self) -> np.ndarray:
        """[runs]: whether others are in their stretch."""
        return np.bincount(self.stretch)[self.stretch] > 1

    def each(self, over: np.ufunc, values: np.ndarray) -> np.ndarray:
        """[…, stretches] of [..., runs]: the sum or the least over the runs of a stretch."""
        return np.asarray(over.reduceat(values, np.unique(self.stretch, return_index=True)[1], axis=-1))

    def at_borders(self, stages: int) -> tuple[np.ndarray, np.ndarray]:
        """[stages + 1, runs]: how many of a run are in front of each border at least, and at most."""
        size, border = self.before.shape[1] - 1, np.arange(stages + 1)
        least = self.before[:, np.where(border == stages, size, border)].T
        return least, self.before[:, np.where(border == 0, 0, size - (stages - border))].T

    def whole_numbers(self, stages: int) -> int:
        """Of the program, at least: those that are open of ``at_borders``."""
        return int(np.less(*self.at_borders(stages)).sum())

    def ahead(self) -> tuple[np.ndarray, np.ndarray]:
        """[runs]: by how many segments each is ahead of its share, at least and at most."""
        all_ = self.each(np.add, self.before.T).T[self.stretch]
        beyond = self.before - (self.sizes / all_[:, -1])[:, None] * all_
        return beyond.min(axis=1), beyond.max(axis=1)


@dataclass(frozen=True)
class Found:
    """bound_s is proven for all divisions; division is None where the solver has none, and bound_s infinite where none
    is."""

    bound_s: float
    division: Division | None


def column(variables: np.ndarray, factors: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """A term with one variable in each of many rows."""
    return variables[:, None], np.broadcast_to(factors, variables.shape)[:, None]


class PartitionMilp:
    """The program, which grows by paths and moments.

    scale_s  what T is counted in, so that the program's numbers are about 1
    cells    (stage, run) of each of ``a`` and ``b``
    held     (rank, moment) of those in the program
    """

    def __init__(self, costs: ChainCosts, scale_s: float, runs: SegmentRuns | None = None) -> None:
        self.costs, self.scale_s, self.lp = costs, scale_s, ArrayProgram()
        self.runs = runs or SegmentRuns.of(costs, turns=False)
        at = self.runs.first
        self.of = {name: getattr(costs, name)[at] for name in SECONDS}
        self.of |= {name: getattr(costs.memory, name)[at].astype(float) for name in BYTES}
        memory = costs.memory
        self.of["states"] = self.of["parameters"] * memory.state_share - self.of["elsewhere"] * memory.shard_share
        self.of["states"] += self.of["frozen"]
        touched = self.of["parameters"] - self.of["untouched"]
        self.of["updated"] = (touched - self.of["elsewhere"]) * memory.update_share
        shares = memory.gradient_shares[:, None], memory.sharded_gradients[:, None]
        self.gradients = shares[0] * touched - shares[1] * self.of["elsewhere"]
        self.gradients += BESIDE[:, None] * self.of["bucketed"]
        self.tied, elsewhere, frozen = memory.shared_by(costs.ranks)
        self.tied_gradients = shares[0] * self.tied - shares[1] * elsewhere
        self.tied_states = self.tied * memory.state_share - elsewhere * memory.shard_share + frozen
        self.tied_updated = (self.tied - elsewhere) * memory.update_share
        self.step = self.lp.variables(0.0, np.inf)[None]
        self.borders()
        self.cells = self.a, self.b = (np.zeros(0, dtype=int),) * 2
        if costs.recompute == "auto":
            self.recompute()
        self.held: set[tuple[int, int]] = set()
        self.there = np.full(self.longest.shape, -1)
        self.largest: dict[tuple[str, int], np.ndarray] = {}
        self.of_ranks: dict[tuple[str, int], int] = {}

    def borders(self) -> None:
        """q [v·d + 1, runs] and c [v·d + 1, stretches], of the border in front of each stage and behind the last."""
        stages, runs = self.costs.stages, self.runs
        (least, most), whole = runs.at_borders(stages), runs.each(np.add, runs.sizes)
        self.q = self.lp.variables(least, most, whole=True)
        self.longest, self.sure = most[1:] - least[:-1], least[1:] - most[:-1]  # segments of a run that a stage holds
        low, high = runs.each(np.add, least), runs.each(np.add, most)
        single = np.broadcast_to(whole == 1, low.shape)  # c is q itself
        self.c = runs.each(np.add, self.q)
        self.c[~single] = self.lp.variables((low == whole)[~single], (high == whole)[~single], whole=True)
        n, may = np.broadcast_to(whole, low.shape), ~single & (low < high) & (high == whole)
        c, n_may, none = self.c[may], n[may], np.zeros(may.sum())
        self.counted(may, 1.0, self.lp.add(none, column(c, -n_may)))
        self.counted(may, -1.0, self.lp.add(n_may - 1, column(c, 1.0)))
        later = (high[:, 1:] > 0) & (low[:, :-1] < whole[:-1])
        first = self.lp.add(np.zeros(later.sum()), column(self.c[:, :-1][later], n[:, 1:][later]))
        self.counted(np.pad(later, ((0, 0), (1, 0))), -1.0, first)
        self.lp.add(-np.ones(stages), (self.q[1:], 1.0), (self.q[:-1], -1.0))
        self.turns((least < most) & runs.several)

    def counted(self, chosen: np.ndarray, factor: float, first: int) -> None:
        """Adds the segments in front of each chosen border, of a chosen stretch, to its row: one after another."""
        rows = np.full(chosen.shape, -1)
        rows[chosen] = first + np.arange(chosen.sum())
        rows = rows[:, self.runs.stretch]
        self.lp.enter(rows[rows >= 0], self.q[rows >= 0], factor)

    def turns(self, open_: np.ndarray) -> None:
        """Of each run that takes turns with others how far it is ahead of its share in front of a border."""
        k, r = np.nonzero(open_)
        together = self.runs.stretch[:, None] == self.runs.stretch
        share = together * self.runs.sizes[:, None] / (together @ self.runs.sizes)[:, None] - np.eye(len(together))
        for ahead, sign in zip(self.runs.ahead(), (-1.0, 1.0), strict=True):
            self.lp.add(sign * ahead[r], (self.q[k], sign * share[r]))

    def recompute(self) -> None:
        """a and b of each cell: a stage, and a run of which it may hold segments that may be recomputed."""
        k, r = np.nonzero((self.longest > 0) & (self.of["repeated"] > 0))
        self.cells = (k, r)
        most = self.longest[k, r]
        ordered = ~self.runs.several[r]
        goes_on = (k[1:] == k[:-1]) & ordered[1:] & ordered[:-1]  # a cell's next is of the same stage
        before, after = np.append(False, goes_on)[: len(k)], np.append(goes_on, False)[: len(k)]
        first, last, none = self.q[k, r], self.q[k + 1, r], np.zeros(len(k))
        made = []
        for _ in range(2):
            count = self.lp.variables(none, most, whole=True)
            made.append(count)
            self.lp.add(none, column(last, 1.0), column(first, -1.0), column(count, -1.0))
            all_ = np.full(len(k), -1)  # whether all of the cell's segments are recomputed
            all_[after] = self.lp.variables(none[after], 1.0, whole=True)
            self.lp.add(
                most[after], column(all_[after], -most[after]), column(last[after], -1.0), column(first[after], 1.0),
                column(count[after], 1.0),
            )  # fmt: skip
            earlier, both = np.append(-1, all_[:-1])[: len(k)], before & after
            self.lp.add(none[before], column(earlier[before], most[before]), column(count[before], -1.0))
            self.lp.add(none[both], column(earlier[both], 1.0), column(all_[both], -1.0))
        self.a, self.b = made
        self.lp.add(none, column(self.b, 1.0), column(self.a, -1.0))

    def moved(self, values: np.ndarray, stages: Sequence[int] | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """The term Σ values[k,r]·d[k,r] of some stages."""
        numbers = np.stack([self.q[1:][stages], self.q[:-1][stages]])
        return numbers.ravel(), np.stack([values, -values]).ravel()

    def behind(self, values: np.ndarray, borders: Sequence[int] | slice) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
        """(constant, term) of minus the sum over some borders of the value [borders, runs] of the run that begins or
        goes on behind each, or of the least in its stretch."""
        values = -self.runs.each(np.minimum, values)
        steps = np.diff(values, axis=1, append=0.0)
        return float(values[:, 0].sum()), (self.c[borders].ravel(), steps.ravel())

    def add_path(self, counts: np.ndarray) -> None:
        """T ≥ the seconds of a path that runs each stage's actions and messages so often: counts [DURATIONS, v·d]."""
        p, scaled = self.costs, counts / self.scale_s
        k, r = self.cells
        again = np.append(scaled[2 if splits(p.schedule) else 1, :1], scaled[1, 1:])[k]
        messages = (scaled[SENT_FORWARD, 1:] + scaled[SENT_BACK, :-1])[:, None] * p.messages_s[1:, self.runs.first]
        constant, entering = self.behind(messages, slice(1, -1))
        part = self.of["part_s"][r]
        self.lp.add(
            constant, (self.step, 1.0), self.moved(-self.seconds(scaled)), entering,
            (self.a, -again * (self.of["full_s"][r] - part)), (self.b, -again * part),
        )  # fmt: skip

    def seconds(self, counts: np.ndarray) -> np.ndarray:
        """[v·d, runs]: of a segment on each stage, its actions as often as counted."""
        again_s = {FULL: self.of["full_s"], PART: self.of["part_s"]}.get(self.costs.recompute, 0.0)
        backward_s, weights_s = self.of["backward_s"] + again_s * self.of["repeated"], self.of["weights_s"]
        f, b, w = (row[:, None] for row in counts[:3])
        if not splits(self.costs.schedule):
            return np.asarray(f * self.of["forward_s"] + b * backward_s)
        found = f * self.of["forward_s"] + b * (backward_s - weights_s) + w * weights_s
        found[0] = f[0] * self.of["forward_s"] + w[0] * (self.of["whole_s"] + again_s * self.of["repeated"])
        return np.asarray(found)

    def add_moment(self, rank: int, number: int) -> None:
        """A rank's bytes at a moment are within the limit."""
        p, unit, mine = self.costs, 1.0 / self.costs.memory_limit, self.of_rank(rank)
        held, standing = p.interleaved.held[rank][number], p.interleaved.standing[rank][number]
        kept, inputs, part = (self.of[name] for name in ("kept", "inputs", "selective"))
        least = {FULL: inputs, PART: part}.get(p.recompute, kept)
        flight = np.where(self.of["repeated"] > 0, least, kept)
        counts = np.zeros(p.stages)
        counts[mine] = held
        k, r = self.cells
        each = self.of["states"] + self.gradients[standing] + counts[mine, None] * flight
        tied = self.tied_states[rank] + self.tied_gradients[standing, rank].max()
        entered = [k for k in mine if k]
        constant, unkept = self.behind(counts[entered, None] * self.of["unkept"] * unit, entered)
        constants, transients = self.most("constants", p.stages)[mine], np.array(self.transients(mine))
        self.lp.add(
            1.0 + constant + tied * unit, self.moved(-each * unit, mine), unkept,
            (np.array([self.message(mine)]), -float(p.memory.messages)),
            (self.a, counts[k] * (part - inputs)[r] * unit), (self.b, counts[k] * (kept - part)[r] * unit),
            (constants, -np.array(held, dtype=float)), (transients, -1.0),
        )  # fmt: skip

    def add_emptied(self, rank: int) -> None:
        """A rank's bytes with nothing in flight are within the limit."""
        unit, mine = 1.0 / self.costs.memory_limit, self.of_rank(rank)
        standing = self.costs.interleaved.emptied
        stands = self.of["states"] + self.gradients[standing]
        again_too = self.tied_states[rank] + self.tied_gradients[standing, rank].max()
        held, tied = (stands + self.of["updated"], stands), (again_too + self.tied_updated[rank], again_too)
        alone = ((np.zeros(0, dtype=int), 0.0), (self.most("alone", self.costs.ranks)[mine[:1]], -1.0))
        for each, again, beside in zip(held, tied, alone, strict=True):
            self.lp.add(1.0 + again * unit, self.moved(-each * unit, mine), beside)

    def hold(self, most: int) -> None:
        """Puts the fullest moments of all ranks into the program, so many of each, and those with nothing in flight."""
        for rank, moments in enumerate(self.costs.interleaved.held):
            for number in (*range(min(most, len(moments))), EMPTIED):
                self.hold_at(rank, number)

    def hold_exceeded(self, division: Division) -> None:
        """Of each rank that a division overfills, the moment at which it does so most."""
        many = Divisions.of(division)
        excess = self.costs.before_recomputation(many)
        for rank, own in enumerate(excess.moments(many.full.T, many.part.T)[..., 0]):
            if own.max() > 0:
                self.hold_at(rank, int(own.argmax()))
            if excess.emptied[rank, 0] > 0:
                self.hold_at(rank, EMPTIED)

    def hold_at(self, rank: int, number: int) -> None:
        if (rank, number) in self.held:
            return
        self.held.add((rank, number))
        if number == EMPTIED:
            self.add_emptied(rank)
        else:
            self.add_moment(rank, number)

    def of_rank(self, rank: int) -> list[int]:
        return list(range(rank, self.costs.stages, self.costs.ranks))

    def message(self, mine: Sequence[int]) -> int:
        """The variable of a rank's largest message, as a share of the limit."""
        if (key := ("message", mine[0])) not in self.of_ranks:
            values = self.runs.each(np.minimum, self.of["message"] / self.costs.memory_limit)
            self.of_ranks[key] = made = int(self.lp.variables(float(values[1:].min(initial=0.0)), np.inf))
            borders = np.array(sorted({*mine, *(k + 1 for k in mine)} - {0, self.costs.stages}))
            steps = np.broadcast_to(-np.diff(values, append=0.0), (len(borders), len(values)))
            self.lp.add(np.full(len(borders), -values[0]), (self.c[borders], steps), column(borders * 0 + made, 1.0))
        return self.of_ranks[key]

    def transients(self, mine: Sequence[int]) -> list[int]:
        """The variables of a rank's largest transients."""
        again = {FULL: "kept", PART: "rebuilt"}.get(self.costs.recompute)
        beside = ("working", "gathered", *([again] if again else []))
        found = [int(self.most(name, self.costs.ranks)[mine[0]]) for name in beside]
        if self.costs.recompute == "auto":
            found.append(self.rebuilt(mine))
        return found

    def rebuilt(self, mine: Sequence[int]) -> int:
        """The largest segment of a rank that runs again: at least kept[r] where one does in full, rebuilt[r] where one
        does selectively, as a share of the limit."""
        key = ("again", mine[0])
        if key in self.of_ranks:
            return self.of_ranks[key]
        self.of_ranks[key] = made = int(self.lp.variables(0.0, np.inf))
        on_rank = np.isin(self.cells[0], mine)
        for run in np.unique(self.cells[1][on_rank]).tolist():
            cells = on_rank & (self.cells[1] == run)
            room = float(self.longest[mine, run].sum())
            for name, lower in (("kept", 0.0), ("rebuilt", 1.0)):
                some = self.lp.variables(0.0, 1.0, whole=True)
                upper = self.b if lower else self.a
                self.lp.add(0.0, (some[None], room), (upper[cells], -1.0), (self.a[cells], lower))
                self.lp.add(0.0, (np.array([made]), 1.0), (some[None], -self.of[name][run] / self.costs.memory_limit))
        return made

    def most(self, name: str, ways: int) -> np.ndarray:
        """[ways] variables: of all stages k mod ``ways`` the largest value of the runs that they hold, as a share of
        the limit; of what runs again, of those that may."""
        if (key := (name, ways)) not in self.largest:
            values = self.of[name] / self.costs.memory_limit
            if name in ("kept", "rebuilt"):
                values = values * self.of["repeated"]
            stage, run = np.nonzero(self.longest > 0)
            sure, surely = np.zeros(ways), (self.sure[stage, run] >= 1) | (self.costs.stages == 1)
            np.maximum.at(sure, stage[surely] % ways, values[run[surely]])
            self.largest[key] = made = self.lp.variables(sure, np.inf)
            more = values[run] > sure[stage % ways]
            stage, run = stage[more], run[more]
            there = self.are_there(stage, run)
            self.lp.add(np.zeros(len(run)), column(made[stage % ways], 1.0), column(there, -values[run]))
        return self.largest[key]

    def are_there(self, stage: np.ndarray, run: np.ndarray) -> np.ndarray:
        """The variables that are 1 where a stage holds a segment of a run."""
        at, of = (places[self.there[stage, run] < 0] for places in (stage, run))
        none = np.zeros(len(at))
        self.there[at, of] = some = self.lp.variables(none, 1.0, whole=True)
        first, last = self.q[at, of], self.q[at + 1, of]
        self.lp.add(none, column(some, self.longest[at, of]), column(last, -1.0), column(first, 1.0))
        return np.asarray(self.there[stage, run])

    def solve(self, gap: float = 0.0, *, relaxed: bool = False) -> Found:
        """The best divisions for the paths and moments there are; ``relaxed``: in fractions of segments, and then the
        nearest whole ones."""
        found = self.lp.solve(relaxed=relaxed, gap=gap)
        return Found(found.bound * self.scale_s, None if found.values is None else self.division(found.values))

    def division(self, values: np.ndarray) -> Division:
        """The solution as whole numbers."""
        p = self.costs
        ends = values[self.q].sum(axis=1).round().astype(int).tolist()
        for stage in range(1, p.stages):  # what was a fraction may have left a stage empty
            ends[stage] = min(max(ends[stage], ends[stage - 1] + 1), len(p) - (p.stages - stage))
        stages = tuple(itertools.pairwise(ends))
        if p.recompute != "auto":
            return p.pinned(stages)
        counts = np.array(p.counts(stages))
        full, both = (np.bincount(self.cells[0], values[n], p.stages).round().astype(int) for n in (self.a, self.b))
        full = np.minimum(full, counts)
        part = np.maximum(np.minimum(both, counts) - full, 0)
        return Division(stages, tuple(full.tolist()), tuple(part.tolist()))
