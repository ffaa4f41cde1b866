"""Mixtures of experts of transformers under every way to split them, against one device: loss and gradients in float64.

Routers are random, so how many tokens an expert gets differs from step to step; some get none. Where a configuration
has a load-balancing loss it is part of the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
)

from autoplan import Parallelism
from autoplan.ir.typed_program import Compute
from autoplan.search.predict import COMPRESSED
from tests.support.mixtures import MODELS, gpt_oss, sized, tokens
from tests.support.planning import parallelize_alone

pytestmark = pytest.mark.usefixtures("verified_in_pool")


ROUTED, SUMMED = "expert-all-to-all", "expert-partial-sum"
PLANS: Mapping[str, str | Parallelism] = {
    "ddp": "ddp",
    "tp=4": Parallelism(dp=1, tp=4, pp=1),
    ROUTED: ROUTED,
    SUMMED: SUMMED,
    "dp=2, tp=2": Parallelism(dp=2, tp=2, pp=1),
    "pp=2, tp=2": Parallelism(dp=1, tp=2, pp=2),
}
TOGETHER: Mapping[str, Parallelism] = {
    "with ZeRO-3, recomputed": Parallelism(dp=2, tp=2, pp=1, zero=3, recompute="full", tensor_system=ROUTED),
    "in stages, recomputed selectively": Parallelism(dp=1, tp=2, pp=2, recompute="selective", tensor_system=ROUTED),
}
BODIES = {ROUTED: "routed_experts", SUMMED: "local_experts"}


def check(make: Callable[[], nn.Module], parallelism: str | Parallelism, body: str = "") -> None:
    with torch.device("meta"):
        model = make().train()
    plan = parallelize_alone(model, "1x4 cpu", tokens(), parallelism=parallelism)
    computes = [s for block in plan.lowered.blocks for s in block.body if isinstance(s, Compute)]
    bodies = {s.body for s in computes if s.op == "autoplan.experts"}
    assert bodies and (not body or bodies == {body})
    result = plan.verify()
    assert result.passed and result.gradients.error < 1e-10, str(result)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_one_device(name: str, plan: str) -> None:
    check(MODELS[name], PLANS[plan], BODIES.get(plan, ""))


@pytest.mark.slow
@pytest.mark.parametrize("plan", TOGETHER)
def test_tokens_travel_beside_what_else_a_plan_does(plan: str) -> None:
    check(MODELS["olmoe"], TOGETHER[plan], "routed_experts")


@pytest.mark.parametrize("zero", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_zero_cuts_the_one_expert_of_a_rank(zero: int) -> None:
    """Not by its only row, which one rank would have and the others gather with padding."""
    with torch.device("meta"):
        model = MixtralForCausalLM(MixtralConfig(**sized(1), intermediate_size=16, num_local_experts=2)).train()
    asked = Parallelism(dp=4, tp=1, pp=1, ep=2, zero=zero)
    plan = parallelize_alone(model, "1x4 cpu", tokens(), parallelism=asked)
    result = plan.verify()
    assert result.passed and result.gradients.error < 1e-10, str(result)


@pytest.mark.slow
def test_gradients_go_compressed_between_groups_with_all_experts() -> None:
    """Dense gradients are summed whole over the ranks that split experts; an expert's go compressed at once."""
    with torch.device("meta"):
        model = MODELS["olmoe"]().train()
    asked = Parallelism(dp=4, tp=1, pp=1, ep=2, etp=1, zero=0, compression="powersgd", compression_rank=1)
    plan = parallelize_alone(model, "1x4 cpu", tokens(), parallelism=replace(asked, compression_within=2))
    sent = [(c.kind, c.axis) for c in plan.predicted.collectives if c.where == COMPRESSED]
    assert Counter(sent) == {("reduce-scatter", "ep"): 1, ("all-reduce", "dp"): 4, ("all-gather", "ep"): 1}
    result = plan.verify()
    assert result.passed and result.gradients.error < 1e-10, str(result)


@pytest.mark.slow
def test_tokens_travel_on_ranks_of_a_tensor_axis_beside_a_data_axis() -> None:
    """Experts' gradients are summed over the data axis alone, all others over both."""
    with torch.device("meta"):
        model = gpt_oss().train()
    asked = Parallelism(dp=2, tp=2, pp=1, tensor_system=ROUTED)
    plan = parallelize_alone(model, "1x4 cpu", tokens(), parallelism=asked)
    summed = {p.name: p.reduce_axes for p in plan.lowered.parameters}
    of_experts = {axes for name, axes in summed.items() if ".experts." in name and "down_proj_bias" not in name}
    assert of_experts == {("dp",)}
    assert {axes for name, axes in summed.items() if "_proj.weight" in name or "norm" in name} == {("dp", "tp")}
    assert plan.verify().passed
