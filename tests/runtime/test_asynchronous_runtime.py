"""Local SGD and PipeDream-2BW of a hand-written program on four ranks: on every mesh, clipped, resumed, on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from autoplan.options import Training
from autoplan.runtime.optim.lamb import Lamb
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.asynchronous import RATE, Batch, How, Simulated, local_sgd, two_versions
from tests.support.sampling import sampled, slow

STEPS, EVERY = 5, 2
LOCAL = {
    "dp4": dict(dp=4),
    "dp4, two microbatches": dict(dp=4, microbatches=2),
    "dp2 tp2": dict(dp=2, tp=2, microbatches=2),
    "dp2 pp2": dict(dp=2, pp=2, microbatches=2),
    "dp2 pp2 interleaved": dict(dp=2, pp=2, microbatches=4, virtual_stages=2, pipeline_schedule="interleaved"),
}
STALE = {
    "pp2": dict(pp=2, dp=2, microbatches=4),
    "pp2, as many microbatches as stages": dict(pp=2, dp=2, microbatches=2),
    "pp4": dict(pp=4, microbatches=4),
    "pp4, more microbatches": dict(pp=4, microbatches=8),
    "pp2 tp2": dict(pp=2, tp=2, microbatches=2),
}
ADAMW = Training(precision="fp64", learning_rate=RATE, compile=False)
CLIPPED = replace(ADAMW, clip_grad_norm=0.05)
MOMENTUM = replace(ADAMW, optimizer="sgd", momentum=0.9)
LAMB = replace(ADAMW, optimizer="lamb")
TRAININGS = {"adamw": ADAMW, "clipped": CLIPPED, "momentum": MOMENTUM, "lamb": LAMB}


def mean_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Of valid tokens; without one, where the module itself has no answer, zero, and so is every gradient."""
    if (batch["labels"] != -100).any():
        return module(**batch)
    return 0.0 * torch.stack([p.sum() for p in module.parameters()]).sum()


def how(training: Training) -> How:
    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        if training.optimizer == "lamb":
            return Lamb(module.parameters(), lr=RATE)
        if training.optimizer == "sgd":
            return torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)
        return torch.optim.AdamW(module.parameters(), lr=RATE)

    return How(mean_loss, optimizer, training.clip_grad_norm)


def made(mesh: Mapping, training: Training, local: bool) -> Program:
    spec = tiny.spec(**mesh, training=training)
    other = dict(local_steps=EVERY) if local else dict(pipeline_schedule="pipedream-2bw")
    spec = replace(spec, parallelism=replace(spec.parallelism, **other))
    return Program(spec, tiny.program(mesh.get("pp", 1) * mesh.get("virtual_stages", 1)))


def train(
    rank: int, world: int, mesh: dict, training: Training, local: bool, folder: str = "", at: int = 0
) -> tuple[list[float], Mapping[str, Tensor]]:
    """A run; with a folder, one that is saved after step ``at`` and gone on with by a new program."""
    program = made(mesh, training, local)
    program.load_weights(tiny.reference().state_dict())
    losses = []
    for step, batch in enumerate(tiny.batches(STEPS), start=1):
        losses.append(program.step(batch).item())
        program.optimizer.step()
        if step == at:
            program.save_checkpoint(folder)
            program = made(mesh, training, local)
            program.load_checkpoint(folder)
            assert program.steps == at
    return losses, program.full_state_dict()


def simulated(mesh: Mapping, training: Training, local: bool) -> Simulated:
    batches = list(tiny.batches(STEPS))
    if not local:
        return two_versions(tiny.reference(), batches, how(training))
    microbatches = mesh.get("microbatches", 1)
    return local_sgd(tiny.reference(), batches, mesh["dp"], microbatches, EVERY, how(training))


def assert_same(found: tuple[list[float], Mapping[str, Tensor]], wanted: Simulated) -> None:
    assert found[0] == pytest.approx(wanted.losses, rel=1e-11)
    for name, value in wanted.parameters.items():
        assert float((found[1][name] - value).norm()) <= 1e-11 * float(value.norm()), name


CASES = [(mesh, True, "adamw") for mesh in LOCAL] + [(mesh, False, "adamw") for mesh in STALE]
CASES += [("dp2 tp2", True, kind) for kind in ("clipped", "momentum", "lamb")]
CASES += [("dp2 pp2", True, "clipped"), ("pp2", False, "clipped"), ("pp4", False, "lamb")]
QUICK = [*CASES[: len(LOCAL) + len(STALE) : 2], ("dp2 pp2", True, "clipped"), ("pp4", False, "lamb")]


@pytest.mark.parametrize(("mesh", "local", "kind"), sampled(CASES, QUICK))
def test_equals_its_simulation(pool: RankPool, mesh: str, local: bool, kind: str) -> None:
    sizes, training = (LOCAL if local else STALE)[mesh], TRAININGS[kind]
    results = pool.run(train, sizes, training, local)
    assert all(losses == results[0][0] for losses, _ in results)
    assert_same(results[0], simulated(sizes, training, local))


@pytest.mark.parametrize(("mesh", "local", "at"), [slow(("dp4", True, EVERY)), ("dp2 pp2", True, 4), ("pp2", False, 3)])
def test_goes_on_from_a_checkpoint_as_if_nothing_had_been(
    pool: RankPool, tmp_path: Path, mesh: str, local: bool, at: int
) -> None:
    sizes = (LOCAL if local else STALE)[mesh]
    found = pool.run(train, sizes, ADAMW, local, str(tmp_path / "saved"), at)[0]
    assert_same(found, simulated(sizes, ADAMW, local))


def between(rank: int, world: int, folder: str) -> tuple[Sequence[Mapping[str, Tensor]], bool]:
    """A checkpoint between two averages, and what its program has then; whether all replicas were one after it."""
    program = made(LOCAL["dp4"], ADAMW, True)
    program.load_weights(tiny.reference().state_dict())
    program.step(next(tiny.batches(1)))
    program.optimizer.step()
    mean = program.full_state_dict()
    program.save_checkpoint(folder)
    mine = torch.cat([h.values.flatten() for h in program.held])
    other = made(LOCAL["dp4"], ADAMW, True)
    other.load_checkpoint(folder)
    alike = torch.equal(mine, torch.cat([h.values.flatten() for h in other.held]))
    return [mean, other.full_state_dict()], alike


def test_replicas_are_averaged_before_a_checkpoint(pool: RankPool, tmp_path: Path) -> None:
    results = pool.run(between, str(tmp_path / "saved"))
    assert all(alike for _, alike in results)
    mean, loaded = results[0][0]
    for name, value in mean.items():
        torch.testing.assert_close(loaded[name], value, rtol=1e-14, atol=0)


def other_way(rank: int, world: int, folder: str) -> bool:
    """A synchronous plan's checkpoint into one with two versions: both are its weights."""
    program = Program(tiny.spec(dp=2, pp=2, microbatches=2, training=ADAMW), tiny.program(2))
    program.load_weights(tiny.reference().state_dict())
    program.save_checkpoint(folder)
    other = made(STALE["pp2"], ADAMW, False)
    other.load_checkpoint(folder)
    assert other.versions is not None
    return all(torch.equal(other.versions.older[h.name], h.values) for h in other.held)


def test_a_synchronous_checkpoint_is_both_versions(pool: RankPool, tmp_path: Path) -> None:
    assert all(pool.run(other_way, str(tmp_path / "saved")))


def test_one_rank_follows_the_rule_of_two_versions() -> None:
    found = train(0, 1, dict(microbatches=2), ADAMW, False)
    assert_same(found, simulated({}, ADAMW, False))
