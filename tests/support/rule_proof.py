"""What the property tests of rules share: the samples as cases, and a strategy held to one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import autoplan.rules.builtin  # noqa: F401  registers them
from autoplan.ir.mesh import Mesh
from autoplan.rules.check.simulate import communicates, gradient_of, simulated
from autoplan.rules.strategies import Strategy
from autoplan.runtime.collectives.mesh_axes import mesh_axes
from autoplan.verify.local_ranks import RankPool
from tests.support.rule_samples import Argument, Sample, samples
from tests.support.simulate import (
    Case,
    Coordinates,
    Local,
    Outcome,
    check,
    everywhere,
    joint_groups,
    localise,
    run_local,
    run_whole,
)

CASES = [Case.of(sample) for sample in samples()]
PAIR, THREE, FOUR = Mesh.of(tp=2), Mesh.of(tp=3), Mesh.of(tp=4)
SQUARE, CUBE = Mesh.of(dp=2, tp=2), Mesh.of(dp=2, tp=2, tp2=2)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.sample))


def alone(case: Case, mesh: Mesh) -> list[Strategy]:
    """The strategies in which no rank needs another one while it computes."""
    return [s for s in case.strategies(mesh) if not communicates(s)]


def together(case: Case, mesh: Mesh) -> list[Strategy]:
    return [s for s in case.strategies(mesh) if communicates(s)]


def verify(case: Case, chosen: Sequence[Strategy], mesh: Mesh) -> None:
    """Strategies of ``alone``, rank after rank."""
    gradient = gradient_of(case)
    whole = run_whole(case, gradient)
    for strategy in chosen:
        check(case, strategy, mesh, simulated(case, strategy, mesh, gradient), whole)


def verify_on_ranks(pool: RankPool, chosen: Sequence[tuple[Case, Strategy]], mesh: Mesh) -> None:
    """Any strategies, on ranks that run side by side."""
    gradients = [gradient_of(case) for case, _ in chosen]
    jobs = [localise(case, s, mesh, g) for (case, s), g in zip(chosen, gradients, strict=True)]
    results = pool.run(run_on_ranks, mesh, jobs)
    for n, ((case, strategy), gradient) in enumerate(zip(chosen, gradients, strict=True)):
        outcomes = {at: results[rank][n] for rank, at in enumerate(everywhere(mesh))}
        check(case, strategy, mesh, outcomes, run_whole(case, gradient))


def run_on_ranks(rank: int, size: int, mesh: Mesh, jobs: list[dict[Coordinates, Local]]) -> list[Outcome]:
    """This rank's part of each job."""
    shape, names = tuple(a.size for a in mesh.axes), mesh.names
    groups = joint_groups(next(iter(job.values())).strategy for job in jobs)
    axes = mesh_axes(mesh, init_device_mesh("cpu", shape, mesh_dim_names=names), groups)
    at = tuple(axes[name].rank for name in names)
    return [run_local(job[at], axes) for job in jobs]


def constant_variants(sample: Sample) -> list[Sample]:
    """The sample with each one of the operands that carry a gradient constant, and with all of them."""
    count = sum(t.requires_grad for t in tensors_of(sample.args))
    ways = [set(range(count))] * (count > 0) + [{i} for i in range(count) if count > 1]
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
