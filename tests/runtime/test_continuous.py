"""Pipelines without a flush, of a hand-written program on four ranks: by their rules, drained, resumed, refused."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autoplan.errors import DivergedError, InputsError
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.runtime.continuous import kept
from autoplan.runtime.optim.updates import guarded
from autoplan.runtime.parallel.sharded_parameter import local
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from cost_models.pipeline.schedule import behind, gradients_held, weight_versions
from tests.fixtures import tiny_program as tiny
from tests.support.asynchronous import How, Simulated, older_weights, told
from tests.support.asynchronous_trainings import ADAMW, CLIPPED, LAMB, MOMENTUM, how
from tests.support.sampling import sampled
from tests.support.taken_up import Trained, assert_same, trained

STEPS = 7
PLAIN, VERTICAL, TWO = "pipedream", "pipedream-vertical-sync", "pipedream-2bw"
MESHES = {
    "pp4": dict(pp=4, microbatches=1),
    "pp4, two": dict(pp=4, microbatches=2),
    "pp4, four": dict(pp=4, microbatches=4),
    "pp4, eight": dict(pp=4, microbatches=8),
    "pp2": dict(pp=2, dp=2, microbatches=1),
    "pp2, two": dict(pp=2, dp=2, microbatches=2),
    "pp2 tp2": dict(pp=2, tp=2, microbatches=2),
}
WARMED = replace(MOMENTUM, lr_schedule=LRSchedule("linear", steps=9, warmup=3))
TRAININGS = {"adamw": ADAMW, "momentum": MOMENTUM, "warmed": WARMED, "clipped": CLIPPED, "lamb": LAMB}
CASES = [(mesh, schedule, "adamw") for mesh in MESHES for schedule in (PLAIN, VERTICAL)]
CASES += [(mesh, TWO, "adamw") for mesh in ("pp4, four", "pp4, eight", "pp2, two", "pp2 tp2")]
CASES += [("pp4", PLAIN, "momentum"), ("pp4, two", PLAIN, "warmed"), ("pp4, four", TWO, "warmed")]
CASES += [("pp2", VERTICAL, "clipped"), ("pp4, four", TWO, "clipped"), ("pp4, four", TWO, "lamb")]
QUICK = [("pp4", PLAIN, "momentum"), ("pp4", VERTICAL, "adamw"), ("pp4, two", PLAIN, "warmed")]
QUICK += [("pp4, four", TWO, "clipped"), ("pp2 tp2", TWO, "adamw")]


def made(mesh: Mapping, schedule: str, training: Training = ADAMW) -> Program:
    spec = tiny.spec(**mesh, training=training)
    spec = replace(spec, parallelism=replace(spec.parallelism, pipeline_schedule=schedule))
    return Program(spec, tiny.program(mesh["pp"]))


def train(
    rank: int, world: int, mesh: dict, schedule: str, training: Training, folder: str = "", at: int = 0
) -> Trained:
    return trained(lambda: made(mesh, schedule, training), STEPS, folder, at)


def ages(mesh: Mapping, schedule: str) -> tuple[Callable[[str], int], int]:
    """(updates by which a parameter's gradients are late, steps by which losses are): the embedding is the head, too,
    so that the last stage is as late as the first."""
    d, m = mesh["pp"], mesh["microbatches"]
    if schedule == TWO:
        return lambda name: 1, 1
    first = math.ceil((d - 1) / m)
    own = {f"layers.{n}": math.ceil((d - 2 - n) / m) for n in (0, 1)} if schedule == PLAIN and d == 4 else {}
    return lambda name: own.get(name[:8], first), first


def simulated(mesh: Mapping, schedule: str, training: Training, drained: tuple[int, ...] = ()) -> Simulated:
    of, late = ages(mesh, schedule)
    batches = list(tiny.batches(STEPS))
    found = older_weights(tiny.reference(), batches, with_rates(training), of=of, drained=drained)
    return replace(found, losses=told(found.losses, late, drained))


def with_rates(training: Training) -> How:
    """Update k of a schedule that rises for three updates, and has fallen after nine, has its rate wherever it is
    made."""
    plain = how(training)
    if training.lr_schedule is None:
        return plain

    def optimizer(module: torch.nn.Module) -> torch.optim.Optimizer:
        made = plain.optimizer(module)
        rates = torch.optim.lr_scheduler.LambdaLR(made, lambda k: min((k + 1) / 4, max(0.0, (9 - k) / 6)))
        made.register_step_post_hook(lambda *_: rates.step())
        return made

    return replace(plain, optimizer=optimizer)


@pytest.mark.parametrize(("mesh", "schedule", "kind"), sampled(CASES, QUICK))
def test_equals_its_rule_in_one_process(pool: RankPool, mesh: str, schedule: str, kind: str) -> None:
    results = pool.run(train, MESHES[mesh], schedule, TRAININGS[kind])
    assert all(losses == results[0][0] for losses, _ in results)
    assert_same(results[0], simulated(MESHES[mesh], schedule, TRAININGS[kind]), 1e-11)


@pytest.mark.parametrize(("mesh", "schedule"), sampled([("pp4", PLAIN), ("pp4, four", TWO)], [("pp4", PLAIN)]))
def test_a_checkpoint_is_of_a_drained_pipeline(pool: RankPool, tmp_path: Path, mesh: str, schedule: str) -> None:
    """A run that goes on from it is the rule whose older versions end there, and so is the one that was saved."""
    rule = simulated(MESHES[mesh], schedule, ADAMW, (3,))
    resumed = pool.run(train, MESHES[mesh], schedule, ADAMW, str(tmp_path / "saved"), 3)[0]
    gone_on = pool.run(saved_and_gone_on, MESHES[mesh], schedule, str(tmp_path / "on"))[0]
    assert_same(resumed, rule, 1e-11)
    assert_same(gone_on, rule, 1e-11)


def saved_and_gone_on(rank: int, world: int, mesh: dict, schedule: str, folder: str) -> Trained:
    program = made(mesh, schedule)
    program.load_weights(tiny.reference().state_dict())
    losses = []
    for step, batch in enumerate(tiny.batches(STEPS), start=1):
        losses.append(program.step(batch).item())
        program.optimizer.step()
        program.optimizer.zero_grad()
        if step == 3:
            program.save_checkpoint(folder)
    return losses, dict(program.full_state_dict())


def in_half(rank: int, world: int, schedule: str) -> Trained:
    """Under bf16-mixed: versions are of what is computed with, beside masters that an update publishes."""
    mixed = replace(MOMENTUM, precision="bf16-mixed")
    spec = tiny.in_dtype(tiny.spec(pp=4, microbatches=4, training=mixed), "bfloat16")
    spec = replace(spec, parallelism=replace(spec.parallelism, pipeline_schedule=schedule))
    return trained(lambda: Program(spec, tiny.program(4)), STEPS)


def test_mixed_precision_follows_the_rule(pool: RankPool) -> None:
    losses, parameters = pool.run(in_half, TWO)[0]
    wanted = simulated(MESHES["pp4, four"], TWO, MOMENTUM)
    assert losses == pytest.approx(wanted.losses, rel=2e-2)
    for name, begun in tiny.reference().named_parameters():
        moved, apart = wanted.parameters[name] - begun.detach(), parameters[name].double() - wanted.parameters[name]
        assert float(apart.norm()) <= 0.1 * float(moved.norm()), name


def held(rank: int, world: int, mesh: dict, schedule: str) -> list[tuple[int, int, int]]:
    """After each step (microbatches in flight, versions of the weights, gradients of batches) on this rank."""
    program = made(mesh, schedule)
    program.load_weights(tiny.reference().state_dict())
    found = []
    for batch in tiny.batches(STEPS):
        program.step(batch)
        steps = program.continuous
        assert steps is not None
        due = {h.name: h.parameter.grad for h in steps.held}
        parts = [*steps.waiting, steps.partial, due]
        gradients = sum(any(g is not None for g in part.values()) for part in parts)
        lasting = {h.name for bucket in steps.sums.buckets for h in bucket.held}
        used = [weakref.ref(g.untyped_storage()) for n, g in due.items() if g is not None and n not in lasting]
        program.optimizer.step()
        program.optimizer.zero_grad()
        due.clear()
        assert all(one() is None for one in used), "gradients that are used stand beside those of the next step"
        versions = 1 + len(steps.versions.memory) + len(steps.versions.spare)
        found.append((len(steps.engine.stage.kept), versions, gradients))
    program.close()
    return found


@pytest.mark.parametrize(("mesh", "schedule"), [("pp4", PLAIN), ("pp4, eight", TWO)])
def test_it_stays_full_and_holds_what_the_account_says(pool: RankPool, mesh: str, schedule: str) -> None:
    """No step waits for its own last backwards: the steady state is Narayanan et al.'s, of which prices are."""
    sizes = MESHES[mesh]
    versions = weight_versions(schedule, 4, sizes["microbatches"])
    gradients = list(gradients_held(schedule, 4, sizes["microbatches"]))
    gradients[-1] += 3 if schedule == PLAIN else 0  # as late as the first, whose weights it shares
    for rank, found in enumerate(pool.run(held, sizes, schedule)):
        assert found[-1] == (behind(schedule, rank, 4), versions[rank], gradients[rank])
        assert max(in_flight for in_flight, _, _ in found) == behind(schedule, rank, 4)


SAID = ("no one norm", "not used yet", "empties the pipeline", "one larger batch")


def refused(rank: int, world: int) -> list[str]:
    program = made(MESHES["pp4"], PLAIN)
    program.load_weights(tiny.reference().state_dict())
    batches: list[dict[str, Tensor]] = list(tiny.batches(3))
    program.step(batches[0])
    said = []
    for call in (
        lambda: program.clip_grad_norm_(1.0),
        lambda: program.step(batches[1]),
        lambda: program.save_checkpoint("nowhere"),
    ):
        with pytest.raises(InputsError) as error:
            call()
        said.append(str(error.value))
    program.optimizer.step()
    with pytest.raises(InputsError) as error:
        program.step(batches[1], accumulate=True)
    program.close()
    return [*said, str(error.value)]


def test_what_it_can_not_do_is_said(pool: RankPool) -> None:
    for said in pool.run(refused):
        for words, text in zip(SAID, said, strict=True):
            assert words in text


def test_a_batch_in_flight_is_the_program_s_own() -> None:
    rows = torch.arange(4)
    found = kept({"tokens": tuple(rows.view(2, 2)), "microbatches": (2, 2)})
    rows.zero_()
    assert torch.equal(torch.stack(tuple(found["tokens"])), torch.arange(4).view(2, 2))  # type: ignore[arg-type]
    assert found["microbatches"] == (2, 2)


def fed(mesh: str, schedule: str, count: int, late: bool = False) -> Program:
    """A program after so many good batches; ``late``: its kernels take a flag, as an accelerator's do."""
    program = made(MESHES[mesh], schedule)
    program.updates.late = late
    assert not late or guarded(program.optimizer, program.device)
    program.load_weights(tiny.reference().state_dict())
    for batch in tiny.batches(count):
        program.step(batch)
        program.optimizer.step()
    return program


def values_of(program: Program) -> dict[str, Tensor]:
    """This rank's part of the parameters."""
    return {name: local(value).clone() for name, value in program.state_dict().items()}


def bad_batch() -> dict[str, Tensor]:
    """No label counts, so loss and gradients are 0/0."""
    (batch,) = tiny.batches(1)
    return {**batch, "labels": torch.full_like(batch["labels"], -100)}


def drained_with_a_bad_loss(rank: int, world: int, mesh: str, schedule: str) -> tuple[str, bool]:
    """The error; and whether parameters are those of the batches before."""
    with fed(mesh, schedule, 2) as program:
        program.step(bad_batch())
        program.optimizer.step()
        with pytest.raises(DivergedError) as error:
            program.state_dict()
        found = values_of(program)
    with fed(mesh, schedule, 2) as program:
        wanted = values_of(program)
    return str(error.value), all(torch.equal(value, wanted[name]) for name, value in found.items())


@pytest.mark.parametrize(("mesh", "schedule"), [("pp4", PLAIN), ("pp4, four", TWO)])
def test_a_loss_that_a_drain_tells_is_of_its_own_step_and_updates_nothing(
    pool: RankPool, mesh: str, schedule: str
) -> None:
    for text, same in pool.run(drained_with_a_bad_loss, mesh, schedule):
        assert "at step 3:" in text and same


def fed_a_bad_batch(rank: int, world: int, mesh: str, schedule: str, late: bool) -> tuple[str, int, set[int]]:
    """The error of a step, after how many it is told, and how often parameters have been updated once all is drained.
    """
    with fed(mesh, schedule, 2, late) as program:
        batches, taken = iter([bad_batch(), *tiny.batches(4)]), 2
        with pytest.raises(DivergedError) as error:
            while True:
                taken += 1
                program.step(next(batches))
                program.optimizer.step()
        program.optimizer.step()
        values_of(program)
        updates = {int(kept["step"]) for kept in program.optimizer.state.values()}
    return str(error.value), taken, updates


@pytest.mark.parametrize(("mesh", "schedule", "flagged"), [
    ("pp4", PLAIN, False), ("pp4, two", VERTICAL, False), ("pp4, four", TWO, False), ("pp4", PLAIN, True),
])  # fmt: skip
def test_no_stage_updates_by_a_loss_that_is_not_finite(
    pool: RankPool, mesh: str, schedule: str, flagged: bool
) -> None:
    """Under PipeDream stages update at different steps, the last ones long before all are told. All go on."""
    late = {"pp4": 3, "pp4, two": 2, "pp4, four": 1}[mesh]
    for text, taken, updates in pool.run(fed_a_bad_batch, mesh, schedule, flagged):
        assert "at step 3:" in text and taken == 3 + late and updates == {taken - 1}
