"""What the search decides: its result, and all that lowering needs to know."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.options import Parallelism
from autoplan.rules.strategies import Strategy


def tensor_mesh(mesh: Mesh) -> Mesh:
    """The mesh on which the tensors of one pipeline stage lie: without the pipeline's axis.

    The strategies and layouts of a choice are over this one; strides stay those of the whole cluster.
    """
    return Mesh(tuple(axis for axis in mesh.axes if axis.name != "pp"))


@dataclass(frozen=True)
class Hop:
    """One redistribution: a value of a block, wanted in another layout. Each is emitted once, whoever shares it.

    steps  those that were priced; None: the ones that move fewest bytes
    """

    value: str
    source: Layout
    target: Layout
    steps: tuple[Collective, ...] | None = None


@dataclass(frozen=True)
class BlockChoice:
    """How one block runs.

    inputs, outputs   layouts at its boundary; the output of a segment is in the layout of the next one's input
    parameters        (local name, layout in which the parameter is stored and first met): S(d), I, or R where its
                      gradient is summed over the axis once a step
    externals         (local name, layout in which the constant is found)
    strategies        (node name, Strategy)
    hops              redistributions in an order in which each source layout exists before it is used
    again             (value, layout) of the results that a segment computes again where it recomputes selectively
    exchanges         (mixture, how its tokens travel to their experts): "shared", beside a shared expert; a number, in
                      as many chunks, one beside another that is computed
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    parameters: tuple[tuple[str, Layout], ...]
    externals: tuple[tuple[str, Layout], ...]
    strategies: tuple[tuple[str, Strategy], ...]
    hops: tuple[Hop, ...]
    again: tuple[tuple[str, Layout], ...] = ()
    exchanges: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True)
class StageChoice:
    """Segments [first, last) of the chain, on pipeline rank k modulo pp where it is stage k.

    Of its repeated segments the first ``recompute`` keep their inputs alone and run again in the backward; the next
    ``selective`` compute again what their block says (``BlockChoice.again``) and keep the rest. Where
    activations are offloaded these keep all in the host's memory instead.
    """

    first: int
    last: int
    recompute: int = 0
    selective: int = 0


def most_recomputed(stages: Sequence[StageChoice]) -> str:
    """The most that any segment runs again: "full", "selective" or "none"."""
    if any(stage.recompute for stage in stages):
        return "full"
    return "selective" if any(stage.selective for stage in stages) else "none"


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one device of a stage, or of all stages of its rank, at its busiest moment; ``host``: in its host's
    memory, no part of the total."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    transients: int
    host: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.transients


@dataclass(frozen=True)
class PricedCollective:
    """One collective of the plan: where it stands, what it costs in a step.

    where     "LlamaDecoderLayer o_proj", "gradients", "stage 0 -> 1"
    count     times it runs in one step on one device
    seconds   of all its runs; hidden_s of these overlap with compute
    """

    where: str
    kind: str
    axis: str
    bytes: int
    count: int
    seconds: float
    hidden_s: float


@dataclass(frozen=True)
class SplitShare:
    """What tensor parallelism splits: shares of the FLOPs of a forward's matmuls, from 0 to 1.

    any      split over all of its ranks, by features, heads or rows
    weights  of these what splits a weight: where it is 0 the axis splits rows alone, as data or context parallelism
    """

    any: float
    weights: float


@dataclass(frozen=True)
class Predicted:
    """What a plan is predicted to cost.

    step_time_s      one optimizer step
    tokens_per_s     tokens per second where the first batch input holds ids, rows otherwise
    mfu              model FLOPs (no recomputation) over the cluster's peak for the step's duration
    peak_bytes       for each stage; for each pipeline rank where it holds several (rank r stages r, r + pp, …)
    split            what tp splits; None where it has one rank
    """

    step_time_s: float
    tokens_per_s: float
    mfu: float
    peak_bytes: tuple[StageMemory, ...]
    bubble_fraction: float
    collectives: tuple[PricedCollective, ...]
    split: SplitShare | None = None


@dataclass(frozen=True)
class Chosen:
    """One complete choice.

    mesh        pp, dp, tp (outermost first) and mb
    constants   (constant's name, Strategy) for every constant node of the model
    batch       layout of each batch input
    """

    mesh: Mesh
    parallelism: Parallelism
    microbatches: int
    batch: tuple[Layout, ...]
    constants: tuple[tuple[str, Strategy], ...]
    blocks: tuple[BlockChoice, ...]
    stages: tuple[StageChoice, ...]
    predicted: Predicted


@dataclass(frozen=True)
class Alternative:
    """A priced plan that was not chosen: a runner-up, or a named system.

    over_bytes  by how much its fullest stage exceeds the memory limit; 0 where it fits
    why_not     text where it doesn't apply at all ("" otherwise)
    waits       for the collective that takes most of its step in the open; None where all hide
    idle_s      that a device waits in the pipeline's bubble
    peak_bytes  of a device of its fullest stage; 0 where it has no price
    """

    name: str
    parallelism: Parallelism
    step_time_s: float
    over_bytes: int
    why_not: str = ""
    waits: PricedCollective | None = None
    idle_s: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True)
class SearchReport:
    """How the search went: sizes of the largest ILP, candidates priced, (phase, seconds).

    The seconds are of one run and no part of the plan: plan.json doesn't hold them, so that the same input gives the
    same file. Nor does it hold ``data_axis``, what came of a check that is left out where time is short (``free``).

    optimality_gap  by which share of the plan's step time a plan of the space that was searched could still be quicker,
                    as far as the search has come by bounds anyway
    searched, left_out  that space in words, and what a pin could ask for beyond it
    """

    variables: int
    constraints: int
    optimality_gap: float
    candidates: int
    solver: str
    searched: str = ""
    left_out: tuple[str, ...] = ()
    seconds: tuple[tuple[str, float], ...] = field(default=(), compare=False)
    data_axis: str = field(default="", compare=False)
