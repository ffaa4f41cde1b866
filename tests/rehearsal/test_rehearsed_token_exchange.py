"""Tokens that travel beside what is computed, at sizes at which that counts: every message is issued as it is priced,
the step by the order of all calls is the predicted one, and so is the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

import autoplan
from autoplan import Parallelism, Training, forbid
from tests.support.mixtures import wide_qwen3
from tests.support.planning import parallelize_unproved

STEP, MEMORY = 0.01, 0.01


def wide_deepseek() -> nn.Module:
    experts = {"n_routed_experts": 16, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "n_shared_experts": 1}
    latent = {"q_lora_rank": 512, "kv_lora_rank": 256}
    latent |= {"qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 128}
    sizes = {"hidden_size": 2048, "moe_intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16}
    further = {"num_key_value_heads": 16, "vocab_size": 1024, "first_k_dense_replace": 0}
    return DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **further, **experts, **latent))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "how", "recompute"),
    [(wide_deepseek, "shared", "none"), (wide_qwen3, 2, "none"), (wide_qwen3, 2, "selective")],
)
def test_a_step_is_as_long_as_its_messages_and_compute(
    tmp_path: Path, make: Callable[[], nn.Module], how: object, recompute: str
) -> None:
    with torch.device("meta"):
        model, ids = make(), torch.zeros(32, 2048, dtype=torch.int64)
    plan = parallelize_unproved(
        model, "1x4 h100-sxm", {"input_ids": ids, "labels": ids},
        training=Training(precision="bf16-mixed", compile=False),
        constraints=[forbid("autoplan.experts", "P", axis="ep")],
        parallelism=Parallelism(
            dp=4, tp=1, pp=1, ep=4, zero=0, micro_batch=1, recompute=recompute, ep_overlap=how,  # type: ignore[arg-type]
        ),
    )  # fmt: skip
    assert plan.parallelism.ep_overlap == how
    found = autoplan.load(plan.export(tmp_path / "out")).rehearse()
    assert not found.failed, str(found)
    assert not [difference for one in found.balances for difference in one.differences]
    assert all(abs(one.off) <= MEMORY for one in found.classes), str(found)
    assert found.together.simulated_s == pytest.approx(found.predicted_s, rel=STEP), str(found)
