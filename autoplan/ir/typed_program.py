"""The lowered program: every value with its layout, every redistribution written out.

``lower`` makes it, ``typecheck`` proves that each layout follows from its inputs', ``emit`` prints it as Python and
the runtime builds its state from it. All shapes here are local: one rank's part of one microbatch.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autoplan.ir.graph import DTYPE_BYTES, Argument, Node, Parameter, Segment, TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import MICROBATCH, Mesh
from autoplan.rules.registry import AxisStrategy

JOINED = ("routed_experts", "ring_attention")
"""Bodies that communicate over all their axes as one group."""


def groups_of(body: str, axes: tuple[str, ...]) -> tuple[str, ...]:
    """What a body over these axes is told of: each of them, or all as the one group over which it communicates."""
    return (",".join(axes),) if body in JOINED else axes


@dataclass(frozen=True)
class Collective:
    """One step of a redistribution.

    op       function of autoplan.runtime.collectives.typed: "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
             "permute", "exchange", …
    axes     the mesh axes, or prime factors of them, whose product is the group, outermost first: its members are
             numbered row-major in this order
    dims     tensor dims it takes as arguments: (dim,) for a gather, (from, to) for an all-to-all
    forward, backward   what crosses the links, "" where nothing does: "all-reduce", "all-gather", "reduce-scatter",
             "all-to-all", "permute", "all-to-all-v"
    forward_bytes, backward_bytes   the size the collective is known by: an all-reduce's operand, a gather's result, a
             reduce-scatter's operand, an all-to-all's and a permute's operand, on one rank; what the busiest rank
             sends or receives in an all-to-all-v
    spec     of a permute and an exchange: for each tensor dim the group's axes that split it, outermost first, before
             and after: "x y, - -> y, x" (autoplan.redistribution.exchange.messages)
    shape    of an exchange: the tensor that the group's members share
    chunks   into how many it is cut beside a product (``redistribution.chunks``), which divide it, or of what a body
             sends, beside what it computes; 1: it is whole
    """

    op: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]
    forward: str
    backward: str
    forward_bytes: int
    backward_bytes: int
    spec: str = ""
    shape: tuple[int, ...] = ()
    chunks: int = 1

    @property
    def chunks_back(self) -> int:
        """Of the backward: gathered chunks' gradient is summed whole, as is a sum's that is whole everywhere; a
        scattered sum's is gathered in chunks, and a body's chunks go the way back."""
        return 1 if self.op in ("all_gather", "all_reduce") else self.chunks

    @property
    def axis(self) -> str:
        """The group's name: "tp", or "dp,tp" where several axes make it."""
        return ",".join(self.axes)


@dataclass(frozen=True)
class TypedValue:
    """A value in a block: the whole tensor's type, its layout, one rank's shape."""

    name: str
    type: TensorType
    layout: Layout
    local_shape: tuple[int, ...]


@dataclass(frozen=True)
class Compute:
    """One operator on local tensors. ``args`` and ``kwargs`` hold local sizes and name values of this block."""

    value: TypedValue
    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    strategies: tuple[tuple[str, AxisStrategy], ...]
    module: str = ""
    divisor: int = 1

    @cached_property
    def node(self) -> Node:
        """As an operator of a graph, with local sizes among its arguments."""
        return Node(self.value.name, self.op, self.args, self.kwargs, self.value.type, self.module)

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values that it reads, in the order of its arguments."""
        return self.node.operands

    @property
    def body(self) -> str:
        """What runs in the operator's place; microbatches exchange nothing, and on their axis it is the operator."""
        return next((s.body for axis, s in self.strategies if s.body and axis != MICROBATCH), "")

    @property
    def body_axes(self) -> tuple[str, ...]:
        return tuple(axis for axis, s in self.strategies if s.body and axis != MICROBATCH)

    @property
    def body_groups(self) -> tuple[str, ...]:
        """What the body is told of: its axes, or all of them as the one group over which it communicates, "ep,tp"."""
        return groups_of(self.body, self.body_axes)


@dataclass(frozen=True)
class Move:
    """A redistribution: one value in another layout, as a new value."""

    value: TypedValue
    source: str
    collectives: tuple[Collective, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.source,)


Statement = Compute | Move


def needed(statements: Sequence[Statement], wanted: Iterable[str], given: Iterable[str] = ()) -> list[Statement]:
    """Those that make the wanted values, in their order; ``given``: names of what needn't be made."""
    there, found = set(given), []
    names = set(wanted) - there
    for statement in reversed(statements):
        if statement.value.name in names:
            found.append(statement)
            names |= set(statement.reads) - there
    return found[::-1]


@dataclass(frozen=True)
class JoinedProducts:
    """Products of one value with weights that lie side by side in memory, as one product.

    products  their values, in the order of the program
    apart     places of those that are copied out of it: the backward reads them, and not all of the others
    """

    products: tuple[str, ...]
    apart: tuple[int, ...] = ()


@dataclass(frozen=True)
class TokenFlight:
    """A mixture in three calls, between which others are computed (``redistribution.shared_experts``).

    mixture  its value, whose statement has the results
    sent     the statement before which tokens set out, by its value; ``run``: before which experts compute
    experts  of a rank
    """

    mixture: str
    sent: str
    run: str
    experts: int


@dataclass(frozen=True)
class LoweredBlock:
    """A block with layouts; ``parameters`` are in the layout in which they are used.

    again   the values of its body that a segment computes again where it recomputes selectively
    hidden  redistributed values whose gradient is summed under weights' gradients, and the products that read them
            (``redistribution.hidden``)
    joined  products that run as one (``lower.joined``)
    flights  mixtures whose tokens travel while a shared expert computes
    """

    name: str
    inputs: tuple[TypedValue, ...]
    externals: tuple[TypedValue, ...]
    parameters: tuple[TypedValue, ...]
    buffers: tuple[TypedValue, ...]
    body: tuple[Statement, ...]
    outputs: tuple[TypedValue, ...]
    again: tuple[str, ...] = ()
    hidden: tuple[tuple[str, tuple[str, ...]], ...] = ()
    joined: tuple[JoinedProducts, ...] = ()
    flights: tuple[TokenFlight, ...] = ()


@dataclass(frozen=True)
class StoredParameter(Parameter):
    """A parameter as a rank keeps it on the tensor axes (ZeRO shards it further over ``dp``, by fully_shard).

    layout    over the device axes: S(d) where it is split, I where every rank holds the same; the pipeline axis aside
    local_shape  on one rank, before ZeRO
    reduce_axes  axes over which its gradient is summed once a step (where it is used as R); never an S axis
    stages    pipeline stages that hold it, more than one where it is tied across stages
    """

    layout: Layout = field(kw_only=True)
    local_shape: tuple[int, ...] = field(kw_only=True)
    reduce_axes: tuple[str, ...] = field(kw_only=True)
    stages: tuple[int, ...] = field(kw_only=True)


def parameter_sizes(parameters: Iterable[StoredParameter]) -> dict[str, float]:
    """Bytes on one rank of those that are trained, by name."""
    return {p.name: math.prod(p.local_shape) * DTYPE_BYTES[p.type.dtype] for p in parameters if p.trainable}


@dataclass(frozen=True)
class LoweredStage:
    """A pipeline stage: a run of the chain.

    first, last  segments [first, last)
    inputs, outputs   activations that enter and leave, local shapes; the last stage's output is the loss
    constants    names of the constants that it recomputes, in order of execution (counts are passed in instead)
    recompute    how many of its segments, from the first repeated one, recompute their activations in the backward
    selective    how many of the repeated ones after these compute again what their block says, and keep the rest
    offloaded    how many of the repeated ones after these keep their activations in the host's memory
    """

    first: int
    last: int
    inputs: tuple[TypedValue, ...]
    outputs: tuple[TypedValue, ...]
    constants: tuple[str, ...]
    recompute: int = 0
    selective: int = 0
    offloaded: int = 0


@dataclass(frozen=True)
class Lowered:
    """A whole program.

    mesh      device axes and "mb"
    batch     the batch's tensors: whole type, layout (over mb and dp), local shape of a microbatch
    constants nodes over batch inputs and buffers; their layouts
    counts    names of the constants counted once a step: summed over microbatches and over ``count_axes``
    loss      the loss' layout: P on the axes over which the ranks' losses are summands
    """

    name: str
    mesh: Mesh
    batch: tuple[TypedValue, ...]
    constants: tuple[Statement, ...]
    counts: tuple[str, ...]
    blocks: tuple[LoweredBlock, ...]
    segments: tuple[Segment, ...]
    stages: tuple[LoweredStage, ...]
    parameters: tuple[StoredParameter, ...]
    buffers: tuple[TypedValue, ...]
    batch_axes: tuple[str, ...] = ("dp",)

    @property
    def loss(self) -> TypedValue:
        return self.stages[-1].outputs[0]

    @property
    def moves(self) -> tuple[Move, ...]:
        """Every redistribution: of constants and in blocks."""
        bodies = (self.constants, *(block.body for block in self.blocks))
        return tuple(statement for body in bodies for statement in body if isinstance(statement, Move))

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The axes of each group that a collective runs over, of a move or in a body; in the order of first use."""
        bodies = (self.constants, *(block.body for block in self.blocks))
        inside = (s.body_axes for body in bodies for s in body if isinstance(s, Compute) and s.body in JOINED)
        return tuple(dict.fromkeys((*(step.axes for move in self.moves for step in move.collectives), *inside)))

