"""The layouts through which a redistribution may pass, and the steps between them, priced forward and backward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoplan.layout import PAVG, PMAX, I, Layout, P, R, S, State
from autoplan.mesh import Axis, Mesh
from autoplan.redistribute.apply import (
    Tensor,
    changed,
    exchange_op,
    held_elements,
    permutable,
    spec_between,
    write,
)
from autoplan.redistribute.boxes import Dims
from autoplan.redistribute.direct import write_exchange
from autoplan.redistribute.factors import joined
from autoplan.redistribute.links import Links
from autoplan.redistribute.steps import EXCHANGES, STAYS, find_step, letter
from autoplan.redistribute.traffic import Traffic
from autoplan.typed import Collective

TOGETHER = 3  # axes that one step moves at once, at most; an exchange moves any number
PLAIN = frozenset(["all_reduce", "all_reduce_to_replicate", "all_reduce_max", "permute"])


@dataclass(frozen=True)
class Arc:
    """A step from one layout of a space to another.

    target      number of the layout that it leads to
    seconds     forward and backward together
    peak_bytes  of the busiest rank while it runs: operand, result and the buffers that are sent and received
    op, axes, dims   the step (typed.Collective), its axes by prime factors where the space has them
    """

    target: int
    seconds: float
    peak_bytes: int
    op: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]


class Space:
    """All ordered layouts of a tensor over some axes.

    tensor  its shape is that of the part which these axes split
    axes    those that may move
    beside  the states in which each may be where it splits no dim
    """

    def __init__(self, tensor: Tensor, axes: Sequence[Axis], beside: Mapping[str, tuple[State, ...]], links: Links):
        self.tensor, self.axes, self.links = tensor, tuple(axes), links
        self.mesh = Mesh(self.axes)
        self.even = {axis.name: axis for axis in axes}
        self.layouts = tuple(enumerate_layouts(len(tensor.shape), [a.name for a in axes], beside))
        self.number = {layout: number for number, layout in enumerate(self.layouts)}
        self.held = [held_elements(x, tensor.shape, self.mesh) * tensor.itemsize for x in self.layouts]
        self.held_bytes, self.everywhere = np.array(self.held), np.arange(len(self.layouts))
        self.beside = beside
        self.traffic = Traffic(tensor.shape, tensor.itemsize, axes, links)
        self.placements = tuple(dict.fromkeys(layout.dims for layout in self.layouts))
        place = {dims: number for number, dims in enumerate(self.placements)}
        self.place = np.array([place[layout.dims] for layout in self.layouts])
        self.boxes = np.stack([self.traffic.boxes(dims) for dims in self.placements])
        self._arcs: dict[int, tuple[Arc, ...]] = {}
        self._sent: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._exchanges: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._bounds: dict[int, np.ndarray] = {}
        self._figures: dict[int, tuple[tuple[Arc, ...], np.ndarray, np.ndarray, np.ndarray]] = {}
        self._written: dict[tuple[int, int, str], Collective] = {}
        self.splits = [
            [_even_dims(size, dims, self.mesh) for size, dims in zip(tensor.shape, x.dims, strict=True)]
            for x in self.layouts
        ]

    # single steps

    def arcs(self, here: int) -> tuple[Arc, ...]:
        """Every step from a layout but the exchanges, in a fixed order."""
        if here not in self._arcs:
            self._arcs[here] = (*self._standard(here), *self._permutes(here))
        return self._arcs[here]

    def arc_figures(self, here: int) -> tuple[tuple[Arc, ...], np.ndarray, np.ndarray, np.ndarray]:
        """``arcs`` with their targets, seconds and peak bytes as arrays."""
        if here not in self._figures:
            arcs = self.arcs(here)
            targets = np.array([arc.target for arc in arcs], np.int64)
            seconds, peaks = (np.array([getattr(arc, name) for arc in arcs]) for name in ("seconds", "peak_bytes"))
            self._figures[here] = (arcs, targets, seconds, peaks)
        return self._figures[here]

    def _standard(self, here: int) -> Iterator[Arc]:
        layout = self.layouts[here]
        for dim, split in enumerate(layout.dims):
            for first in range(len(split)):
                if self.splits[here][dim]:
                    yield from self._leaving(here, S(dim), split[first:])
        by_state: dict[State, list[str]] = {}
        for axis, state in layout.rest:
            by_state.setdefault(state, []).append(axis)
        for state, axes in by_state.items():
            together = min(TOGETHER, len(axes))
            for count in range(1, together + 1):
                for group in itertools.permutations(axes, count):
                    yield from self._leaving(here, state, group)

    def _leaving(self, here: int, state: State, axes: tuple[str, ...]) -> Iterator[Arc]:
        """Every step that takes these axes from one state to another."""
        layout, ordered = self.layouts[here], list(axes) == sorted(axes, key=list(self.even).index)
        for there in (*(S(d) for d in range(layout.rank)), R, I, P, PAVG, PMAX):
            step = find_step(state, there, self.tensor.carries) if there != state else None
            if step is None or (there.kind != "S" and state.kind != "S" and not ordered):
                continue
            if there.kind != "S" and not all(there in self.beside[axis] for axis in axes):
                continue
            after = self.number[changed(layout, axes, there, self.mesh)]
            if there.kind == "S" and not self.splits[after][there.dim]:
                continue
            dims = tuple(s.dim for s in (state, there) if s.kind == "S")
            size = max(self.held[here], self.held[after])
            group = [self.even[axis] for axis in axes]
            seconds = sum(
                self.links.collective_s(kind, size, group)
                for kind in (step.forward, step.backward if self.tensor.carries else "")
                if kind
            )
            yield Arc(after, seconds, self._peak(here, after, step.op, dims), step.op, axes, dims)

    def _peak(self, here: int, after: int, op: str, dims: tuple[int, ...]) -> int:
        """Bytes on a rank while a standard step runs: gathers and scatters along another dim than the first, and
        all-to-alls, are packed into buffers (runtime.collectives)."""
        before, result = self.held[here], self.held[after]
        if op in STAYS:
            return before
        packed = {"all_to_all": 2 * before}.get(op, 0)
        if dims and dims[0] != 0 and op in ("all_gather", "all_gather_invariant", "reduce_scatter"):
            packed = max(before, result)
        return before + result + packed

    def _permutes(self, here: int) -> Iterator[Arc]:
        layout = self.layouts[here]
        for there, target in enumerate(self.layouts):
            if self.held[there] != self.held[here] or layout.dims == target.dims:
                continue
            if permutable(layout, target, self.tensor.shape, self.mesh):
                seconds = self.traffic.permute_s(layout.dims, target.dims, self.held[here])
                passes = 2 if self.tensor.carries else 1
                axes, _, _ = spec_between(layout, target, self.tensor.shape, self.mesh)
                yield Arc(there, passes * seconds, 2 * self.held[here], "permute", axes, ())

    # exchanges

    def exchanges(self, here: int) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, peak bytes) of the exchange from a layout to each, infinite where there is none."""
        if here not in self._exchanges:
            self._exchanges[here] = self._exchange_row(here)
        return self._exchanges[here]

    def _exchange_row(self, here: int) -> tuple[np.ndarray, np.ndarray]:
        seconds, peaks = np.full(len(self.layouts), np.inf), np.zeros(len(self.layouts))
        source, left = dict(self.layouts[here].rest), self.place[here]
        for there, target in enumerate(self.layouts):
            op = exchange_op(source, dict(target.rest), self.tensor.carries) if there != here else None
            if op is None or self.layouts[here].dims == target.dims:
                continue
            toward = back = (left, self.place[there])
            if op != "exchange":
                back = (self.place[there], left)
            forward, backward = (back, toward) if op == "exchange_sum" else (toward, back)
            forward_s, moved = (found[forward[1]] for found in self._fetch(forward[0]))
            backward_s = self._fetch(backward[0])[0][backward[1]] if self.tensor.carries else 0.0
            seconds[there] = forward_s + backward_s
            peaks[there] = self.held[here] + self.held[there] + 2 * moved
        return seconds, peaks

    def exchange(self, here: int, there: int) -> Arc:
        """The exchange from one layout to another, where there is one."""
        seconds, peaks = self.exchanges(here)
        op = exchange_op(dict(self.layouts[here].rest), dict(self.layouts[there].rest), self.tensor.carries)
        assert op is not None
        return Arc(there, float(seconds[there]), int(peaks[there]), op, (), ())

    def _fetch(self, before: int) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, bytes) for the busiest member of fetching from a placement what each other one wants."""
        if before not in self._sent:
            self._sent[before] = self.traffic.busiest(self.traffic.sent(self.placements[before], self.boxes))
        return self._sent[before]

    def bounds(self, there: int) -> np.ndarray:
        """Seconds below which no sequence of steps leads from each layout to this one: what a member lacks, at the rate
        of the fastest link. 0 from where summands would be made, which the ranks other than the first hold as zeros."""
        if there not in self._bounds:
            goal = self.layouts[there]
            wanted = self.boxes[self.place[there]][None]
            lacking = np.array([self.traffic.lacking(dims, wanted)[0] for dims in self.placements])
            seconds = (lacking / self.links.fastest_bytes_per_s(self.axes))[self.place]
            made = {axis for axis, state in goal.rest if state.kind == "P"}
            made_here = [bool(made - {a for a, s in x.rest if s.kind == "P"}) for x in self.layouts]
            self._bounds[there] = np.where(made_here, 0.0, seconds)
        return self._bounds[there]

    # writing

    def collective(self, here: int, arc: Arc, mesh: Mesh) -> Collective:
        """The step of an arc as it is written down, by the axes of the whole mesh."""
        if arc.op in EXCHANGES:
            key = (here, arc.target, arc.op)
            if key not in self._written:
                ends = (self.layouts[here], self.layouts[arc.target])
                self._written[key] = write_exchange(*ends, arc.op, self.tensor, mesh)
            return self._written[key]
        layout, target = self.layouts[here], self.layouts[arc.target]
        state = layout.state(arc.axes[0])
        step = find_step(state, target.state(arc.axes[0]), self.tensor.carries)
        assert step is not None and step.op == arc.op, (layout, arc)
        held = (self.held[here], self.held[arc.target])
        return write(step, joined(arc.axes, mesh), arc.dims, held, self.tensor.carries)


def _even_dims(size: int, axes: Iterable[str], mesh: Mesh) -> bool:
    ways = math.prod(mesh.size(axis) for axis in axes)
    return size % ways == 0


def enumerate_layouts(rank: int, axes: Sequence[str], beside: Mapping[str, tuple[State, ...]]) -> Iterator[Layout]:
    """All of them: each axis beside the dims in one of its states, or on a dim, in every order."""
    for count in range(len(axes) + 1):
        for split in itertools.combinations(axes, count):
            left = [axis for axis in axes if axis not in split]
            rests = [tuple(zip(left, states, strict=True)) for states in itertools.product(*(beside[a] for a in left))]
            for dims in arrangements(rank, split):
                yield from (Layout(dims, rest) for rest in rests)


def arrangements(rank: int, axes: Sequence[str]) -> Iterator[Dims]:
    """Every way to put all these axes on the dims of a tensor, in every order."""
    for order in itertools.permutations(axes):
        for cuts in itertools.combinations_with_replacement(range(len(axes) + 1), max(rank - 1, 0)):
            if rank:
                edges = (0, *cuts, len(axes))
                yield tuple(tuple(order[a:b]) for a, b in itertools.pairwise(edges))
            elif not axes:
                yield ()


def count_layouts(rank: int, ways: Sequence[int]) -> int:
    """How many layouts there are.

    ways  for each axis the number of its states beside the dims
    """
    total = 0
    for count in range(len(ways) + 1):
        beside = sum(math.prod(w for i, w in enumerate(ways) if i not in split) for split in itertools.combinations(range(len(ways)), count))
        placed = math.comb(count + rank - 1, rank - 1) * math.factorial(count) if rank else int(count == 0)
        total += beside * placed
    return total
