"""The operator problem as an integer program in arrays: each equation of ``problem`` by the function that it names.

The variables stand in the order: x, the options of every group; then for each tensor what is paid, its flows where it
has several consumers, and the layouts in which it is kept; W last, where memory is limited. The first are 0 or 1, the
others follow from them.

Where several axes are searched a tensor has hundreds of arcs, and a row for each of them and each consumer, f ≤ y, is
most of the program. There up to three consumers are served as a tree is grown (Dreyfus and Wagner 1971): h[t,C,a] flows
along arc a to all consumers of a set C, and at a layout it may part into flows to two halves of C. Each flow is paid,
so there are no such rows:

    given(t,l) + Σ_{a into l} h[t,C,a] = Σ_{a from l} h[t,C,a] + what parts at l         C: all consumers   together
    what parts off for C at l + Σ_{a into l} h[t,C,a] = Σ_{a from l} h[t,C,a] + what parts at l    C: fewer
    what parts off for c at l + Σ_{a into l} h[t,c,a] = Σ_{a from l} h[t,c,a] + taken(t,c,l)       c: one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.ir.layout import Layout, P, R
from autoplan.redistribution.steiner_tree import proper_halves
from autoplan.rules.strategies import Strategy
from autoplan.search.intra_op.problem import Problem, Tensor
from autoplan.solver.arrays import ArrayProgram
from autoplan.solver.integer_program import Program

MANY_ARCS = 100  # of a tensor, from which on its consumers are served together
TOGETHER = 3  # consumers at most that are: each further one doubles the sets of them


@dataclass(frozen=True)
class Weights:
    """Seconds that a byte is worth, for parameters' states and for what is kept for the backward."""

    state: float = 0.0
    kept: float = 0.0


NO_WEIGHT = Weights()
"""Bytes cost nothing: the fastest operators."""


@dataclass(frozen=True)
class HeldBytes:
    """Bytes on a device for each byte of parameters, and for each that is kept of one microbatch."""

    state: float
    kept: float


@dataclass(frozen=True)
class Memory:
    """What a memory limit counts.

    working  of each group, bytes that stand for a moment with each of its options; [0] of groups that need none
    """

    held: HeldBytes
    working: Sequence[np.ndarray]


@dataclass(frozen=True)
class Milp:
    """A problem's program, and the parts of its costs.

    first  [groups + 1] where each group's options begin among the variables
    time_s, state_bytes, kept_bytes  [variables] of which the objective is the weighted sum
    summands  [variables] values that an option takes as summands, and gradients that it is given so, beyond the fewest
              of its operator
    unit   bytes in one unit of the program's limited row
    """

    program: Program
    first: np.ndarray
    time_s: np.ndarray
    state_bytes: np.ndarray
    kept_bytes: np.ndarray
    summands: np.ndarray
    unit: float = 1.0

    def cost(self, weights: Weights) -> np.ndarray:
        """Σ x (time + w_state·state + w_act·kept) + Σ y·arc + w_act Σ z·kept."""
        return self.time_s + weights.state * self.state_bytes + weights.kept * self.kept_bytes

    def held(self, held: HeldBytes) -> np.ndarray:
        """[variables] the bytes that each adds to the limited row."""
        found = held.state * self.state_bytes + held.kept * self.kept_bytes
        found[-1] = self.unit
        return found


def milp(problem: Problem, memory: Memory | None = None) -> Milp:
    """The arrays of a problem.

    memory  what a limit of memory counts, in the last row, which has no limit yet; None: there is no such row
    """
    return _Builder(problem).build(memory)


class _Builder:
    def __init__(self, problem: Problem) -> None:
        self.problem, self.arrays = problem, ArrayProgram()
        sizes = [len(group.options) for group in problem.groups]
        self.first = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        self.arrays.variables(np.zeros(self.first[-1]), 1.0, whole=True)
        self.time_s = [group.time_s for group in problem.groups]
        self.state = [group.state_bytes for group in problem.groups]
        self.kept = [group.kept_bytes for group in problem.groups]

    def build(self, memory: Memory | None) -> Milp:
        self.choose_one()
        for tensor in self.problem.tensors:
            self.keep(tensor, self.flow(tensor), again=memory is None)
        unit = 1.0 if memory is None else self.hold(memory)
        time_s, state, kept = (np.concatenate(parts) for parts in (self.time_s, self.state, self.kept))
        program, summands = self.arrays.program(limited=memory is not None, flows=True), np.zeros(len(time_s))
        counts = [np.array([summands_of(option) for option in group.options]) for group in self.problem.groups]
        summands[: self.first[-1]] = np.concatenate([own - own.min() for own in counts])
        return Milp(program, self.first, time_s, state, kept, summands, unit)

    def variables(self, time_s: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """The numbers of new ones."""
        self.time_s.append(time_s)
        self.state.append(np.zeros(len(time_s)))
        self.kept.append(kept)
        return self.arrays.variables(np.zeros(len(time_s)), np.inf)

    def options(self, group: int) -> np.ndarray:
        return np.arange(self.first[group], self.first[group + 1])

    def choose_one(self) -> None:
        """Σ_o x[g,o] = 1 for every group."""
        count = len(self.problem.groups)
        row = self.arrays.add_rows(count, 1.0, 1.0)
        self.arrays.enter(row + np.repeat(np.arange(count), np.diff(self.first)), np.arange(self.first[-1]), 1.0)

    def flow(self, tensor: Tensor) -> Sequence[Sequence[np.ndarray]]:
        """The flow from the producer to each consumer, its arcs paid once: variables of arcs whose sum is what is paid,
        and, where they are others, those whose sum are the flows."""
        sinks, zeros = distinct_sinks(tensor), np.zeros(len(tensor.arcs))
        if 1 < len(sinks) <= TOGETHER and len(tensor.arcs) >= MANY_ARCS:
            return [self.together(tensor, sinks)]
        paid = self.variables(tensor.arc_s, zeros)
        if len(sinks) == 1:
            self.conserve(tensor, sinks[0], paid)
            return [[paid]]
        flows = [self.variables(zeros, zeros) for _ in sinks]
        for sink, flow in zip(sinks, flows, strict=True):
            self.conserve(tensor, sink, flow)
            self.share(flow, [paid])
        return [[paid], flows]

    def together(self, tensor: Tensor, sinks: Sequence[tuple[int, np.ndarray]]) -> list[np.ndarray]:
        """h[t,C,a] of each set C of consumers; a set is a number, of which each consumer is a bit."""
        all_, layouts = (1 << len(sinks)) - 1, np.arange(len(tensor.layouts))
        rows = {some: self.arrays.add_rows(len(layouts), 0.0, 0.0) for some in range(1, all_ + 1)}
        flows = {some: self.variables(tensor.arc_s, np.zeros(len(tensor.arcs))) for some in rows}
        for some, row in rows.items():
            self.arrays.enter(row + tensor.arcs[:, 1], flows[some], 1.0)
            self.arrays.enter(row + tensor.arcs[:, 0], flows[some], -1.0)
            for half in proper_halves(some):
                parted = self.variables(np.zeros(len(layouts)), np.zeros(len(layouts)))
                self.arrays.enter(row + layouts, parted, -1.0)
                self.arrays.enter(rows[half] + layouts, parted, 1.0)
                self.arrays.enter(rows[some ^ half] + layouts, parted, 1.0)
        self.arrays.enter(rows[all_] + tensor.given, self.options(tensor.source), 1.0)
        for number, (group, taken) in enumerate(sinks):
            self.arrays.enter(rows[1 << number] + taken, self.options(group), -1.0)
        return list(flows.values())

    def conserve(self, tensor: Tensor, sink: tuple[int, np.ndarray], flow: np.ndarray) -> None:
        """given(t,l) + Σ_{a into l} f[t,c,a] = taken(t,c,l) + Σ_{a from l} f[t,c,a], for every l."""
        group, taken = sink
        row = self.arrays.add_rows(len(tensor.layouts), 0.0, 0.0)
        self.arrays.enter(row + tensor.given, self.options(tensor.source), 1.0)
        self.arrays.enter(row + taken, self.options(group), -1.0)
        self.arrays.enter(row + tensor.arcs[:, 1], flow, 1.0)
        self.arrays.enter(row + tensor.arcs[:, 0], flow, -1.0)

    def share(self, flow: np.ndarray, paid: Sequence[np.ndarray]) -> None:
        """f[t,c,a] ≤ y[t,a], for every a; y may be a sum."""
        rows = self.arrays.add_rows(len(flow), -np.inf, 0.0) + np.arange(len(flow))
        self.arrays.enter(rows, flow, 1.0)
        for part in paid:
            self.arrays.enter(rows, part, -1.0)

    def keep(self, tensor: Tensor, moved: Sequence[Sequence[np.ndarray]], *, again: bool) -> None:
        """z[t,l] + Σ_{a into l} r[t,a] ≥ Σ_{o keeps t in l} x[g,o], for every keeper g and every l; less given(t,l)
        where t is a view of what is kept.

        moved  as of ``flow``
        again  something may be gathered again: nothing may where memory has a row, since nothing is recomputed there
        """
        used = [np.unique(places[places >= 0]) for _, places in tensor.keepers]
        layouts = np.unique(np.concatenate(used)) if used else np.zeros(0, dtype=int)
        if not len(layouts):
            return
        kept = self.variables(np.zeros(len(layouts)), tensor.kept_bytes[layouts])
        parts = self.gather_again(tensor, layouts, moved) if again else []
        for (group, places), mine in zip(tensor.keepers, used, strict=True):
            row, keeps = self.arrays.add_rows(len(mine), -np.inf, 0.0), places >= 0
            self.arrays.enter(row + np.searchsorted(mine, places[keeps]), self.options(group)[keeps], 1.0)
            self.arrays.enter(row + np.arange(len(mine)), kept[np.searchsorted(layouts, mine)], -1.0)
            for place, layout in enumerate(mine.tolist() if tensor.stands is not None else []):
                given = self.options(tensor.source)[tensor.stands == layout]
                self.arrays.enter(row + np.full(len(given), place), given, -1.0)
            for layout, part in parts:
                if layout in mine:
                    self.arrays.enter(row + np.searchsorted(mine, [layout]), part, -1.0)

    def gather_again(
        self, tensor: Tensor, layouts: np.ndarray, moved: Sequence[Sequence[np.ndarray]]
    ) -> list[tuple[int, np.ndarray]]:
        """r[t,a] of the gathers into these layouts: r[t,a] ≤ y[t,a] and r[t,a] ≤ Σ_c f[t,c,a], so that it is paid and
        comes from what there is; Σ_{a into l} y[t,a] + given(t,l) ≤ 1, so that l isn't there otherwise."""
        found = []
        for layout in layouts.tolist():
            arcs = np.array(tensor.gathered(layout), dtype=int)
            if not arcs.size:
                continue
            parts = self.variables(tensor.again_s[arcs], tensor.kept_bytes[tensor.arcs[arcs, 0]])
            for flows in moved:
                self.share(parts, [flow[arcs] for flow in flows])
            row = self.arrays.add_rows(1, -np.inf, 1.0)
            for paid in moved[0]:
                self.arrays.enter(row, paid[tensor.arcs[:, 1] == layout], 1.0)
            self.arrays.enter(row, self.options(tensor.source)[tensor.given == layout], 1.0)
            found += [(layout, parts[[place]]) for place in range(len(arcs))]
        return found

    def hold(self, memory: Memory) -> float:
        """W ≥ Σ_o x[g,o]·working[g,o] for every group g; a·Σ x·state + n·(Σ x·kept + Σ z·kept) + W ≤ limit.

        Gives the bytes of the rows' unit: of their largest entry, so that solvers see numbers of about one.
        """
        held = memory.held.state * np.concatenate(self.state) + memory.held.kept * np.concatenate(self.kept)
        unit = float(max(1.0, held.max(initial=0.0), *(sizes.max(initial=0.0) for sizes in memory.working)))
        working = self.variables(np.zeros(1), np.zeros(1))
        for group, sizes in enumerate(memory.working):
            if sizes.any():
                row = self.arrays.add_rows(1, -np.inf, 0.0)
                self.arrays.enter(row, self.options(group), sizes / unit)
                self.arrays.enter(row, working, -1.0)
        row = self.arrays.add_rows(1, -np.inf, np.inf)
        self.arrays.enter(row, np.arange(len(held)), held / unit)
        self.arrays.enter(row, working, 1.0)
        return unit


def summands_of(option: Strategy | Layout) -> int:
    """Of an operator's strategy: operands that are summands (P), and results whose gradients are (R), on all axes. What
    all of an operator's have means nothing: an axis of one member, the batch's, a result without a gradient."""
    if not isinstance(option, Strategy):
        return 0
    return sum(way.inputs.count(P) + (way.output == R) for _, way in option.axes)


def distinct_sinks(tensor: Tensor) -> list[tuple[int, np.ndarray]]:
    """The consumers without those that take the same as another in every case."""
    found: dict[tuple[int, bytes], tuple[int, np.ndarray]] = {}
    for group, taken in tensor.sinks:
        found.setdefault((group, taken.tobytes()), (group, taken))
    return list(found.values())
