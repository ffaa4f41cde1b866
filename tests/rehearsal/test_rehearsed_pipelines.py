"""The step by the order of all calls against the predicted one: every schedule, with what ZeRO does once a step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import autoplan
from autoplan.options import Parallelism, Training
from tests.support.planning import parallelize_unproved
from tests.support.rehearsed_plans import llama as small
from tests.support.rehearsed_plans import planned
from tests.support.sampling import sampled

SAME, HELD = 0.01, 0.03
ROWS, LENGTH = 16, 4096
SCHEDULES = {
    # (schedule, stages on each rank): by zero (None: one data rank)
    ("gpipe", 1): (None, 0, 1, 3),
    ("1f1b", 1): (None, 0, 1, 3),
    ("interleaved", 2): (None, 0, 1, 3),
    ("zero-bubble", 1): (None, 0, 1),
    ("zero-bubble", 2): (None, 0, 1),
}
KINDS = [(*kind, pp, zero) for kind, levels in SCHEDULES.items() for zero in levels for pp in (2, 4)]
QUICK = [("interleaved", 2, 2, 3)]


def llama(layers: int = 8) -> LlamaForCausalLM:
    """Layers as wide as an 8B model's, so that operators take longer than collectives begin."""
    sizes = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": LENGTH}
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**sizes, **heads, use_cache=False))


@pytest.mark.parametrize(("schedule", "virtual_stages", "pp", "zero"), sampled(KINDS, QUICK))
def test_a_pipeline_takes_what_is_predicted(
    schedule: str, virtual_stages: int, pp: int, zero: int | None, tmp_path: Path
) -> None:
    ids, dp = torch.zeros(ROWS, LENGTH, dtype=torch.int64), 1 if zero is None else 2
    pinned = Parallelism(
        pipeline_schedule=schedule, virtual_stages=virtual_stages, pp=pp, dp=dp, zero=zero, tp=1,
        micro_batch=ROWS // dp // (2 * pp),
    )  # fmt: skip
    plan = parallelize_unproved(
        llama(), f"1x{dp * pp} h100-sxm", {"input_ids": ids, "labels": ids}, parallelism=pinned, effort="fast",
        training=Training(optimizer="adamw", precision="bf16-mixed", clip_grad_norm=1.0),
    )  # fmt: skip
    found = autoplan.load(plan.export(tmp_path / "out")).rehearse()
    assert found.passed, str(found)
    assert found.together.simulated_s is not None
    assert found.together.simulated_s / found.predicted_s == pytest.approx(1.0, abs=SAME), str(found)


@pytest.mark.parametrize("layers", sampled([2, 4], [2]))
def test_one_stage_takes_what_is_predicted(layers: int) -> None:
    """Nothing hides the first gather, or the first segment's gradients: the fewer layers, the more that is."""
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    plan = parallelize_unproved(
        llama(layers), "1x4 h100-sxm", {"input_ids": ids, "labels": ids}, effort="fast",
        parallelism=Parallelism(dp=4, tp=1, pp=1, zero=1, micro_batch=1),
        training=Training(optimizer="adamw", precision="bf16-mixed", clip_grad_norm=1.0, compile=False),
    )  # fmt: skip
    found = plan.rehearse()
    assert found.passed, str(found)
    assert found.together.simulated_s / found.predicted_s == pytest.approx(1.0, abs=SAME), str(found)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["pipedream", "pipedream-2bw"])
def test_a_pipeline_without_a_flush_holds_what_is_predicted(schedule: str) -> None:
    """Once it is full: versions of the weights, and gradients that wait or aren't complete."""
    plan = planned(small(4), "1x2 h100-sxm", "bf16-mixed", pp=2, pipeline_schedule=schedule, micro_batch=4)
    found = plan.rehearse()
    assert found.passed and found.together.simulated_s is None, str(found)
    assert len(found.classes) == 2
    for one in found.classes:
        assert one.peak_bytes == pytest.approx(one.predicted_bytes, rel=HELD), str(found)
