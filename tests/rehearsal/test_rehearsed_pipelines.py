"""The step by the order of all calls against the predicted one: every schedule, with what ZeRO does once a step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import autoplan
from autoplan.options import Parallelism, Training
from tests.support.sampling import sampled

SAME = 0.004
ROWS, LENGTH = 16, 4096
RATIOS = {
    # (schedule, stages on each rank): by zero (None: one data rank), on 2 and on 4 pipeline ranks
    ("gpipe", 1): {None: (1.001, 1.001), 0: (1.003, 1.004), 1: (1.005, 1.009), 3: (1.000, 1.000)},
    ("1f1b", 1): {None: (1.001, 1.001), 0: (1.003, 1.004), 1: (1.005, 1.009), 3: (1.002, 0.999)},
    ("interleaved", 2): {None: (1.001, 1.001), 0: (1.003, 0.996), 1: (1.002, 1.011), 3: (1.001, 1.000)},
    ("zero-bubble", 1): {None: (0.998, 0.995), 0: (0.997, 0.977), 1: (0.997, 0.987)},
    ("zero-bubble", 2): {None: (1.000, 0.997), 0: (0.999, 0.995), 1: (0.994, 0.994)},
}
"""The step by the order of all calls over the predicted one. After a split backward the plan
takes the slowest rank's sums to follow the last rank's backward."""
KINDS = [
    (*kind, pp, zero, ratio)
    for kind, rows in RATIOS.items() for zero, each in rows.items() for pp, ratio in zip((2, 4), each, strict=True)
]  # fmt: skip
QUICK = [kind for kind in KINDS if kind[:4] == ("interleaved", 2, 2, 3)]


def llama() -> LlamaForCausalLM:
    """Eight layers as wide as an 8B model's, so that operators take longer than collectives begin."""
    sizes = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": LENGTH}
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**sizes, **heads, use_cache=False))


@pytest.mark.parametrize(("schedule", "virtual_stages", "pp", "zero", "ratio"), sampled(KINDS, QUICK))
def test_a_pipeline_takes_what_is_predicted(
    schedule: str, virtual_stages: int, pp: int, zero: int | None, ratio: float, tmp_path: Path
) -> None:
    ids, dp = torch.zeros(ROWS, LENGTH, dtype=torch.int64), 1 if zero is None else 2
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
    assert found.together.simulated_s is not None
    assert found.together.simulated_s / found.predicted_s == pytest.approx(ratio, abs=SAME), str(found)
