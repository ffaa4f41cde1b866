"""Plans as they run: on real processes over gloo, forward and backward, bit by bit as the simulator says, and the
collectives that cross the links counted against those that the plan names."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import PMAX, I, Layout, P, R
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution import UNIFORM, AxisLinks, Planner
from autoplan.redistribution.steps import EXCHANGES, NEUTRAL_STEPS, STEPS
from autoplan.runtime.collectives import typed
from autoplan.runtime.collectives.mesh_axes import MeshAxis, mesh_axes
from autoplan.verify.local_ranks import RankPool
from tests.oracles import redistribution as simulate
from tests.oracles.redistribution import deal, dual
from tests.support.layouts import CUBE, GRID, LINE, ODD, SQUARE, numbered, ordered_layouts
from tests.support.sampling import slow

EVEN = [(16,), (24,), (8, 16), (16, 8), (8, 4), (8, 4, 12)]
UNEVEN = [(17,), (3,), (17, 5), (1, 9), (6, 0), (5, 2, 6)]
LINKS = [UNIFORM, AxisLinks(other=(200.0, 1.0))]  # with a latency the direct exchange seldom wins
WIRE = {"permute": "all-to-all", "all-to-all-v": "all-to-all"}  # what one operator of torch carries
KINDS = {
    "all_reduce": "all-reduce",
    "all_gather_into_tensor": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "all_to_all_single": "all-to-all",
}


@dataclass(frozen=True)
class Case:
    """A plan and what each rank holds before and is given as gradient; no gradients where it carries none."""

    mesh: Mesh
    source: Layout
    target: Layout
    collectives: tuple[Collective, ...]
    inputs: tuple[np.ndarray, ...]
    gradients: tuple[np.ndarray, ...] | None


@dataclass(frozen=True)
class Result:
    value: np.ndarray
    gradient: np.ndarray | None
    forward: tuple[str, ...]
    backward: tuple[str, ...]


class Record(TorchDispatchMode):
    """The kinds of the collectives that are called, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        namespace, _, name = func.name().partition("::")
        if namespace == "_c10d_functional" and not name.startswith("wait_tensor"):
            self.kinds.append(KINDS[name.partition(".")[0]])
        return func(*args, **(kwargs or {}))


def run_cases(rank: int, size: int, cases: Sequence[Case]) -> list[Result]:
    axes: dict[Mesh, dict[str, MeshAxis]] = {}
    for mesh in dict.fromkeys(case.mesh for case in cases):
        device_mesh = init_device_mesh("cpu", [axis.size for axis in mesh.axes], mesh_dim_names=mesh.names)
        groups = [step.axes for case in cases if case.mesh == mesh for step in case.collectives]
        axes[mesh] = mesh_axes(mesh, device_mesh, groups)
    return [run_case(case, rank, axes[case.mesh]) for case in cases]


def run_case(case: Case, rank: int, axes: dict[str, MeshAxis]) -> Result:
    x = torch.tensor(case.inputs[rank], requires_grad=case.gradients is not None)
    with Record() as forward:
        y = run(case.collectives, x, axes)
    if case.gradients is None:
        return Result(y.numpy(), None, tuple(forward.kinds), ())
    with Record() as backward:
        (gradient,) = torch.autograd.grad(y, x, torch.tensor(case.gradients[rank]))
    return Result(y.detach().numpy(), gradient.numpy(), tuple(forward.kinds), tuple(backward.kinds))


def run(steps: Iterable[Collective], x: torch.Tensor, axes: Mapping[str, MeshAxis]) -> torch.Tensor:
    """This rank's part of a tensor after these collectives; gradients pass back through them.

    x     its part before
    axes  by name, every group that is used among them (``mesh_axes(…, groups=…)``)
    """
    for step in steps:
        x = apply(step, x, axes[step.axis])
    return x


def apply(step: Collective, x: torch.Tensor, axis: MeshAxis) -> torch.Tensor:
    """One collective: the function of autoplan.runtime.collectives.typed that it names."""
    function: Callable[..., torch.Tensor] = getattr(typed, step.op)
    if step.op == "permute":
        return function(x, step.spec, axis)
    if step.spec:
        return function(x, step.shape, step.spec, axis)
    return function(x, *step.dims, axis)


def random_cases(meshes: Sequence[Mesh], count: int, seed: int) -> list[Case]:
    """Pairs of different layouts, one in four of a tensor without gradients, one in five on prime factors."""
    chance = random.Random(seed)
    layouts: dict[tuple, list[Layout]] = {}
    cases: list[Case] = []
    while len(cases) < count:
        mesh, shape, links = chance.choice(meshes), chance.choice(chance.choice([EVEN, UNEVEN])), chance.choice(LINKS)
        carries, factors = chance.random() < 0.75, chance.random() < 0.2
        rest = (R, I, P) if carries else chance.choice([(R, P), (R, PMAX)])
        key = mesh, len(shape), rest, factors
        if key not in layouts:
            layouts[key] = ordered_layouts(len(shape), mesh, rest, factors)
        source, target = chance.sample(layouts[key], 2)
        kind = TensorType(shape, "float64")
        plan = Planner(kind, mesh, carries_gradient=carries, links=links).plan(source, target)
        if plan.collectives:
            cases.append(dealt(mesh, shape, source, target, plan.collectives, carries))
    return cases


def dealt(
    mesh: Mesh, shape: tuple[int, ...], source: Layout, target: Layout, steps: tuple[Collective, ...], carries: bool
) -> Case:
    """Whole numbers, and multiples of all that a mean divides by: every sum is exact."""
    whole = numbered(shape) * mesh.devices**2
    gradients = tuple(deal(1000 * mesh.devices**2 - whole, dual(target), mesh, seed=1)) if carries else None
    return Case(mesh, source, target, steps, tuple(deal(whole, source, mesh)), gradients)


def wires(kinds: Sequence[str]) -> tuple[str, ...]:
    return tuple(WIRE.get(kind, kind) for kind in kinds if kind)


def check(case: Case, results: Sequence[Result]) -> None:
    values = simulate.run(case.collectives, case.inputs, case.mesh)
    forward = wires([step.forward for step in case.collectives])
    for rank, (result, value) in enumerate(zip(results, values, strict=True)):
        assert np.array_equal(result.value, value), f"rank {rank}: {case}"
        assert result.forward == forward, f"rank {rank}: {case}"
    if case.gradients is None:
        return
    gradients = simulate.run_backward(case.collectives, case.gradients, case.mesh)
    backward = wires([step.backward for step in reversed(case.collectives)])
    for rank, (result, gradient) in enumerate(zip(results, gradients, strict=True)):
        assert result.gradient is not None and np.array_equal(result.gradient, gradient), f"rank {rank}: {case}"
        assert result.backward == backward, f"rank {rank}: {case}"


OPS = {step.op for table in (STEPS, NEUTRAL_STEPS, EXCHANGES) for step in table.values()}


@pytest.mark.parametrize(
    ("meshes", "count", "ops"),
    [((SQUARE, Mesh.of(x=4)), 200, OPS), ((ODD,), 60, {"exchange"}), slow(((LINE, GRID, CUBE), 200, OPS))],
    ids=["4 ranks", "6 ranks", "8 ranks"],
)
def test_random_plans_run_as_simulated_and_send_what_they_say(meshes, count, ops):
    cases = random_cases(meshes, count, seed=0)
    missing = ops - {step.op for case in cases for step in case.collectives}
    assert not missing, f"no plan takes {missing}: the sample shows too little"
    with RankPool(meshes[0].devices, timeout_s=240) as pool:
        by_rank = pool.run(run_cases, cases)
    for number, case in enumerate(cases):
        check(case, [results[number] for results in by_rank])
