"""The layouts through which a redistribution may pass, and what it costs to get from each to each in one step."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autoplan.ir.layout import PMAX, I, Layout, P, R, State
from autoplan.ir.mesh import Axis, Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.apply import Tensor, exchange_op, write
from autoplan.redistribution.exchange.traffic import Traffic
from autoplan.redistribution.factors import joined
from autoplan.redistribution.links import Links
from autoplan.redistribution.space.edges import Arc, Table
from autoplan.redistribution.space.layouts import layouts_between
from autoplan.redistribution.steps import EXCHANGES, find_step
from autoplan.redistribution.written import write_exchange

MOST_MESSAGES = 4_000_000  # between all members for all pairs of placements, that are counted in one space
MOST_MEMBERS = 1024  # of a group that exchanges directly
FEW_MEMBERS = 64  # among which every permute is considered; above, those from or to the ends


class Space:
    """The ordered layouts of a tensor over some axes, and the steps between any two.

    tensor  its shape is that of the part which these axes split
    axes    those that may move
    beside  the states in which each may be where it splits no dim
    ends    where a path begins and ends: of a large group, exchanges and permutes are priced near these alone, and of
            too many layouts only those between them are in the space (``layouts_between``)
    direct  whether permutes and exchanges are among the steps

    seconds   (2, layouts, layouts): of the table's steps and permutes, and of exchanges; infinite where none is
    """

    def __init__(
        self, tensor: Tensor, axes: Sequence[Axis], beside: Mapping[str, tuple[State, ...]], links: Links,
        ends: tuple[Layout, Layout], *, direct: bool = True,
    ):  # fmt: skip
        self.tensor, self.axes, self.mesh = tensor, tuple(axes), Mesh(tuple(axes))
        self.layouts, self.complete = layouts_between(ends, self.mesh, beside)
        self.number = {layout: number for number, layout in enumerate(self.layouts)}
        self.table = Table(tensor, self.mesh, beside, links)
        self.held_bytes = np.array([self.table.held_bytes(layout) for layout in self.layouts])
        self.traffic = Traffic(tensor.shape, tensor.itemsize, axes, links)
        self.placements = tuple(dict.fromkeys(layout.dims for layout in self.layouts))
        place = {dims: number for number, dims in enumerate(self.placements)}
        self.place = np.array([place[layout.dims] for layout in self.layouts])
        self.arcs: dict[tuple[int, int], Arc] = {}
        count = len(self.layouts)
        self.seconds = np.full((2, count, count), np.inf)
        self.ends = tuple(self.number[layout] for layout in ends)
        self.add_arcs()
        if direct and self.traffic.members <= MOST_MEMBERS:
            self.add_permutes()
            self.fetch_s, self.fetched_bytes = self.fetches()
            self.add_exchanges()
        self.toward: dict[tuple[int, int], list[np.ndarray]] = {}
        self.written: dict[tuple[int, int, bool], Collective] = {}

    def made_for_its_ends(self) -> bool:
        """Whether others can't use it: layouts are missing, or not all exchanges and permutes are priced."""
        pairs = len(self.placements) ** 2 * self.traffic.members**2
        return not self.complete or pairs > MOST_MESSAGES or self.traffic.members > FEW_MEMBERS

    def add_arcs(self) -> None:
        for here, layout in enumerate(self.layouts):
            for arc in self.table.arcs(layout):
                self.add(here, arc)

    def add(self, here: int, arc: Arc) -> None:
        there = self.number.get(arc.target, here)  # a layout that isn't in this space leads nowhere
        if arc.seconds < self.seconds[0, here, there]:
            self.arcs[here, there] = arc
            self.seconds[0, here, there] = arc.seconds

    def add_permutes(self) -> None:
        """Between layouts whose dims are in as many parts."""
        ways = [tuple(math.prod(self.mesh.size(a) for a in axes) for axes in x.dims) for x in self.layouts]
        same: dict[tuple[int, ...], list[int]] = {}
        for number, parts in enumerate(ways):
            same.setdefault(parts, []).append(number)
        every = self.traffic.members <= FEW_MEMBERS
        for here, layout in enumerate(self.layouts):
            alike = same[ways[here]]
            others = alike if every or here in self.ends else [there for there in alike if there in self.ends]
            for arc in self.table.permutes(layout, [self.layouts[n] for n in others], self.traffic):
                self.add(here, arc)

    def fetches(self) -> tuple[np.ndarray, np.ndarray]:
        """(placements, placements): seconds, and bytes for the busiest member, of fetching from one what another
        wants; infinite where that isn't priced."""
        count = len(self.placements)
        seconds, most = np.full((count, count), np.inf), np.zeros((count, count))
        boxes = np.stack([self.traffic.boxes(dims) for dims in self.placements])
        wanted = self.exchanging()
        for here in wanted:
            sent = self.traffic.sent(self.placements[here], boxes[wanted])
            seconds[here, wanted], most[here, wanted] = self.traffic.busiest(sent)
        return seconds, most

    def exchanging(self) -> np.ndarray:
        """The placements between which exchanges are priced: all, or as many as the budget allows, first the ends',
        then those one step behind the start, then those one step before the goal."""
        most = max(2, int(MOST_MESSAGES**0.5) // self.traffic.members)
        if most >= len(self.placements):
            return np.arange(len(self.placements))
        start, goal = self.ends
        near = [*self.ends, *np.flatnonzero(np.isfinite(self.seconds[0, start]))]
        near += [*np.flatnonzero(np.isfinite(self.seconds[0, :, goal]))]
        return np.array(list(dict.fromkeys(int(self.place[number]) for number in near))[:most])

    def add_exchanges(self) -> None:
        """The exchanges' part of ``seconds``; which there are is ``apply.exchange_op``, on arrays."""
        codes = np.array([[_code(layout, axis.name) for axis in self.axes] for layout in self.layouts])
        codes = codes.reshape(len(self.layouts), len(self.axes))
        for here, code in enumerate(codes):
            moved = self.place != self.place[here]
            clash = ((code > 0) & (codes > 0) & (code != codes)).any(axis=1)
            left, entered = np.where((codes == 0), code, 0), np.where(code == 0, codes, 0)
            kinds = [((left == k).any(axis=1), (entered == k).any(axis=1)) for k in range(1, 4)]
            (left_r, in_r), (left_i, in_i), (left_p, in_p) = kinds
            left_o, in_o = (left > 3).any(axis=1), (entered > 3).any(axis=1)
            possible = moved & ~clash & ~left_o & ~in_o & ~in_p
            fetch = possible & ~left_p & ~left_i & ~in_i
            invariant = possible & ~left_p & ~left_r & ~in_r & (left_i | in_i)
            summed = possible & left_p & ~left_r & ~left_i & ~in_r & ~in_i
            here_s, back_s = self.fetch_s[self.place[here], self.place], self.fetch_s[self.place, self.place[here]]
            both = 2.0 if self.tensor.carries else 1.0
            row = np.where(fetch, both * here_s, np.inf)
            row = np.where(invariant, here_s + back_s, row)
            row = np.where(summed, both * back_s, row)
            self.seconds[1, here] = row

    def collective(self, here: int, there: int, exchange: bool, mesh: Mesh) -> Collective:
        """The step between two layouts as it is written down, by the axes of the whole mesh."""
        key = (here, there, exchange)
        if key not in self.written:
            self.written[key] = self.write(here, there, exchange, mesh)
        return self.written[key]

    def write(self, here: int, there: int, exchange: bool, mesh: Mesh) -> Collective:
        source, target = self.layouts[here], self.layouts[there]
        op = exchange_op(dict(source.rest), dict(target.rest)) if exchange else None
        op = op or self.arcs[here, there].op
        if op in EXCHANGES:
            ends = (self.place[here], self.place[there])
            moved = (int(self.fetched_bytes[ends]), int(self.fetched_bytes[ends[::-1]])) if exchange else (0, 0)
            return write_exchange(source, target, op, self.tensor, mesh, moved)
        arc = self.arcs[here, there]
        step = find_step(source.state(arc.axes[0]), target.state(arc.axes[0]), self.tensor.carries)
        assert step is not None and step.op == op, (source, arc)
        held = (int(self.held_bytes[here]), int(self.held_bytes[there]))
        return write(step, joined(arc.axes, mesh), arc.dims, held, self.tensor.carries)


def _code(layout: Layout, axis: str) -> int:
    """0 where the axis splits a dim, else a number for R, I, P, P(max)."""
    state = layout.state(axis)
    return 0 if state.kind == "S" else {R: 1, I: 2, P: 3, PMAX: 4}[state]
