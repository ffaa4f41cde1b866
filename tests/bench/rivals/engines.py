"""Every engine behind one door: two layouts in, what it would run out.

The tensor is known by shape and dtype, the mesh's axes by name; sizes divide, and nothing carries a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from autoplan.ir.graph import DTYPE_BYTES, TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution import UNIFORM, Links, Planner
from autoplan.redistribution.apply import Tensor
from autoplan.redistribution.exchange.boxes import Dims
from autoplan.redistribution.written import step_seconds, write_exchange
from tests.bench.rivals import dtensor, gather_slice, mindspore, shortest
from tests.bench.rivals.steps import Sizes, Step, write

OURS, MINDSPORE, DEFAULT, DTENSOR = "autoplan", "MindSpore", "MindSpore, its default", "DTensor"
ONE_AXIS, STANDARD, DIRECT, GATHER = "shortest path", "standard collectives", "direct exchange", "gather, then slice"


@dataclass(frozen=True)
class Run:
    """What an engine runs: collectives on a tensor of this shape, split thus before and after. An engine may reshape
    the tensor first: each device's part keeps its elements and their order."""

    shape: tuple[int, ...]
    source: Dims
    target: Dims
    collectives: tuple[Collective, ...]


Engine = Callable[[Dims, Dims], Run]


@dataclass(frozen=True)
class Setting:
    """What is redistributed, and on what. ``links`` is what ours and the shortest paths are to be quick on; the others
    don't look at it."""

    type: TensorType
    mesh: Mesh
    links: Links = UNIFORM

    @property
    def sizes(self) -> Sizes:
        return {axis.name: axis.size for axis in self.mesh.axes}

    def written(self, source: Dims, target: Dims, steps: tuple[Step, ...], shape: tuple[int, ...] = ()) -> Run:
        collectives = write(source, steps, self.type.bytes, self.sizes)
        return Run(shape or self.type.shape, source, target, collectives)


def engines(setting: Setting) -> dict[str, Engine]:
    """All of them, by name. Each keeps what it has worked out."""
    return {
        OURS: ours(setting),
        MINDSPORE: greedy_over_dims(setting, all_to_all=True),
        DEFAULT: greedy_over_dims(setting, all_to_all=False),
        DTENSOR: greedy_over_axes(setting),
        ONE_AXIS: path(setting, together=1),
        STANDARD: path(setting, together=len(setting.sizes)),
        DIRECT: direct(setting),
        GATHER: lambda source, target: setting.written(source, target, gather_slice.plan(source, target)),
    }


def ours(setting: Setting) -> Engine:
    planner = Planner(setting.type, setting.mesh, carries_gradient=False, links=setting.links)
    layouts = _Layouts(setting.mesh)

    def plan(source: Dims, target: Dims) -> Run:
        found = planner.plan(layouts[source], layouts[target])
        return Run(setting.type.shape, source, target, found.collectives)

    return plan


def direct(setting: Setting) -> Engine:
    """One all-to-all-v, whatever the layouts."""
    tensor = Tensor(setting.type.shape, DTYPE_BYTES[setting.type.dtype], carries=False)
    layouts = _Layouts(setting.mesh)

    def plan(source: Dims, target: Dims) -> Run:
        step = write_exchange(layouts[source], layouts[target], "exchange", tensor, setting.mesh)
        return Run(setting.type.shape, source, target, (step,) if step.axes else ())

    return plan


def greedy_over_dims(setting: Setting, all_to_all: bool) -> Engine:
    def plan(source: Dims, target: Dims) -> Run:
        before, after = mindspore.refined(source, target, setting.sizes)
        shape = mindspore.refined_shape(setting.type.shape, source, target, setting.sizes)
        return setting.written(before, after, mindspore.plan(before, after, all_to_all), shape)

    return plan


def greedy_over_axes(setting: Setting) -> Engine:
    trees = _Trees(setting, together=1)

    def plan(source: Dims, target: Dims) -> Run:
        return setting.written(source, target, dtensor.plan(source, target, setting.sizes, trees[source]))

    return plan


def path(setting: Setting, together: int) -> Engine:
    trees = _Trees(setting, together)
    return lambda source, target: setting.written(source, target, trees[source][target])


class _Layouts(dict[Dims, Layout]):
    def __init__(self, mesh: Mesh):
        super().__init__()
        self.mesh = mesh

    def __missing__(self, dims: Dims) -> Layout:
        self[dims] = Layout.ordered(dims, self.mesh)
        return self[dims]


class _Trees(dict[Dims, Mapping[Dims, tuple[Step, ...]]]):
    """The shortest paths from each layout, in seconds on the links."""

    def __init__(self, setting: Setting, together: int):
        super().__init__()
        self.setting, self.together = setting, together

    def __missing__(self, source: Dims) -> Mapping[Dims, tuple[Step, ...]]:
        self[source] = shortest.tree(source, self.setting.sizes, self.seconds, self.together)
        return self[source]

    def seconds(self, dims: Dims, step: Step, sizes: Sizes) -> float:
        return sum(priced(write(dims, [step], self.setting.type.bytes, sizes), self.setting))


def priced(collectives: tuple[Collective, ...], setting: Setting) -> Iterator[float]:
    """Seconds of each step, forward."""
    itemsize = DTYPE_BYTES[setting.type.dtype]
    return (step_seconds(step, itemsize, setting.mesh, setting.links)[0] for step in collectives)
