"""The operator problem as a linear program in arrays: each equation of ``problem`` by the function that it names.

The variables stand in the order: x, the options of every group; then for each tensor what is paid, its flows where it
has several consumers, and the layouts in which it is kept. The first are 0 or 1, the others follow from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoplan.search.intra_op.problem import Problem, Tensor
from autoplan.solver.program import Program


def program(problem: Problem) -> Program:
    """The arrays of a problem."""
    return _Builder(problem).build()


def held_jointly(found: Program, working: Sequence[np.ndarray], state: float, kept: float) -> Program:
    """The same with one row of all bytes together, not limited yet, state·Σ x·state + kept·(Σ x·kept + Σ z·kept) + W,
    and a variable W, the last: W ≥ Σ_o x[g,o]·working[g,o] for every group g.

    working  of each group, bytes that stand for a moment with each of its options
    """
    standing = [index for index, sizes in enumerate(working) if sizes.any()]
    held, last = state * found.state_bytes + kept * found.kept_bytes, found.variables
    unit = float(max([1.0, held.max(initial=0.0), *(working[index].max() for index in standing)]))
    places = [found.first[index] + np.flatnonzero(working[index]) for index in standing] + [np.flatnonzero(held)]
    sizes = [working[index][working[index] != 0] for index in standing] + [held[places[-1]]]
    signs = [-1.0] * len(standing) + [1.0]
    ends = found.starts[-1] + np.cumsum([len(place) + 1 for place in places])
    nothing, rows = np.zeros(1), len(places)
    return replace(
        found,
        time_s=np.append(found.time_s, nothing),
        state_bytes=np.append(found.state_bytes, nothing),
        kept_bytes=np.append(found.kept_bytes, nothing),
        starts=np.append(found.starts, ends),
        columns=np.concatenate([found.columns, *(np.append(place, last) for place in places)]),
        factors=np.concatenate([found.factors, *(np.append(s / unit, f) for s, f in zip(sizes, signs, strict=True))]),
        least=np.append(found.least, np.full(rows, -np.inf)),
        most=np.append(found.most, [*np.zeros(rows - 1), np.inf]),
        units=(unit,),
    )


@dataclass
class _Entries:
    """A matrix under construction; entries in one place add up."""

    rows: list[np.ndarray] = field(default_factory=list)
    columns: list[np.ndarray] = field(default_factory=list)
    factors: list[np.ndarray] = field(default_factory=list)

    def add(self, rows: np.ndarray, columns: np.ndarray, factor: float) -> None:
        self.rows.append(rows)
        self.columns.append(columns)
        self.factors.append(np.full(len(rows), factor))

    def compressed(self, variables: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(starts, columns, factors) of the rows that have entries, and the numbers of these rows."""
        keys = np.concatenate(self.rows) * variables + np.concatenate(self.columns)
        places, which = np.unique(keys, return_inverse=True)
        factors = np.bincount(which, np.concatenate(self.factors))
        places, factors = places[factors != 0], factors[factors != 0]
        rows, starts = np.unique(places // variables, return_index=True)
        return np.append(starts, len(places)), places % variables, factors, rows


class _Builder:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        sizes = [len(group.options) for group in problem.groups]
        self.first = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        self.entries = _Entries()
        self.bounds: list[tuple[np.ndarray, np.ndarray]] = []
        self.rows, self.variables = 0, int(self.first[-1])
        zeros = np.zeros(0)
        self.time_s = [zeros, *(group.time_s for group in problem.groups)]
        self.state = [zeros, *(group.state_bytes for group in problem.groups)]
        self.kept = [zeros, *(group.kept_bytes for group in problem.groups)]

    def build(self) -> Program:
        self.choose_one()
        for tensor in self.problem.tensors:
            self.flow(tensor)
            self.keep(tensor)
        starts, columns, factors, rows = self.entries.compressed(self.variables)
        least, most = (np.concatenate(side)[rows] for side in zip(*self.bounds, strict=True))
        seconds, state, kept = (np.concatenate(parts) for parts in (self.time_s, self.state, self.kept))
        return Program(self.first, seconds, state, kept, starts, columns, factors, least, most)

    def add_variables(self, time_s: np.ndarray, kept: np.ndarray) -> int:
        """The number of the first."""
        self.time_s.append(time_s)
        self.state.append(np.zeros(len(time_s)))
        self.kept.append(kept)
        self.variables += len(time_s)
        return self.variables - len(time_s)

    def add_rows(self, count: int, least: float, most: float) -> int:
        self.bounds.append((np.full(count, least), np.full(count, most)))
        self.rows += count
        return self.rows - count

    def options(self, group: int) -> np.ndarray:
        return np.arange(self.first[group], self.first[group + 1])

    def choose_one(self) -> None:
        """Σ_o x[g,o] = 1 for every group."""
        count = len(self.problem.groups)
        row = self.add_rows(count, 1.0, 1.0)
        self.entries.add(row + np.repeat(np.arange(count), np.diff(self.first)), np.arange(self.first[-1]), 1.0)

    def flow(self, tensor: Tensor) -> None:
        """The flow from the producer to each consumer, its arcs paid once."""
        sinks, zeros = distinct_sinks(tensor), np.zeros(len(tensor.arcs))
        paid = self.add_variables(tensor.arc_s, zeros)
        if len(sinks) == 1:
            self.conserve(tensor, sinks[0], paid)
            return
        for sink in sinks:
            flow = self.add_variables(zeros, zeros)
            self.conserve(tensor, sink, flow)
            self.share(len(zeros), flow, paid)

    def conserve(self, tensor: Tensor, sink: tuple[int, np.ndarray], flow: int) -> None:
        """given(t,l) + Σ_{a into l} f[t,c,a] = taken(t,c,l) + Σ_{a from l} f[t,c,a], for every l."""
        group, taken = sink
        row, arcs = self.add_rows(len(tensor.layouts), 0.0, 0.0), flow + np.arange(len(tensor.arcs))
        self.entries.add(row + tensor.given, self.options(tensor.source), 1.0)
        self.entries.add(row + taken, self.options(group), -1.0)
        if len(arcs):
            self.entries.add(row + tensor.arcs[:, 1], arcs, 1.0)
            self.entries.add(row + tensor.arcs[:, 0], arcs, -1.0)

    def share(self, count: int, flow: int, paid: int) -> None:
        """f[t,c,a] ≤ y[t,a], for every a."""
        each = np.arange(count)
        row = self.add_rows(count, -np.inf, 0.0)
        self.entries.add(row + each, flow + each, 1.0)
        self.entries.add(row + each, paid + each, -1.0)

    def keep(self, tensor: Tensor) -> None:
        """z[t,l] ≥ Σ_{o keeps t in l} x[g,o], for every keeper g and every l."""
        used = [np.unique(places[places >= 0]) for _, places in tensor.keepers]
        layouts = np.unique(np.concatenate(used)) if used else np.zeros(0, dtype=int)
        if not len(layouts):
            return
        kept = self.add_variables(np.zeros(len(layouts)), tensor.kept_bytes[layouts])
        for (group, places), mine in zip(tensor.keepers, used, strict=True):
            row, keeps = self.add_rows(len(mine), -np.inf, 0.0), places >= 0
            self.entries.add(row + np.searchsorted(mine, places[keeps]), self.options(group)[keeps], 1.0)
            self.entries.add(row + np.arange(len(mine)), kept + np.searchsorted(layouts, mine), -1.0)


def distinct_sinks(tensor: Tensor) -> list[tuple[int, np.ndarray]]:
    """The consumers without those that take the same as another in every case."""
    found: dict[tuple[int, bytes], tuple[int, np.ndarray]] = {}
    for group, taken in tensor.sinks:
        found.setdefault((group, taken.tobytes()), (group, taken))
    return list(found.values())
