"""What is verified of a plan that recomputes selectively under mixed precision, and drops out."""

from __future__ import annotations

from pathlib import Path

import autoplan
from autoplan.evaluation.form import forms_of
from autoplan.export.folder import opened
from autoplan.lower.after_search import program_of
from autoplan.lower.resized import BatchSizes, planned_sizes
from autoplan.options import Parallelism, Training
from autoplan.verify.variants import in_float64
from tests.support import zoo
from tests.support.planning import parallelize_alone

SELECTIVE = Parallelism(dp=1, tp=2, pp=1, micro_batch=2, recompute="selective")


def planned(name: str, **changes: float) -> autoplan.Plan:
    module, batch, _ = zoo.small(name, layers=2, **changes)
    training = Training(precision="bf16-mixed", compile=False)
    return parallelize_alone(module, "1x2 cpu", batch, training=training, parallelism=SELECTIVE, effort="fast")


def test_casts_that_float64_has_not_run_again_nowhere() -> None:
    """Beside a norm in float32 a cast is what is cheapest to drop."""
    record = planned("llama").record
    dropped = {name for choice in record.chosen.blocks for name, _ in choice.again}
    left = {name for choice in in_float64(record).chosen.blocks for name, _ in choice.again}
    assert dropped - left and left, "some of what runs again is a cast, and some isn't"
    assert left <= {node.name for block in in_float64(record).model.blocks for node in block.nodes}
    assert program_of(in_float64(record)).blocks


def test_an_evaluation_recomputes_nothing(tmp_path: Path) -> None:
    plan = planned("gpt2", dropout=0.1)
    assert any(choice.again for choice in plan.record.chosen.blocks)
    record = opened(plan.export(tmp_path / "out")).record
    form = forms_of(record)(BatchSizes(2, planned_sizes(record.model).tokens))
    assert form.lowered.blocks and not any(block.again for block in form.lowered.blocks)
