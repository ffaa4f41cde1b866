"""The plan as a user holds it, and parallelize."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import autoplan
from autoplan.errors import AutoplanError, DoesNotFitError, InputsError, LaunchError, NoRuleError, TraceError
from tests.support import zoo
from tests.support.planning import parallelize_alone


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return self.down(self.up(x).relu())


INPUTS = (torch.zeros(8, 16), torch.zeros(8, 16))


@pytest.fixture(scope="module")
def plan() -> autoplan.Plan:
    module, batch, _ = zoo.small("llama")
    return autoplan.parallelize(module, "1x4 cpu", batch, parallelism=autoplan.Parallelism(dp=2, tp=2))


def test_every_field_of_the_parallelism_is_filled(plan):
    assert (plan.parallelism.dp, plan.parallelism.tp, plan.parallelism.pp) == (2, 2, 1)
    for name in ("zero", "micro_batch", "pipeline_schedule", "virtual_stages", "recompute", "sequence_parallel"):
        assert getattr(plan.parallelism, name) is not None


def test_predictions_are_positive_and_fit(plan):
    predicted = plan.predicted
    assert predicted.step_time_s > 0 and predicted.tokens_per_s > 0 and 0 < predicted.mfu < 1
    assert len(predicted.peak_bytes) == 1
    assert 0 < predicted.peak_bytes[0].total <= plan.record.cluster.usable_bytes
    assert 0 <= plan.search.optimality_gap <= 0.02  # the bound that comes for free
    assert {a.name for a in plan.alternatives} >= {"plain data parallel", "ZeRO-3", "tensor parallel in the node"}


def test_the_plan_is_data(plan):
    data = plan.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["plan"] == str(plan)
    assert str(plan) in repr(plan) and len(repr(plan)) < 300
    assert plan.report().splitlines()[0] in plan._repr_html_()


def test_a_loaded_plan_is_the_plan(plan, tmp_path):
    again = autoplan.load(plan.export(tmp_path / "out"))
    start = again.record.start  # its values now lie in files
    assert [file.name for file in start.files] == ["model.safetensors"]
    assert plan.record.start == replace(start, files=())
    assert replace(again.record, start=plan.record.start) == plan.record
    assert again.report(verbose=True) == plan.report(verbose=True)


def test_a_program_needs_as_many_processes_as_the_plan(plan, tmp_path):
    again = autoplan.load(plan.export(tmp_path / "out"))
    with pytest.raises(LaunchError, match="4"):
        again.program()


def test_the_users_model_is_left_as_it_was():
    module, batch, _ = zoo.small("gpt2")
    module.eval()
    before, config = copy.deepcopy(module.state_dict()), module.config.to_dict()
    parallelize_alone(module, "1x2 cpu", batch)
    assert not module.training and module.config.to_dict() == config
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values(), strict=True))


def test_the_same_input_gives_the_same_plan_byte_for_byte(tmp_path):
    texts = []
    for name in ("a", "b"):
        plan = parallelize_alone(Mlp(), "1x4 cpu", INPUTS, loss_fn=nn.functional.mse_loss)
        folder = plan.export(tmp_path / name)
        texts.append((folder / "program.py").read_text())
    assert texts[0] == texts[1]


def test_constraints_are_kept():
    plan = parallelize_alone(
        Mlp(),
        "1x2 cpu",
        INPUTS,
        loss_fn=nn.functional.mse_loss,
        parallelism=autoplan.Parallelism(dp=1, tp=2, pp=1),
        constraints=[autoplan.replicated("up")],
    )
    assert "Replicate" in plan.explain("up")
    up = next(p for p in plan.lowered.parameters if p.name == "up.weight")
    assert up.local_shape == (32, 16)


def test_an_operator_without_a_rule_can_be_accepted_as_replicated():
    constraints = [autoplan.replicated("autoplan_test.mystery.default")]
    plan = parallelize_alone(
        Mysterious(), "1x2 cpu", INPUTS[:1], parallelism=autoplan.Parallelism(dp=1, tp=2, pp=1), constraints=constraints
    )
    assert plan.verify().passed


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, False])
def test_pinned_sequence_parallelism_is_kept(wanted):
    module, batch, _ = zoo.small("llama")
    pinned = autoplan.Parallelism(dp=2, tp=2, pp=1, sequence_parallel=wanted)
    plan = parallelize_alone(module, "1x4 cpu", batch, parallelism=pinned)
    assert plan.parallelism.sequence_parallel is wanted
    layer = next(b for b in plan.lowered.blocks if b.name == "LlamaDecoderLayer")
    assert (layer.inputs[0].layout.state("tp").kind == "S") is wanted
    assert plan.verify().passed


class Branches(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x.mean()
        return x.sum()


@torch.library.custom_op("autoplan_test::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@mystery.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


mystery.register_autograd(lambda ctx, gradient: gradient)


class Mysterious(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        return mystery(self.inner(x)).mean()


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: autoplan.parallelize(Mlp(), "1x4 tpu-v9", INPUTS), AutoplanError, "tpu-v9"),
        (lambda: autoplan.parallelize(Mlp(), "0x4 cpu", INPUTS), AutoplanError, "nodes = 0"),
        (lambda: autoplan.parallelize(Mlp(), "1x4 cpu"), InputsError, "example_inputs"),
        (lambda: autoplan.parallelize(Mlp(), "1x4 cpu", INPUTS[:1]), InputsError, "loss"),
        (lambda: autoplan.parallelize(Branches(), "1x2 cpu", INPUTS[:1]), TraceError, "test_plan.py"),
        (lambda: autoplan.parallelize(Mysterious(), "1x2 cpu", INPUTS[:1]), NoRuleError, "autoplan_test.mystery"),
        (
            lambda: autoplan.parallelize(
                Mlp(), "1x4 cpu", INPUTS, loss_fn=nn.functional.mse_loss, parallelism=autoplan.Parallelism(dp=3)
            ),
            AutoplanError,
            "dp=3",
        ),
        (
            lambda: autoplan.parallelize(
                Mlp(), "1x3 cpu", INPUTS, loss_fn=nn.functional.mse_loss, parallelism="ddp"
            ),
            AutoplanError,
            "8",
        ),
        (
            lambda: autoplan.parallelize(
                Mlp(), "1x4 cpu", INPUTS, loss_fn=nn.functional.mse_loss, parallelism="zero7"
            ),
            AutoplanError,
            "zero=7",
        ),
        (
            lambda: autoplan.parallelize(
                zoo.small("llama")[0],
                {"nodes": 1, "devices_per_node": 2, "device": "cpu", "memory_gb": 1e-4},
                zoo.small("llama")[1],
            ),
            DoesNotFitError,
            "does not fit",
        ),
    ],
)
def test_a_users_mistake_is_told_with_value_cause_and_remedy(call, kind, said):
    with pytest.raises(kind) as caught:
        call()
    assert said in str(caught.value)
    assert caught.value.value and caught.value.cause and caught.value.remedy
