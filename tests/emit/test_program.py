"""A hand-written program on four ranks equals one device: loss, gradients, parameters, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from autoplan.errors import InputsError, LaunchError, ParallelismError
from autoplan.options import Training
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled, slow

STEPS = 3
MESHES = {
    "dp4": dict(dp=4),
    "dp4 2 microbatches": dict(dp=4, microbatches=2),
    "zero1": dict(dp=4, zero=1, microbatches=2),
    "zero2": dict(dp=4, zero=2, microbatches=2),
    "zero3": dict(dp=4, zero=3, microbatches=2),
    "tp2 dp2": dict(tp=2, dp=2),
    "tp2 dp2 zero1": dict(tp=2, dp=2, zero=1, microbatches=2),
    "tp2 dp2 zero3": dict(tp=2, dp=2, zero=3),
    "pp2 dp2 gpipe": dict(pp=2, dp=2, microbatches=2),
    "pp2 dp2 1f1b": dict(pp=2, dp=2, microbatches=4, pipeline_schedule="1f1b"),
    "pp2 dp2 1f1b, fewer microbatches than stages": dict(pp=2, dp=2, pipeline_schedule="1f1b"),
    "pp4 1f1b, 2 microbatches": dict(pp=4, microbatches=2, pipeline_schedule="1f1b"),
    "pp2 dp2 zero2": dict(pp=2, dp=2, microbatches=2, zero=2),
    "pp2 dp2 zero3": dict(pp=2, dp=2, microbatches=4, zero=3, pipeline_schedule="1f1b"),
    "pp2 tp2": dict(pp=2, tp=2, microbatches=2, pipeline_schedule="1f1b"),
}
SEVERAL_STAGES = dict(pp=2, dp=2, microbatches=4, virtual_stages=2)
MESHES |= {
    "interleaved": dict(**SEVERAL_STAGES, pipeline_schedule="interleaved"),
    "interleaved zero1": dict(**SEVERAL_STAGES, pipeline_schedule="interleaved", zero=1),
    "zero-bubble": dict(**SEVERAL_STAGES, pipeline_schedule="zero-bubble"),
}
OFFLOADED = dict(offload="optimizer")
MESHES |= {
    "zero1 offload": MESHES["zero1"] | OFFLOADED,
    "zero2 offload": MESHES["zero2"] | OFFLOADED,
    "zero3 offload": MESHES["zero3"] | OFFLOADED,
    "tp2 dp2 offload": MESHES["tp2 dp2"] | OFFLOADED,
    "pp2 dp2 1f1b offload": MESHES["pp2 dp2 1f1b"] | OFFLOADED,
}
TRAINING = Training(precision="fp64", learning_rate=1e-2, compile=False)
CLIPPED = Training(precision="fp64", learning_rate=1e-2, clip_grad_norm=0.1, compile=False)
Run = tuple[list[float], Mapping[str, Tensor], Mapping[str, Tensor]]


def every_parameter(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Each under each of its names."""
    return model.named_parameters(remove_duplicate=False)


def one_device(training: Training) -> Run:
    model = tiny.reference()
    optimizer = build_optimizer(model.parameters(), training)
    losses, gradients = [], {}
    for step, batch in enumerate(tiny.batches(STEPS)):
        optimizer.zero_grad()
        loss = model(**batch)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in every_parameter(model) if p.grad is not None}
        if training.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_grad_norm)
        optimizer.step()
    return losses, gradients, model.state_dict()


def stages(mesh: Mapping) -> int:
    return mesh.get("pp", 1) * mesh.get("virtual_stages", 1)


def on_a_rank(rank: int, world: int, mesh: dict, training: Training) -> Run:
    with Program(tiny.spec(**mesh, training=training), tiny.program(stages(mesh))) as program:
        program.load_weights(tiny.reference().state_dict())
        losses, gradients = [], {}
        for step, batch in enumerate(tiny.batches(STEPS)):
            losses.append(program.step(batch).item())
            if step == 0:
                gradients = program.full_grads()
            program.optimizer.step()
        return losses, gradients, dict(program.full_state_dict())


def assert_same(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        difference = (found[name] - wanted[name].detach()).norm() / wanted[name].detach().norm()
        assert difference < 1e-12, f"{name} differs by {difference:.1e} of its norm"


CLIPPED_TOO = ("dp4", "zero2", "zero3 offload", "tp2 dp2", "tp2 dp2 zero3", "pp2 dp2 1f1b", "pp2 tp2")
CASES = [(name, TRAINING) for name in MESHES] + [(name, CLIPPED) for name in CLIPPED_TOO]
# each degree of ZeRO, each schedule, each axis with and without another, gradients and state on device and host
QUICK = [
    *((name, TRAINING) for name in (
        "pp2 dp2 gpipe", "pp2 dp2 zero3", "interleaved zero1", "zero-bubble", "pp2 dp2 1f1b offload",
    )),
    *((name, CLIPPED) for name in ("zero2", "zero3 offload", "pp2 tp2")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "training"), sampled(CASES, QUICK), ids=lambda x: "clipped" if x is CLIPPED else str(x)[:40]
)
def test_equals_one_device(pool: RankPool, name: str, training: Training) -> None:
    mesh = MESHES[name]
    losses, gradients, parameters = one_device(training)
    results = pool.run(on_a_rank, mesh, training)
    for rank, result in enumerate(results):
        assert result[0] == pytest.approx(losses, rel=1e-12), f"the loss on rank {rank}"
        assert (result[1] == {}) == (result[2] == {}) == (rank != 0)
    assert_same(results[0][1], gradients)
    assert_same(results[0][2], parameters)


FROZEN = ("layers.0.scale", "layers.0.bias")


def with_frozen(rank: int, world: int, mesh: dict) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    spec = tiny.spec(**mesh, training=TRAINING)
    stored = tuple(
        replace(p, trainable=False, reduce_axes=()) if p.name in FROZEN else p for p in spec.lowered.parameters
    )
    spec = replace(spec, lowered=replace(spec.lowered, parameters=stored))
    with Program(spec, tiny.program(stages(mesh))) as program:
        program.load_weights(tiny.reference().state_dict())
        program.step(next(tiny.batches(1)))
        program.optimizer.step()
        return program.full_grads(), dict(program.full_state_dict())


@pytest.mark.parametrize("name", [slow("tp2 dp2"), slow("zero1"), "tp2 dp2 zero3", "pp2 dp2 zero2"])
def test_frozen_parameters_stay_as_they_are(pool: RankPool, name: str) -> None:
    model = tiny.reference()
    for frozen in FROZEN:
        model.get_parameter(frozen).requires_grad_(False)
    optimizer = build_optimizer(model.parameters(), TRAINING)
    model(**next(tiny.batches(1))).backward()
    optimizer.step()
    gradients, parameters = pool.run(with_frozen, MESHES[name])[0]
    assert_same(gradients, {n: p.grad for n, p in every_parameter(model) if p.grad is not None})
    assert_same(parameters, model.state_dict())


def with_own_rows(rank: int, world: int, mesh: dict) -> list[float]:
    """The loss where each rank is given its rows of the batch alone: its share of each microbatch."""
    with Program(tiny.spec(**mesh), tiny.program(1)) as program:
        program.load_weights(tiny.reference().state_dict())
        ways, m = mesh["dp"], mesh["microbatches"]
        mine = {
            name: torch.cat([chunk.chunk(ways)[program.axes["dp"].rank] for chunk in whole.chunk(m)])
            for name, whole in next(tiny.batches(1)).items()
        }
        losses = [program.step(mine).item()]
        program.optimizer.zero_grad()
        return [*losses, program.step(tuple(mine.values()), rows="own").item()]


def test_a_rank_may_be_given_its_rows_alone(pool: RankPool) -> None:
    losses, _, _ = one_device(TRAINING)
    for found in pool.run(with_own_rows, dict(dp=2, tp=2, microbatches=2)):
        assert found == pytest.approx([losses[0]] * 2, rel=1e-12)


def clipped_after_another(rank: int, world: int, mesh: dict) -> tuple[Mapping[str, Tensor], float, float, int]:
    with Program(tiny.spec(**mesh), tiny.program(1)) as program:
        program.load_weights(tiny.reference().state_dict())
        for batch in tiny.batches(2):
            program.optimizer.zero_grad()
            program.step(batch)
        before = program.clip_grad_norm_(0.5).item()
        after = program.clip_grad_norm_(1e9).item()
        kept = sum(h.values.numel() for h in program.held)
        return program.full_grads(), before, after, kept


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_gradients_are_one_step_s_and_clip_to_the_norm_asked_for(pool: RankPool, zero: int) -> None:
    model = tiny.reference()
    *_, batch = tiny.batches(2)
    model(**batch).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
    results = pool.run(clipped_after_another, dict(dp=2, tp=2, microbatches=2, zero=zero))
    assert_same(results[0][0], {n: p.grad for n, p in every_parameter(model) if p.grad is not None})
    for _, before, after, _ in results:
        assert (before, after) == pytest.approx((norm, 0.5), rel=1e-6)
    whole = results[0][3] if zero == 0 else None
    if whole is None:
        parts = [kept for *_, kept in results]
        assert sum(parts) == sum(kept for *_, kept in pool.run(clipped_after_another, dict(dp=2, tp=2))) / 2


BATCHES = [
    ({"tokens": torch.zeros(8, 3, dtype=torch.int64)}, "a batch of ['tokens']: the plan's inputs are"),
    ((torch.zeros(8, 3, dtype=torch.int64),) * 3, "a batch of 3 tensors"),
    (
        (torch.zeros(6, 3, dtype=torch.int64), torch.zeros(8, 3, dtype=torch.int64)),
        "tokens of shape (6, 3): the plan is for a batch of (8, 3), of which a rank's rows are (4, 3)",
    ),
    ((torch.zeros(8, 3), torch.zeros(8, 3, dtype=torch.int64)), "tokens of torch.float32: the plan has int64"),
    (([[0] * 3] * 8, torch.zeros(8, 3, dtype=torch.int64)), "tokens of type list: it is no tensor"),
    (None, "a batch of 1 tensors"),
]


def refusals(rank: int, world: int) -> tuple[list[str], float]:
    """What is said of each of these, and the loss of a batch as planned after them."""
    told = []
    with Program(tiny.spec(dp=2, pp=2, microbatches=2), tiny.program(2)) as program:
        program.load_weights(tiny.reference().state_dict())
        for batch, _ in BATCHES:
            with pytest.raises(InputsError) as caught:
                program.step(batch)  # type: ignore[arg-type]
            told.append(str(caught.value))
        return told, program.step(next(tiny.batches(1))).item()


def test_another_batch_is_an_error_that_says_what_the_plan_is_for(pool: RankPool) -> None:
    losses, _, _ = one_device(TRAINING)
    for told, loss in pool.run(refusals):
        assert all(said in text for text, (_, said) in zip(told, BATCHES, strict=True)), told
        assert loss == pytest.approx(losses[0], rel=1e-12)


PLANS = [
    (dict(dp=2), LaunchError, "4 processes: the plan needs 2 processes, there are 4. start it with torchrun"),
    (dict(dp=4, training=Training(optimizer="lbfgs")), ParallelismError, "optimizer='lbfgs': it computes loss and"),
    (dict(dp=2, pp=2, virtual_stages=2), ParallelismError, "a rank has 2 stages"),
]


def refused(rank: int, world: int) -> list[str]:
    """What is said of each of these plans."""
    found = []
    for plan, error, _ in PLANS:
        with pytest.raises(error) as caught:
            Program(tiny.spec(**plan), tiny.program(stages(plan))).close()  # type: ignore[arg-type]
        found.append(str(caught.value))
    return found


def test_what_cannot_run_is_said_before_anything_runs(pool: RankPool) -> None:
    for told in pool.run(refused):
        assert all(said in text for text, (*_, said) in zip(told, PLANS, strict=True)), told


def test_one_device_needs_no_launcher() -> None:
    losses, _, parameters = one_device(TRAINING)
    found = on_a_rank(0, 1, dict(microbatches=2), TRAINING)
    assert found[0] == pytest.approx(losses, rel=1e-12)
    assert_same(found[2], parameters)


def test_outside_torchrun_a_larger_plan_says_how_to_start_it() -> None:
    with pytest.raises(LaunchError, match=r"needs 4 processes, there is 1\. start it with torchrun --nproc-per"):
        Program(tiny.spec(dp=2, tp=2), tiny.program(1))
