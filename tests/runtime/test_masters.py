"""Mixed precision: what is computed with is its float32 master rounded, whatever has set the master."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autoplan.options import Training
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled

PLANS = {
    "dp4": dict(dp=4, microbatches=2),
    "dp2 tp2": dict(dp=2, tp=2, microbatches=2),
    "tied over pp2": dict(pp=2, dp=2, microbatches=2, pipeline_schedule="1f1b"),
    "zero-bubble": dict(pp=2, tp=2, microbatches=2, virtual_stages=2, pipeline_schedule="zero-bubble"),
    "offload": dict(dp=4, microbatches=2, offload="optimizer"),
    "zero1": dict(dp=4, microbatches=2, zero=1),
    "zero3": dict(dp=2, tp=2, microbatches=2, zero=3),
    "zero2 offload": dict(dp=4, microbatches=2, zero=2, offload="optimizer"),
}
UNSHARDED = ("dp4", "dp2 tp2", "tied over pp2", "zero-bubble", "offload")
HALVES = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}
SGD = dict(optimizer="sgd", learning_rate=0.5, momentum=0.0, weight_decay=0.0, compile=False)


def made(plan: str, precision: str = "bf16-mixed", **training: object) -> Program:
    how = Training(precision=precision, **{"learning_rate": 1e-2, "compile": False, **training})  # type: ignore[arg-type]
    spec = tiny.in_dtype(tiny.spec(**PLANS[plan], training=how), HALVES[precision])  # type: ignore[arg-type]
    program = Program(spec, tiny.program(len(spec.lowered.stages)))
    program.load_weights({name: value.float() for name, value in tiny.reference().state_dict().items()})
    return program


def rounded(program: Program) -> bool:
    """Whether every parameter that has a master is it, rounded."""
    behind = [h for h in program.held if h.master is not None]
    return all(torch.equal(h.parameter.detach().to(h.values.device), h.values.to(h.parameter.dtype)) for h in behind
               if not h.sharded)  # fmt: skip


def followed(rank: int, world: int, plan: str, precision: str, folder: str) -> dict[str, tuple[bool, Tensor]]:
    """After each thing that sets a program's values: whether what is computed with followed; and the values."""
    found = {}

    def look(what: str) -> None:
        found[what] = rounded(program), torch.cat([h.values.flatten() for h in program.held]).clone()

    with made(plan, precision) as program:
        look("load_weights")
        for batch in tiny.batches(2):
            program.step(batch)
            look("step")
            program.optimizer.step()
        look("update")
        program.save_checkpoint(Path(folder) / "step-2")
        state = {name: value.clone() for name, value in program.state_dict().items()}
        program.step(next(tiny.batches(1)))
        program.optimizer.step()
        look("another update")
        program.load_state_dict(state)
        look("load_state_dict")
        program.load_checkpoint(Path(folder) / "step-2")
        look("load_checkpoint")
        assert {h.values.dtype for h in program.held} == {torch.float32}
        return found


@pytest.mark.parametrize("precision", sampled(HALVES, ["bf16-mixed"]))
@pytest.mark.parametrize("plan", sampled(PLANS, ["tied over pp2", "zero2 offload"]))
def test_what_is_computed_with_follows_its_master(pool: RankPool, plan: str, precision: str, tmp_path: Path) -> None:
    for found in pool.run(followed, plan, precision, str(tmp_path)):
        assert all(follows for follows, _ in found.values()), found
        values = {what: value for what, (_, value) in found.items()}
        assert torch.equal(values["load_state_dict"], values["update"])
        assert torch.equal(values["load_checkpoint"], values["update"])
        assert not torch.equal(values["another update"], values["update"]) or not len(values["update"])


def held_bytes(rank: int, world: int, plan: str) -> tuple[set, set, int]:
    """Dtypes of what modules hold and of its gradients, and how many masters there are."""
    with made(plan) as program:
        program.step(next(tiny.batches(1)))
        plain = [h for h in program.held if not h.sharded]
        return (
            {h.parameter.dtype for h in plain}, {h.gradient.dtype for h in plain if h.gradient is not None},
            sum(h.master is not None for h in program.held),
        )  # fmt: skip


@pytest.mark.parametrize("plan", sampled(UNSHARDED, ["dp4", "zero-bubble"]))
def test_modules_hold_half_and_gradients_are_float32(pool: RankPool, plan: str) -> None:
    for dtypes, gradients, masters in pool.run(held_bytes, plan):
        assert dtypes == {torch.bfloat16} and gradients == {torch.float32} and masters


def test_shards_are_their_own_masters(pool: RankPool) -> None:
    for plan in ("zero1", "zero3"):
        assert all(masters == 0 for _, _, masters in pool.run(held_bytes, plan))


def overflowing(rank: int, world: int, plan: str) -> list[tuple[bool, bool, Tensor]]:
    """Of three steps the second overflows on the last rank; the scale is one at which the others don't."""
    found = []
    with made(plan, "fp16-mixed") as program:
        scaling = program.updates.scaling
        assert scaling is not None
        scaling.load_state_dict(scaling.state_dict() | {"scale": 16.0})
        unscale = scaling.unscale
        for step, batch in enumerate(tiny.batches(3)):
            if step == 1 and rank == world - 1:
                scaling.unscale = spoilt(program, unscale)  # type: ignore[method-assign]
            program.step(batch)
            scaling.unscale = unscale  # type: ignore[method-assign]
            program.optimizer.step()
            values = torch.cat([h.values.flatten() for h in program.held]).clone()
            found.append((program.skipped, rounded(program), values))
    return found


def spoilt(program: Program, unscale: Callable[[int], bool]) -> Callable[[int], bool]:
    def run(step: int) -> bool:
        gradient = next(h.gradient for h in program.held if h.gradient is not None and h.gradient.numel())
        gradient.view(-1)[0] = torch.inf
        return unscale(step)

    return run


@pytest.mark.parametrize("plan", sampled(PLANS, ["tied over pp2", "offload"]))
def test_an_overflow_leaves_masters_and_parameters_alone(pool: RankPool, plan: str) -> None:
    for first, second, third in pool.run(overflowing, plan):
        assert [skipped for skipped, _, _ in (first, second, third)] == [False, True, False]
        assert first[1] and second[1] and third[1]
        assert torch.equal(first[2], second[2]) and not torch.equal(second[2], third[2])


def clipped(rank: int, world: int, plan: str) -> tuple[float, float, dict, dict, dict]:
    with made(plan, **SGD) as program:
        before = dict(program.full_state_dict())
        program.step(next(tiny.batches(1)))
        norm = float(program.clip_grad_norm_(0.01))
        again, gradients = float(program.clip_grad_norm_(1.0)), program.full_grads()
        program.optimizer.step()
        return norm, again, before, gradients, dict(program.full_state_dict())


@pytest.mark.parametrize("plan", sampled(PLANS, ["tied over pp2", "zero3"]))
def test_masters_step_by_the_clipped_float32_gradient(pool: RankPool, plan: str) -> None:
    norm, again, before, gradients, after = pool.run(clipped, plan)[0]
    assert norm > 0.02 and again == pytest.approx(0.01, rel=1e-4)
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32
        assert torch.equal(after[name], before[name] - 0.5 * gradient)


def gradients_of_the_optimizer(rank: int, world: int) -> list[bool]:
    """Between a step and the update a script finds gradients on what the optimizer has; none after zero_grad."""
    with made("dp4") as program:
        parameters = [p for group in program.optimizer.param_groups for p in group["params"]]
        program.step(next(tiny.batches(1)))
        found = [all(p.grad is not None and p.grad.dtype == torch.float32 for p in parameters)]
        program.optimizer.zero_grad()
        found.append(all(p.grad is None for p in parameters) and all(h.gradient is None for h in program.held))
        return found


def test_a_script_finds_the_gradients(pool: RankPool) -> None:
    assert all(all(found) for found in pool.run(gradients_of_the_optimizer))


def resumed(rank: int, world: int, plan: str, folder: str, saves: bool) -> dict[str, Tensor]:
    with made(plan) as program:
        if saves:
            for batch in tiny.batches(2):
                program.step(batch)
                program.optimizer.step()
            program.save_checkpoint(Path(folder) / "step-2")
        else:
            program.load_checkpoint(Path(folder) / "step-2")
        return dict(program.full_state_dict())


AWAY = ("zero3", "dp2 tp2")


@pytest.mark.parametrize(("one", "other"), sampled([("dp4", "zero1"), AWAY, ("offload", "zero2 offload")], [AWAY]))
def test_checkpoints_go_from_masters_to_shards_and_back(
    pool: RankPool, one: str, other: str, tmp_path: Path
) -> None:
    saved, loaded = (pool.run(resumed, plan, str(tmp_path), plan == one)[0] for plan in (one, other))
    assert saved.keys() == loaded.keys()
    for name, value in saved.items():
        assert torch.equal(value, loaded[name]) and value.dtype == loaded[name].dtype
        assert not torch.equal(value, value.bfloat16().float()) or name == "shift", f"{name} was rounded"


