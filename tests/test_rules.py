"""Every strategy of every rule, against the operator on one device: value, gradients, buffers, in float64.

What ``make test`` runs: every strategy on one axis of 2, 3 and 4 ranks, and of the products of strategies over two and
three axes a few for each sample, always the same. The slow tests run all products, on 2x2 and 2x2x2.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import autoplan.rules  # noqa: F401  registers them
from autoplan.mesh import Mesh
from autoplan.rule import factor_sizes, registered
from autoplan.runtime import bodies
from autoplan.runtime.axes import rank_axes
from autoplan.runtime.ranks import RankPool
from autoplan.strategies import AxisStrategy, Strategy, axis_strategies, split_dims
from tests.rule_samples import Argument, Sample, s, samples, x
from tests.simulate import (
    Case,
    Coordinates,
    Local,
    Outcome,
    check,
    everywhere,
    localise,
    rank_axes_at,
    run_local,
    run_whole,
)

CASES = [Case.of(sample) for sample in samples()]
PAIR, FOUR, THREE = Mesh.of(tp=2), Mesh.of(tp=4), Mesh.of(tp=3)
SQUARE, CUBE = Mesh.of(dp=2, tp=2), Mesh.of(dp=2, tp=2, tp2=2)
A_FEW = {SQUARE: 8, CUBE: 3}  # products of a sample that the quick tests take
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.sample))


def gradient_of(case: Case) -> Tensor | None:
    """A gradient of the result, None where none can come."""
    if not case.result.requires_grad:
        return None
    return torch.randn(case.result.shape, dtype=case.result.dtype, generator=torch.Generator().manual_seed(3))


def communicates(strategy: Strategy) -> bool:
    return any(s.communicates for _, s in strategy.axes)


def alone(case: Case, mesh: Mesh) -> list[Strategy]:
    """The strategies in which no rank needs another one while it computes."""
    return [s for s in case.strategies(mesh) if not communicates(s)]


def together(mesh: Mesh) -> list[tuple[Case, Strategy]]:
    return [(case, s) for case in CASES for s in case.strategies(mesh) if communicates(s)]


def verify(case: Case, chosen: Sequence[Strategy], mesh: Mesh) -> None:
    gradient = gradient_of(case)
    whole = run_whole(case, gradient)
    for strategy in chosen:
        locals_ = localise(case, strategy, mesh, gradient)
        outcomes = {at: run_local(local, rank_axes_at(mesh, at)) for at, local in locals_.items()}
        check(case, strategy, mesh, outcomes, whole)


def test_every_rule_has_a_sample() -> None:
    """Rules that other tests register as users do aren't ours to prove."""
    ours = {op for op, function in registered().items() if function.__module__.startswith("autoplan.")}
    assert {case.node.op for case in CASES} == ours


def test_every_body_is_in_some_strategy() -> None:
    """Each function that runs differently by rank is proven, because some sample offers it on one of the meshes."""
    by_rank = {name for name in bodies.__all__ if "axes" in inspect.signature(getattr(bodies, name)).parameters}
    offered = {a.body for case in CASES for mesh in (PAIR, FOUR) for s in case.strategies(mesh) for _, a in s.axes}
    assert by_rank - {"attention_with_dropout"} <= offered  # that one runs in an emitted program alone: test_dropout
    assert offered - {""} <= by_rank


@each_case
def test_every_strategy_on_one_axis(case: Case) -> None:
    for mesh in (PAIR, FOUR, THREE):
        assert case.strategies(mesh), "an operator can always be replicated"
        verify(case, alone(case, mesh), mesh)


@each_case
def test_operands_that_carry_no_gradient(case: Case) -> None:
    """The same with one of the operands constant, and with all: what is constant is neutral, R and I meet there."""
    for sample in constant_variants(case.sample):
        variant = Case.of(sample)
        verify(variant, alone(variant, PAIR), PAIR)


def constant_variants(sample: Sample) -> list[Sample]:
    count = sum(t.requires_grad for t in tensors_of(sample.args))
    if count == 0:
        return []
    ways = [set(range(count))] + [{i} for i in range(count) if count > 1]
    return [replace(sample, args=frozen(sample.args, constant, iter(range(count)))) for constant in ways]


def tensors_of(argument: Argument) -> list[Tensor]:
    if isinstance(argument, tuple):
        return [t for item in argument for t in tensors_of(item)]
    return [argument] if isinstance(argument, Tensor) else []


def frozen(argument: Argument, constant: set[int], numbers: Iterator[int]) -> Argument:
    """The arguments with those tensors constant that are numbered so among those which carry a gradient."""
    if isinstance(argument, tuple):
        return tuple(frozen(item, constant, numbers) for item in argument)
    if isinstance(argument, Tensor) and argument.requires_grad and next(numbers) in constant:
        return argument.detach()
    return argument


@each_case
@pytest.mark.parametrize("mesh", [SQUARE, CUBE], ids=str)
def test_some_products_of_strategies(case: Case, mesh: Mesh) -> None:
    found = alone(case, mesh)
    verify(case, random.Random(str(case.sample)).sample(found, min(A_FEW[mesh], len(found))), mesh)


@pytest.mark.slow
@each_case
@pytest.mark.parametrize("mesh", [SQUARE, CUBE], ids=str)
def test_all_products_of_strategies(case: Case, mesh: Mesh) -> None:
    verify(case, alone(case, mesh), mesh)


@pytest.mark.parametrize("mesh", [PAIR, FOUR, THREE, Mesh.of(tp=5)], ids=str)
def test_a_split_is_offered_where_its_sizes_divide_and_only_there(mesh: Mesh) -> None:
    for case in CASES:
        offered = {chosen.axes[0][1] for chosen in case.strategies(mesh)}
        for single in axis_strategies(case.rule, case.types, case.carries):
            assert (single in offered) == divisible(case, single, mesh.axes[0].size), f"{case.sample} {single}"


def divisible(case: Case, single: AxisStrategy, ways: int) -> bool:
    """Whether every dim that is split has parts of one size, and so has the factor, which may be a part of the dim."""
    sizes = factor_sizes(case.rule, case.types, case.node.type)
    tensors = (*case.types, case.node.type)
    dims = [tensors[tensor].shape[dim] for tensor, dim in split_dims(single)]
    return all(size % ways == 0 for size in (*dims, sizes.get(single.factor, 0)))


def test_heads_split_whole() -> None:
    """640 columns are four times 160, but ten heads of 64 are no whole heads on each of four ranks."""
    case = Case.of(s("aten.reshape.default", x(4, 2, 640), (4, 2, 10, 64)))
    splits = {mesh: {c.axes[0][1].output for c in case.strategies(mesh)} for mesh in (PAIR, FOUR)}
    assert {mesh: any(o.kind == "S" and o.dim == 2 for o in found) for mesh, found in splits.items()} == {
        PAIR: True,
        FOUR: False,
    }


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4, timeout_s=240) as pool:
        yield pool


def run_on_ranks(rank: int, size: int, mesh: Mesh, jobs: list[dict[Coordinates, Local]]) -> list[Outcome]:
    """This rank's part of each job."""
    shape, names = tuple(a.size for a in mesh.axes), mesh.names
    axes = rank_axes(mesh, init_device_mesh("cpu", shape, mesh_dim_names=names))
    at = tuple(axes[name].rank for name in names)
    return [run_local(job[at], axes) for job in jobs]


def verify_on_ranks(pool: RankPool, chosen: Sequence[tuple[Case, Strategy]], mesh: Mesh) -> None:
    gradients = [gradient_of(case) for case, _ in chosen]
    jobs = [localise(case, s, mesh, g) for (case, s), g in zip(chosen, gradients, strict=True)]
    results = pool.run(run_on_ranks, mesh, jobs)
    for n, ((case, strategy), gradient) in enumerate(zip(chosen, gradients, strict=True)):
        outcomes = {at: results[rank][n] for rank, at in enumerate(everywhere(mesh))}
        check(case, strategy, mesh, outcomes, run_whole(case, gradient))


@pytest.mark.parametrize("mesh", [FOUR, SQUARE], ids=str)
def test_every_strategy_that_communicates(pool: RankPool, mesh: Mesh) -> None:
    chosen = together(mesh)
    assert {body for _, s in chosen for _, a in s.axes if (body := a.body)} == {
        a.body for case in CASES for a in case.rule.extra if a.communicates
    }
    verify_on_ranks(pool, chosen, mesh)


@pytest.mark.slow
def test_every_strategy_that_communicates_on_two_and_on_eight_ranks() -> None:
    for ranks, mesh in ((2, PAIR), (8, CUBE)):
        with RankPool(ranks, timeout_s=600) as pool:
            verify_on_ranks(pool, together(mesh), mesh)
