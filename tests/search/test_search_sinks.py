"""A parameter that is spread over rows is an activation: attention with a sink for each head stays split by rows."""

from __future__ import annotations

from autoplan import Parallelism
from autoplan.models.named import resolve_model
from tests.support.planning import parallelize_alone

GPT_OSS = ("num_hidden_layers=2", "hidden_size=64", "intermediate_size=64", "num_local_experts=8",
           "num_attention_heads=4", "num_key_value_heads=2", "head_dim=16", "vocab_size=256")  # fmt: skip


def test_scores_beside_sinks_are_never_gathered_over_the_experts_axis() -> None:
    request = resolve_model("hf:gpt_oss", GPT_OSS, batch=16, seq=32)
    plan = parallelize_alone(
        request.model, "1x4 h100-sxm", example_inputs=request.example_inputs,
        parallelism=Parallelism(dp=4, tp=1, pp=1, ep=4, zero=0, micro_batch=4), effort="fast",
    )  # fmt: skip
    layers = [c.where for c in plan.predicted.collectives if "DecoderLayer" in c.where]
    assert layers and all(" experts" in where for where in layers), layers
