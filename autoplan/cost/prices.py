"""The price list of one mesh: operators, redistributions, and what a parameter costs in a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from autoplan.cost.mesh_links import ClusterLinks
from autoplan.cost.operators.collective_ops import SEND, TO_ENDS, body_collectives
from autoplan.cost.operators.cost import Cost
from autoplan.cost.operators.operator_seconds import Operator, price_operator, ring_of
from autoplan.cost.operators.ring import Ring
from autoplan.cost.operators.token_exchange import NOTHING, BesideTokens, Inside, hidden_exchange
from autoplan.cost.single_steps import single_step
from autoplan.errors import LayoutError
from autoplan.ir.graph import DTYPE_BYTES, TensorType
from autoplan.ir.layout import Layout, P, R, State
from autoplan.ir.mesh import Axis, Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution import Planner, step_seconds
from autoplan.rules.strategies import Strategy
from cost_models.collective import hidden_seconds, send_seconds
from cost_models.compute import many_kernels_seconds, memory_bound_seconds, update_seconds
from cost_models.hardware import Device, Topology

COPYING = ("shard", "shard_invariant", "shard_to_partial", "replicate_to_partial", "invariant_to_partial")
"""Steps of a redistribution that write a part of a tensor anew."""

HALF = ("bfloat16", "float16")
SPLIT = State("S")  # along any dim

AxisMove = tuple[bool, bool, int, int, int, bool, State, State]
"""A redistribution along one axis: as a single step or the cheapest way, whether of half precision, the axis' size and
stride, bytes of the part that it may split, whether that carries a gradient, the states before and after."""

Group = tuple[str, int, tuple[tuple[int, int], ...]]
"""A collective of so many bytes over axes of these sizes and strides."""


STREAMED = 1e9  # bytes at which a pace is taken
PREFERRED = 1 - 1e-4  # of a collective's seconds, of those that a plan makes one of
COPY = 2.0  # passes of a copy over what it copies: read, written


@dataclass
class Prices:
    """Prices on one mesh; what it has priced once it remembers for its lifetime, which is one search.

    mesh          device axes and "mb", with the strides they have in the cluster
    fuses         the program is compiled: elementwise chains run as one kernel
    training      backward passes are priced too
    microbatches  of one step, over which the cost of a step is spread
    stored        bytes in which a parameter's master and its gradient are stored, for each byte in which it is used:
                  2 under mixed precision, where they are float32 (``step.stored_ratio``)
    reduced       the same of a gradient as it is summed over data and context axes; None: as it is stored
    direct        a redistribution is a single step, and no way over several is sought: for problems over several axes,
                  which compose their ways themselves
    hides         the sum of an input's gradient may run under weights' gradients (``redistribution.hidden``)
    chunks        into how many a redistribution beside a product may be cut; the quickest is taken (``chunk_seconds``)
    exchanges     how a mixture's tokens may be exchanged: in chunks, or whole under a shared expert; the quickest is
                  taken (``BlockChoice.exchanges``)
    """

    mesh: Mesh
    topology: Topology
    fuses: bool
    training: bool
    microbatches: int
    optimizer_passes: float = 0.0
    stored: float = 1.0
    reduced: float | None = None
    direct: bool = False
    hides: bool = True
    chunks: tuple[int, ...] = (1,)
    exchanges: tuple[int | str, ...] = (1,)
    moved: dict[tuple[TensorType, Layout, Layout, bool], tuple[Cost, tuple[Collective, ...]] | None] = field(
        default_factory=dict, repr=False
    )
    planners: dict[tuple[TensorType, bool], Planner] = field(default_factory=dict, repr=False)
    collectives: dict[Group, float] = field(default_factory=dict, repr=False)
    axis_moves: dict[AxisMove, float | None] = field(default_factory=dict, repr=False)
    messages: dict[tuple[float, int, int, int], float] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> Device:
        return self.topology.device

    @property
    def summed(self) -> float:
        """Bytes in which data and context axes sum a gradient, for each byte in which its parameter is used."""
        return self.stored if self.reduced is None else self.reduced

    def on(self, device: Device) -> Prices:
        """The list of the same mesh on another kind of device; the links stay those of the cluster."""
        if device == self.device:
            return self
        return replace(self, topology=replace(self.topology, device=device, groups=()), moved={}, axis_moves={})

    def operator(self, operator: Operator, strategy: Strategy, inside: Sequence[Inside] | None = None) -> Cost:
        """One operator in one microbatch, the collectives of its body included.

        inside  these, where they are known
        """
        inside = self.inside(operator, strategy) if inside is None else inside
        local = price_operator(operator, strategy, self.mesh, self.device, fuses=self.fuses, training=self.training)
        return sum((Cost(each.open_forward_s, each.open_backward_s) for each in inside), local)

    def inside(
        self, operator: Operator, strategy: Strategy, beside: BesideTokens = NOTHING
    ) -> tuple[Inside, ...]:
        """The collectives in an operator's body; ``beside``: of a mixture's."""
        found, goes_back = list[Inside](), operator.result_carries and self.training
        ring = ring_of(operator, strategy, self.mesh, self.fuses)
        for step in body_collectives(operator, strategy, self.mesh):
            if step.forward == SEND:
                found.append(self.sends(step, ring, goes_back))
            else:
                cost = self.step(step, operator.result_carries)
                found.append(Inside(step, cost.forward_s, cost.backward_s))
        if found and operator.rule.cost == "experts" and self.hides and not self.device.blocking:
            local = price_operator(operator, strategy, self.mesh, self.device, fuses=self.fuses, training=self.training)
            ways = found[-2], found[-1]
            found[-2:] = hidden_exchange(operator, strategy, self.mesh, self.device, local, ways, beside)
        return tuple(found)

    def sends(self, step: Collective, ring: Ring | None, goes_back: bool) -> Inside:
        """What ranks send one another: a ring's keys and values hide under the blocks, what goes to either end of the
        sequence and back doesn't, nor does what windows see of the neighbours."""
        if ring is None or step.op == TO_ENDS:
            seconds = [self.sent_s(size, step.axis) for size in (step.forward_bytes, step.backward_bytes)]
            return Inside(step, seconds[0], seconds[1] * goes_back)
        part_s, gradient_s = (self.sent_s(size, step.axis) for size in (ring.part_bytes, ring.gradient_bytes))
        hidden = ring.hidden_s(part_s, gradient_s, self.device)
        forward_s = (ring.ways - 1) * part_s
        backward_s = forward_s + ring.ways * gradient_s
        return Inside(step, forward_s, backward_s * goes_back, hidden[0], hidden[1] * goes_back)

    def sent_s(self, bytes: float, axis: str) -> float:
        """Seconds of one message from every member of an axis, or of several as one, to the next, over the slowest
        link between two of them."""
        path = [each for name in axis.split(",") for each in ClusterLinks(self.topology).path(self.mesh.axis(name))]
        return float(send_seconds(bytes, min((link for _, link in path), key=lambda link: link.bandwidth_bytes_per_s)))

    def message_s(self, bytes: float, rank: int, width: int, source: int) -> float:
        """``send_s`` on the cluster."""
        key = (bytes, rank, width, source)
        if key not in self.messages:
            self.messages[key] = send_s(bytes, rank, width, self.topology, source)
        return self.messages[key]

    def operator_s(self, operator: Operator, strategy: Strategy) -> float:
        """Of a mixture those of the quickest number of chunks; a shared expert is another operator."""
        if operator.rule.cost != "experts" or self.exchanges == (1,):
            return self.operator(operator, strategy).seconds
        numbers = [each for each in self.exchanges if isinstance(each, int)] or [1]
        return min(self.operator(replace(operator, chunks=number), strategy).seconds for number in numbers)

    def operators_s(self, operator: Operator, strategies: Sequence[Strategy]) -> np.ndarray:
        """[strategies] the seconds of one operator; those that split alike are priced once."""
        seconds: dict[tuple, float] = {}
        for strategy in strategies:
            if (split := split_of(strategy)) not in seconds:
                seconds[split] = self.operator_s(operator, strategy)
        return np.array([seconds[split_of(strategy)] for strategy in strategies])

    def move(
        self, kind: TensorType, source: Layout, target: Layout, carries: bool
    ) -> tuple[Cost, tuple[Collective, ...]] | None:
        """A redistribution in one microbatch, and its steps; None where there is no way."""
        key = (kind, source, target, carries)
        if key not in self.moved:
            steps = self.steps_between(kind, source, target, carries)
            local = layout_bytes(kind, target, self.mesh)
            cost = sum((self.step(step, carries, local, kind) for step in steps or ()), Cost())
            self.moved[key] = None if steps is None else (cost, steps)
        return self.moved[key]

    def steps_between(
        self, kind: TensorType, source: Layout, target: Layout, carries: bool
    ) -> tuple[Collective, ...] | None:
        """The steps of a redistribution; None where there is no way, or, where these are asked for, no single step.

        In half precision a whole value doesn't become a summand: added to partial results before these are summed, a
        residual is rounded on its rank and in the sum, again and again along the layers.
        """
        if kind.dtype in HALF and any(target.state(a) == P != source.state(a) for a in self.mesh.names):
            return None
        if self.direct:
            return single_step(kind, source, target, carries, self.mesh)
        try:
            return self.planner(kind, carries).plan(source, target).collectives
        except LayoutError:
            return None

    def move_steps(
        self, kind: TensorType, source: Layout, target: Layout, carries: bool
    ) -> tuple[Collective, ...] | None:
        """The steps of ``move``."""
        found = self.move(kind, source, target, carries)
        return None if found is None else found[1]

    def move_s(self, kind: TensorType, source: Layout, target: Layout, carries: bool) -> float | None:
        """The seconds of ``move``; of moves along the innermost axis those that are alike are priced once."""
        key = self.axis_move(kind, source, target, carries) if source != target else None
        if key is not None and key in self.axis_moves:
            return self.axis_moves[key]
        found = self.move(kind, source, target, carries)
        seconds = None if found is None else found[0].seconds
        if key is not None:
            self.axis_moves[key] = seconds
        return seconds

    @cached_property
    def innermost(self) -> Axis | None:
        """The innermost axis of several devices, unless another has faster links: then what goes along it alone has
        the same steps and seconds whatever the others are."""
        axes, rate = [a for a in self.mesh.device_axes if a.size > 1], ClusterLinks(self.topology).bandwidth_bytes_per_s
        return axes[-1] if axes and all(rate(axis) <= rate(axes[-1]) for axis in axes) else None

    def axis_move(self, kind: TensorType, source: Layout, target: Layout, carries: bool) -> AxisMove | None:
        """All that a redistribution along the innermost axis depends on, whose ends differ; None where another axis may
        take part, where sizes don't divide, and where operands of max are among what moves."""
        axis = self.innermost
        if axis is None or any(state.reduce == "max" for _, state in (*source.rest, *target.rest)):
            return None
        whole_bytes = DTYPE_BYTES[kind.dtype]
        for size, here, there in zip(kind.shape, source.dims, target.dims, strict=True):
            outer = here[:-1] if here[-1:] == (axis.name,) else here
            if outer != (there[:-1] if there[-1:] == (axis.name,) else there):
                return None
            local = size // math.prod(self.sizes[name] for name in outer)
            if size % math.prod(self.sizes[name] for name in max(here, there, key=len)):
                return None
            whole_bytes *= local
        before, after = dict(source.rest), dict(target.rest)
        ends = (before.pop(axis.name, SPLIT), after.pop(axis.name, SPLIT))
        return None if before != after else (
            self.direct, kind.dtype in HALF, axis.size, axis.stride, whole_bytes, carries, *ends,
        )  # fmt: skip

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {axis.name: axis.size for axis in self.mesh.axes}

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """(size, stride) of each axis."""
        return {axis.name: (axis.size, axis.stride) for axis in self.mesh.axes}

    def place(self, name: str) -> tuple[int, int]:
        """(size, stride) of an axis, or of a part of one."""
        if name not in self.places:
            axis = self.mesh.axis(name)
            self.places[name] = (axis.size, axis.stride)
        return self.places[name]

    def planner(self, kind: TensorType, carries: bool) -> Planner:
        """What finds the redistributions of one type of tensor on this mesh's links."""
        if (kind, carries) not in self.planners:
            links = ClusterLinks(self.topology)
            self.planners[kind, carries] = Planner(kind, self.mesh, carries_gradient=carries, links=links)
        return self.planners[kind, carries]

    def step(self, step: Collective, carries: bool, local_bytes: int = 0, kind: TensorType | None = None) -> Cost:
        """One collective forward and its adjoint backward.

        local_bytes  of the part that is copied where nothing crosses the links (a slice, a division by the ranks)
        kind         what is moved, where the step is an exchange
        """
        copy_s = float(memory_bound_seconds(2 * local_bytes, self.device)) if step.op in COPYING else 0.0
        itemsize = DTYPE_BYTES[kind.dtype] if kind else 1
        if step.spec:
            forward_s, backward_s = step_seconds(step, itemsize, self.mesh, ClusterLinks(self.topology))
        else:
            ahead, back = step.chunks, step.chunks_back
            forward_s = ahead * self.group_s(step.forward, step.forward_bytes // ahead, step.axes)
            backward_s = back * self.group_s(step.backward, step.backward_bytes // back, step.axes)
        return Cost(copy_s + forward_s, copy_s + backward_s if carries and self.training else 0.0)

    def under_products_s(self, collective_s: float, products_s: float) -> float:
        """Of a collective beside products in a backward, the seconds that these hide: of the sum of an input's gradient
        those of weights' gradients, of an input gathered again those of its own."""
        if not self.hides or self.device.blocking:
            return 0.0
        return float(hidden_seconds(products_s, collective_s, self.device.overlap_slowdown))

    def collective_s(self, kind: str, bytes: float, axis: str) -> float:
        """Seconds of one collective, over several axes where ``axis`` names them, "dp,cp"; 0 where nothing crosses the
        links."""
        axes = tuple(name for name in axis.split(",") if self.mesh.size(name) > 1)
        return self.group_s(kind, int(bytes), axes) if axes else 0.0

    def group_s(self, kind: str, bytes: int, axes: tuple[str, ...]) -> float:
        """The same over a group of several axes."""
        if not kind:
            return 0.0
        key = (kind, bytes, tuple(self.place(axis) for axis in axes))
        if key not in self.collectives:
            group = [self.mesh.axis(axis) for axis in axes]
            self.collectives[key] = ClusterLinks(self.topology).collective_s(kind, bytes, group)
        return self.collectives[key]

    def cold_s(self, bytes: float) -> float:
        """Seconds to stream what was last touched so long ago that it is in no cache: parameters, gradients."""
        return float(memory_bound_seconds(bytes, replace(self.device, cache_bytes=0.0)))

    def stored_s(self, kind: TensorType, layout: Layout, count: int = 1) -> float:
        """The share of a microbatch of ``count`` parameters alike, as those of layers that repeat: their gradients'
        reductions, which are one collective, and their updates, once a step; and their gradients' adding up. A plan
        has one collective for all parameters: of two ways that take as long, that which sums once a step is quicker.
        What is summed over an operator axis is copied into a bucket for it.
        """
        if not self.training:
            return 0.0
        local = self.stored * layout_bytes(kind, layout, self.mesh)
        seconds = PREFERRED * sum(
            self.collective_s("all-reduce", count * local, axis.name)
            for axis in self.mesh.device_axes
            if layout.state(axis.name) == R
        )
        seconds += self.cold_s(COPY * count * local if self.summed_over(layout) else 0.0)
        update_s = count * float(update_seconds(self.optimizer_passes * local, self.device))
        added_s = count * self.added_s(local / self.stored)
        return (seconds + update_s) / self.microbatches + added_s

    def stored_at_least_s(self, kind: TensorType, layout: Layout, microbatches: int) -> float:
        """The same of one parameter among many that are summed over the tensor axes, updated and added up together, in
        a step of so many microbatches: by its bytes. What the data axis takes may be hidden."""
        if not self.training:
            return 0.0
        used = layout_bytes(kind, layout, self.mesh)
        ends = (STREAMED, 2 * STREAMED)
        passes = self.optimizer_passes * self.stored
        summing = [[self.collective_s("all-reduce", n, axis) for n in ends] for axis in self.summed_over(layout)]
        summing += [[self.cold_s(COPY * n) for n in ends]] if summing else []
        updating = [float(update_seconds(n, self.device)) for n in ends]
        adding = [self.added_s(n) for n in ends]
        once_s = self.stored * sum(more - less for less, more in summing) + passes * (updating[1] - updating[0])
        return used * (once_s / microbatches + adding[1] - adding[0]) / STREAMED

    def summed_over(self, layout: Layout) -> list[str]:
        """The operator axes over which a parameter's gradients are summed."""
        return [a for a in self.mesh.operator_axes if layout.state(a) == R and self.mesh.size(a) > 1]

    def added_s(self, bytes: float, own: float = 1.0) -> float:
        """Seconds in a microbatch, on average, to add up the gradients of so many bytes of parameters: those of the
        first are taken as they come, or in the dtype of the sum where that is another.

        own  bytes in which a microbatch's gradients come, for each byte of parameter
        """
        first_s = 0.0 if own == self.stored else self.many_s((own + self.stored) * bytes)
        return (first_s + (self.microbatches - 1) * self.accumulate_s(bytes, own)) / self.microbatches

    def accumulate_s(self, bytes: float, own: float = 1.0) -> float:
        """Seconds to add one microbatch's gradients to those before: each parameter's own is read, the sum is read and
        written."""
        return self.many_s((own + 2 * self.stored) * bytes)

    def many_s(self, bytes: float) -> float:
        """A kernel for each parameter, so that however many there are none is beyond what streams faster."""
        return float(many_kernels_seconds(bytes, self.device))


def split_of(strategy: Strategy) -> tuple:
    """What an operator's price depends on: which dims and which factor each axis splits, and what runs in its place."""
    return tuple(
        (axis, way.factor, way.body, way.output.dim, *(state.dim for state in way.inputs))
        for axis, way in strategy.axes
    )


def layout_bytes(kind: TensorType, layout: Layout, mesh: Mesh) -> int:
    """Bytes of one rank's part."""
    elements = 1
    for size in layout.local_shape(kind.shape, mesh):
        elements *= size
    return elements * (kind.bytes // max(kind.elements, 1))


def send_s(bytes: float, rank: int, width: int, topology: Topology, source: int | None = None) -> float:
    """Seconds to send a tensor to a pipeline rank from the one before, or from ``source``, each device to its like.

    width  devices of a pipeline rank; those of rank k have the numbers k·width … (k+1)·width - 1

    The outermost level that a message crosses carries it, and of the cards of a node the senders have more where they
    are fewer than its devices.
    """
    source, inner = rank - 1 if source is None else source, 1
    first, last = min(source, rank) * width, (max(source, rank) + 1) * width - 1
    level, inside = topology.levels[0], 1
    for each in topology.levels:
        if first // inner != last // inner and each.size > 1:
            level, inside = each, inner
        inner *= each.size
    spare = min(level.lone, inside / min(width, inside))
    return float(send_seconds(bytes, level.link.scaled(spare)))
