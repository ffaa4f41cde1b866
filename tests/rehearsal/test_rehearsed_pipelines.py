"""The step by the order of all calls against the predicted one: every schedule, with what ZeRO does once a step."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import autoplan
from autoplan.options import Parallelism, Training
from tests.support.sampling import sampled

STEP = 0.01
ROWS, LENGTH = 16, 4096
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1), ("zero-bubble", 2))
DATA = ((1, None), (2, 0), (2, 1), (2, 2), (2, 3))
KINDS = [(*kind, pp, *data) for kind, pp, data in itertools.product(SCHEDULES, (2, 4), DATA)]
QUICK = [("1f1b", 1, 4, 2, 1), ("interleaved", 2, 2, 2, 1), ("zero-bubble", 1, 2, 2, 0)]


def llama() -> LlamaForCausalLM:
    """Eight layers as wide as an 8B model's, so that operators take longer than collectives begin."""
    sizes = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": LENGTH}
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**sizes, **heads, use_cache=False))


@pytest.mark.parametrize(("schedule", "virtual_stages", "pp", "dp", "zero"), sampled(KINDS, QUICK))
def test_a_pipeline_takes_what_is_predicted(
    schedule: str, virtual_stages: int, pp: int, dp: int, zero: int | None, tmp_path: Path
) -> None:
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    pinned = Parallelism(
        pipeline_schedule=schedule, virtual_stages=virtual_stages, pp=pp, dp=dp, zero=zero, tp=1,
        micro_batch=ROWS // dp // (2 * pp),
    )  # fmt: skip
    plan = autoplan.parallelize(
        llama(), f"1x{dp * pp} h100-sxm", {"input_ids": ids, "labels": ids}, parallelism=pinned, effort="fast",
        training=Training(optimizer="adamw", precision="bf16-mixed", clip_grad_norm=1.0),
    )  # fmt: skip
    found = autoplan.load(plan.export(tmp_path / "out")).rehearse()
    assert found.passed, str(found)
    assert found.together.simulated_s == pytest.approx(found.predicted_s, rel=STEP), str(found)
