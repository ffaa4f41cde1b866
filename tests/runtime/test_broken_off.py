"""What follows a step, an evaluation or an update that an exception broke off: errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional

import autoplan
from autoplan.errors import InputsError, LostRankError, WeightsError
from autoplan.options import Parallelism, Training
from autoplan.runtime.broken_off import BrokenOff
from autoplan.runtime.inference.pipelined_forward import PipelinedForward
from autoplan.runtime.pipeline.stage import PipelineStage
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.bench.pairs.measured import Calls
from tests.fixtures import tiny_program as tiny
from tests.support.planning import parallelize_alone

ADAMW = Training("adamw", "fp64", 1e-2, compile=False)


def out_of_memory(*_: object, **__: object) -> None:
    raise MemoryError("a buffer of 3 GB\nand more")


def made(**plan: Any) -> Program:
    spec = tiny.spec(**plan, training=ADAMW)
    program = Program(spec, tiny.program(len(spec.lowered.stages)))
    program.load_weights(tiny.reference().state_dict())
    return program


def update(program: Program, batch: dict[str, Tensor]) -> float:
    loss = program.step(batch)
    program.optimizer.step()
    return float(loss)


def breaking(owner: object, name: str, act: Callable[[], object]) -> None:
    """Calls it where one function of it raises; another rank may see the connection end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, out_of_memory)
        with pytest.raises((MemoryError, RuntimeError)):
            act()


def refused(kind: type[Exception], *acts: Callable[[], object]) -> list[str]:
    found = []
    for act in acts:
        with pytest.raises(kind) as error:
            act()
        found.append(str(error.value))
    return found


def after_a_step(rank: int, world: int) -> tuple[list[str], bool]:
    """Errors after one whose first backward breaks off, while messages are on their way."""
    first, second = tiny.batches(2)
    with made(pp=2, dp=2, microbatches=2, zero=1) as program:
        update(program, first)
        breaking(PipelineStage, "backward", lambda: program.step(first))  # the first stage waits until the last ends
        found = refused(LostRankError, lambda: program.step(second), lambda: program.evaluate(second))
    return found, program.closed


def test_no_step_follows_one_whose_messages_are_on_their_way(pool: RankPool) -> None:
    found = pool.run(after_a_step)
    assert any("program.step after a step that broke off with MemoryError: a buffer of 3 GB:" in t[0] for t, _ in found)
    for texts, closed in found:
        assert closed and all("broke off with" in text and "from a checkpoint" in text for text in texts)


def squares(prediction: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(prediction, target)


def after_an_evaluation(rank: int, world: int, folder: str) -> list[str]:
    batch = torch.ones(8, 4), torch.ones(8, 4)
    with autoplan.load(folder).program() as program:
        program.init_weights()
        program.step(batch)
        breaking(PipelinedForward, "run", lambda: program.evaluate(batch))
        acts = lambda: program.step(batch), lambda: program.evaluate(batch), program.optimizer.step
        return refused(LostRankError, *acts)


def test_nothing_follows_an_evaluation_that_broke_off(pool: RankPool, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    how = Parallelism(dp=2, tp=2)
    batch = torch.ones(8, 4), torch.ones(8, 4)
    plan = parallelize_alone(module, "1x4 cpu", batch, loss_fn=squares, training=ADAMW, parallelism=how)
    plan.export(tmp_path / "plan")
    for texts in pool.run(after_an_evaluation, str(tmp_path / "plan")):
        assert len(texts) == 3 and all("after a forward that broke off with MemoryError" in text for text in texts)


def test_alone_the_next_step_begins_anew() -> None:
    first, second = tiny.batches(2)
    with made() as program, made() as other:
        breaking(Tensor, "backward", lambda: program.step(first))
        assert [update(program, b) for b in (first, second)] == [update(other, b) for b in (first, second)]


def test_an_update_that_broke_off_ends_at_the_last_checkpoint(tmp_path: Path) -> None:
    first, second = tiny.batches(2)
    with made() as program:
        update(program, first)
        program.save_checkpoint(tmp_path / "step-1")
        kept = {name: value.clone() for name, value in program.state_dict().items()}
        program.step(second)
        breaking(torch, "_fused_adamw_", program.optimizer.step)
        acts = (
            lambda: program.step(second), lambda: program.save_checkpoint(tmp_path / "step-2"), program.state_dict,
            lambda: program.save_weights(tmp_path / "weights"), program.full_state_dict, program.optimizer.step,
        )  # fmt: skip
        for text in refused(WeightsError, *acts):
            assert "after an update that broke off" in text and "load_checkpoint(path)" in text
        assert not (tmp_path / "step-2").exists() and not (tmp_path / "weights").exists()
        program.load_checkpoint(tmp_path / "step-1")
        assert all(torch.equal(value, kept[name]) for name, value in program.state_dict().items())
        update(program, second)


def test_a_hook_that_ends_an_update_before_it_writes_ends_nothing_else() -> None:
    first, second = tiny.batches(2)
    with made() as program, made() as other:
        assert update(program, first) == update(other, first)
        hook = program.optimizer.register_step_pre_hook(out_of_memory)
        program.step(second)
        with pytest.raises(MemoryError):
            program.optimizer.step()
        hook.remove()
        program.optimizer.step()
        update(other, second)
        mine, wanted = program.state_dict(), other.state_dict()
        assert all(torch.equal(mine[name], wanted[name]) for name in wanted)


def test_a_closure_is_refused_before_anything_is_computed() -> None:
    first, second = tiny.batches(2)
    with made() as program:
        with pytest.raises(InputsError, match="closure"):
            program.optimizer.step(lambda: program.step(first))  # type: ignore[arg-type]
        update(program, second)


def operators_of_an_update(rank: int, world: int) -> list[int]:
    """That run as an update of sharded parameters begins; and the versions before and after it."""
    mesh = init_device_mesh("cpu", (world,))
    parameter = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
    optimizer = torch.optim.Adam([parameter], 1.0)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    broken = BrokenOff(alone=False)
    with Calls() as called:
        broken.update(optimizer)
    before = broken.before
    optimizer.step()
    return [called.calls.total(), sum(before), sum(broken.versions())]


def test_what_an_update_has_written_is_known_without_an_operator(pool: RankPool) -> None:
    for operators, before, after in pool.run(operators_of_an_update):
        assert operators == 0 and after > before


def test_a_rule_that_no_longer_writes_its_state_is_known_by_the_parameter() -> None:
    """As where a schedule has set a momentum to 0."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], 0.1, momentum=0.9)
    parameter.grad = torch.ones(3)
    optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.0
    broken = BrokenOff(alone=True)
    broken.update(optimizer)
    before = broken.before
    optimizer.step()
    assert sum(broken.versions()) > sum(before)
