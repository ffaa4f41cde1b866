"""Local SGD, DiLoCo and gossip of a hand-written program on four ranks: on every mesh, resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autoplan.options import Training
from autoplan.runtime.optim.asynchronous.diloco import OuterSteps
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.asynchronous import Diloco, Gossip, Meet, Simulated, local_sgd
from tests.support.asynchronous_trainings import ADAMW, CLIPPED, LAMB, MOMENTUM, how
from tests.support.sampling import sampled, slow
from tests.support.taken_up import Trained, assert_same, trained

STEPS, EVERY = 5, 2
LOCAL = {
    "dp4": dict(dp=4),
    "dp4, two microbatches": dict(dp=4, microbatches=2),
    "dp2 tp2": dict(dp=2, tp=2, microbatches=2),
    "dp2 pp2": dict(dp=2, pp=2, microbatches=2),
    "dp2 pp2 interleaved": dict(dp=2, pp=2, microbatches=4, virtual_stages=2, pipeline_schedule="interleaved"),
}
SLOWER = replace(ADAMW, outer_learning_rate=0.3, outer_momentum=0.5)
TRAININGS = {"slower": SLOWER, "adamw": ADAMW, "clipped": CLIPPED, "momentum": MOMENTUM, "lamb": LAMB}

RULES = {
    "local": dict(local_steps=EVERY),
    "outer": dict(local_steps=EVERY, outer_optimizer="nesterov"),
    "ring": dict(gossip="ring"),
    "exponential": dict(gossip="exponential", local_steps=EVERY),
}


def made(mesh: Mapping, training: Training, rule: str) -> Program:
    spec = tiny.spec(**mesh, training=training)
    other = RULES[rule]
    spec = replace(spec, parallelism=replace(spec.parallelism, **other))
    return Program(spec, tiny.program(mesh.get("pp", 1) * mesh.get("virtual_stages", 1)))


def train(
    rank: int, world: int, mesh: dict, training: Training, rule: str, folder: str = "", at: int = 0
) -> Trained:
    return trained(lambda: made(mesh, training, rule), STEPS, folder, at)


def simulated(mesh: Mapping, training: Training, rule: str) -> Simulated:
    batches = list(tiny.batches(STEPS))
    microbatches = mesh.get("microbatches", 1)
    meet: Meet | None = None
    if rule == "outer":
        meet = Diloco(tiny.reference(), training.outer_learning_rate, training.outer_momentum)
    elif rule in RULES and "gossip" in RULES[rule]:
        meet = Gossip(rule, mesh["dp"])
    every = 1 if rule == "ring" else EVERY
    return local_sgd(tiny.reference(), batches, mesh["dp"], microbatches, every, how(training), meet)


CASES = [(mesh, "local", "adamw") for mesh in LOCAL]
CASES += [("dp2 tp2", "local", kind) for kind in ("clipped", "momentum", "lamb")]
CASES += [("dp2 pp2", "local", "clipped")]
CASES += [(mesh, "outer", "adamw") for mesh in LOCAL] + [("dp2 pp2", "outer", "slower"), ("dp4", "outer", "clipped")]
CASES += [("dp4", "ring", "adamw"), ("dp2 pp2", "ring", "lamb"), ("dp2 tp2", "exponential", "adamw")]
CASES += [("dp4, two microbatches", "exponential", "clipped")]
QUICK = [*CASES[2 : len(LOCAL) : 2], ("dp2 pp2", "local", "clipped")]
QUICK += [("dp4", "ring", "adamw"), ("dp4, two microbatches", "exponential", "clipped")]
QUICK += [("dp2 pp2 interleaved", "outer", "adamw"), ("dp2 pp2", "outer", "slower")]


@pytest.mark.parametrize(("mesh", "rule", "kind"), sampled(CASES, QUICK))
def test_equals_its_simulation(pool: RankPool, mesh: str, rule: str, kind: str) -> None:
    sizes, training = LOCAL[mesh], TRAININGS[kind]
    results = pool.run(train, sizes, training, rule)
    assert all(losses == results[0][0] for losses, _ in results)
    assert_same(results[0], simulated(sizes, training, rule), 1e-11)


GOING_ON = [slow(("dp4", "local", EVERY)), ("dp2 pp2", "local", 4)]


@pytest.mark.parametrize(("mesh", "rule", "at"), GOING_ON)
def test_goes_on_from_a_checkpoint_as_if_nothing_had_been(
    pool: RankPool, tmp_path: Path, mesh: str, rule: str, at: int
) -> None:
    sizes = LOCAL[mesh]
    found = pool.run(train, sizes, ADAMW, rule, str(tmp_path / "saved"), at)[0]
    assert_same(found, simulated(sizes, ADAMW, rule), 1e-11)


def saved_twice(rank: int, world: int, mesh: dict, folder: str, at: int) -> list[Mapping[str, Tensor]]:
    """After all steps: of a program that saved and went on, and of one that was loaded there."""
    first, batches = made(mesh, ADAMW, "outer"), list(tiny.batches(STEPS))
    first.load_weights(tiny.reference().state_dict())
    programs = [first]
    for step, batch in enumerate(batches, start=1):
        for program in programs:
            program.step(batch)
            program.optimizer.step()
        if step == at:
            first.save_checkpoint(folder)
            programs.append(made(mesh, ADAMW, "outer"))
            programs[1].load_checkpoint(folder)
    return [dict(program.full_state_dict()) for program in programs]


@pytest.mark.parametrize("at", [EVERY + 1, slow(EVERY)])  # within a round, and between two
def test_the_outer_state_is_in_a_checkpoint(pool: RankPool, tmp_path: Path, at: int) -> None:
    """Moments are averaged for it, of the program that goes on, too: so that both go on alike."""
    on, again = pool.run(saved_twice, LOCAL["dp2 pp2"], str(tmp_path / "saved"), at)[0]
    assert on and all(torch.equal(on[name], again[name]) for name in on)


def kept(rank: int, world: int, folder: str) -> tuple[list[bool], bool]:
    """Whether replicas that gossip differ from one another before a checkpoint, and are one after it and loaded."""
    program = made(LOCAL["dp4"], ADAMW, "ring")
    program.load_weights(tiny.reference().state_dict())
    program.step(next(tiny.batches(1)))
    program.optimizer.step()
    alike = []
    for at in ("apart", "saved"):
        if at == "saved":
            program.save_checkpoint(folder)
        mine = torch.cat([h.values.flatten() for h in program.held])
        alike.append(bool(torch.stack([each.eq(mine).all() for each in every(mine)]).all()))
    other = made(LOCAL["dp4"], ADAMW, "ring")
    other.load_checkpoint(folder)
    return alike, torch.equal(mine, torch.cat([h.values.flatten() for h in other.held]))


def every(mine: Tensor) -> list[Tensor]:
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return found


def test_replicas_that_gossip_are_one_in_a_checkpoint(pool: RankPool, tmp_path: Path) -> None:
    assert pool.run(kept, str(tmp_path / "saved")) == [([False, True], True)] * 4


def between(rank: int, world: int, folder: str) -> tuple[Sequence[Mapping[str, Tensor]], bool]:
    """A checkpoint between two averages, and what its program has then; whether all replicas were one after it."""
    program = made(LOCAL["dp4"], ADAMW, "local")
    program.load_weights(tiny.reference().state_dict())
    program.step(next(tiny.batches(1)))
    program.optimizer.step()
    mean = dict(program.full_state_dict())
    program.save_checkpoint(folder)
    mine = torch.cat([h.values.flatten() for h in program.held])
    other = made(LOCAL["dp4"], ADAMW, "local")
    other.load_checkpoint(folder)
    alike = torch.equal(mine, torch.cat([h.values.flatten() for h in other.held]))
    return [dict(mean), dict(other.full_state_dict())], alike


def test_replicas_are_averaged_before_a_checkpoint(pool: RankPool, tmp_path: Path) -> None:
    results = pool.run(between, str(tmp_path / "saved"))
    assert all(alike for _, alike in results)
    mean, loaded = results[0][0]
    for name, value in mean.items():
        torch.testing.assert_close(loaded[name], value, rtol=1e-14, atol=0)


def into_outer(rank: int, world: int, folder: str) -> tuple[bool, bool, list[str]]:
    """A synchronous plan's checkpoint into one with outer updates: whether its first round begins there, at rest; what
    is told of that and of the way back."""
    program = Program(tiny.spec(dp=2, pp=2, microbatches=2, training=ADAMW), tiny.program(2))
    program.load_weights(tiny.reference().state_dict())
    program.save_checkpoint(folder)
    other, told = made(LOCAL["dp2 pp2"], ADAMW, "outer"), list[str]()
    with patch("autoplan.runtime.checkpoint.compatibility.note", told.append):
        program.load_checkpoint(folder)
        other.load_checkpoint(folder)
        assert isinstance(other.local, OuterSteps)
        beside = other.local.beside()
        begins = all(torch.equal(beside["outer"][h.name], h.values) for h in other.held)
        rests = not any(value.any() for value in beside["outer_momentum"].values())
        other.save_checkpoint(f"{folder} too")
        other.load_checkpoint(f"{folder} too")
        program.load_checkpoint(f"{folder} too")
    return begins, rests, [text.partition(": ")[2] for text in told]


def test_a_synchronous_checkpoint_begins_a_round(pool: RankPool, tmp_path: Path) -> None:
    found, kept = pool.run(into_outer, str(tmp_path / "saved")), "what a round of DiLoCo began with and DiLoCo's outer"
    lacks = f"it lacks {kept} momentum: these begin anew, from the parameters that it holds"
    drops = f"it holds {kept} momentum: dropped, for the plan's steps have none"
    assert found == [(True, True, [lacks, drops])] + [(True, True, [])] * 3


def in_small_buckets(rank: int, world: int) -> tuple[list[int], tuple[list[float], Mapping[str, Tensor]]]:
    """How many changes stand whenever an outer optimizer updates, where each bucket has one parameter; and the run."""
    stood: list[int] = []

    def step(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if all(group["lr"] == SLOWER.outer_learning_rate for group in optimizer.param_groups):
            stood.append(sum(p.grad is not None for group in optimizer.param_groups for p in group["params"]))

    handle = register_optimizer_step_pre_hook(step)
    cut = "autoplan.runtime.optim.asynchronous.local_sgd.cut"
    with patch(cut, lambda sizes: [range(n, n + 1) for n in range(len(sizes))]):
        found = train(rank, world, LOCAL["dp4"], SLOWER, "outer")
    handle.remove()
    return stood, found


def test_an_outer_update_has_no_more_than_a_bucket_beside_what_is_kept(pool: RankPool) -> None:
    stood, found = pool.run(in_small_buckets)[0]
    assert set(stood) == {1} and len(stood) >= STEPS // EVERY * len(list(tiny.reference().parameters()))
    assert_same(found, simulated(LOCAL["dp4"], SLOWER, "outer"), 1e-11)
