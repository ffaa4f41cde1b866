"""Every strategy of every rule, against the operator on one device: value, gradients, buffers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as drawn
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import autoplan.rules  # noqa: F401  registers them
from autoplan.mesh import Mesh
from autoplan.rule import registered
from autoplan.runtime.axes import rank_axes
from autoplan.runtime.ranks import RankPool
from autoplan.strategies import Strategy
from tests.rule_samples import samples
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
MESHES = [Mesh.of(tp=2), Mesh.of(tp=4), Mesh.of(tp=3)]
SQUARE = Mesh.of(dp=2, tp=2)


def gradient_of(case: Case) -> Tensor | None:
    """A gradient of the result, None where none can come."""
    if not case.result.requires_grad:
        return None
    return torch.randn(case.result.shape, dtype=case.result.dtype, generator=torch.Generator().manual_seed(3))


def communicates(strategy: Strategy) -> bool:
    return any(s.communicates for _, s in strategy.axes)


def verify(case: Case, strategy: Strategy, mesh: Mesh) -> None:
    gradient = gradient_of(case)
    locals_ = localise(case, strategy, mesh, gradient)
    outcomes = {at: run_local(local, rank_axes_at(mesh, at)) for at, local in locals_.items()}
    check(case, strategy, mesh, outcomes, run_whole(case, gradient))


def test_every_rule_has_a_sample() -> None:
    assert {case.node.op for case in CASES} == set(registered())


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.sample))
def test_every_strategy_on_one_axis(case: Case) -> None:
    for mesh in MESHES:
        found = case.strategies(mesh)
        assert found, "an operator can always be replicated"
        for strategy in found:
            if not communicates(strategy):
                verify(case, strategy, mesh)


@settings(max_examples=200, deadline=None)
@given(drawn.data())
def test_products_of_strategies_on_two_axes(data: drawn.DataObject) -> None:
    case = data.draw(drawn.sampled_from(CASES), label="case")
    found = [s for s in case.strategies(SQUARE) if not communicates(s)]
    verify(case, data.draw(drawn.sampled_from(found), label="strategy"), SQUARE)


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


@pytest.mark.parametrize("mesh", [Mesh.of(tp=4), SQUARE], ids=str)
def test_every_strategy_that_communicates(pool: RankPool, mesh: Mesh) -> None:
    chosen = [(case, s) for case in CASES for s in case.strategies(mesh) if communicates(s)]
    assert {body for _, s in chosen for _, a in s.axes if (body := a.body)} == {
        "batch_count",
        "batch_part",
        "batch_total",
        "ring_attention",
        "sync_batch_norm",
        "vocab_parallel_cross_entropy",
    }
    gradients = [gradient_of(case) for case, _ in chosen]
    jobs = [localise(case, s, mesh, g) for (case, s), g in zip(chosen, gradients, strict=True)]
    results = pool.run(run_on_ranks, mesh, jobs)
    for n, ((case, strategy), gradient) in enumerate(zip(chosen, gradients, strict=True)):
        outcomes = {at: results[rank][n] for rank, at in enumerate(everywhere(mesh))}
        check(case, strategy, mesh, outcomes, run_whole(case, gradient))
