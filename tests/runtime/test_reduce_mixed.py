"""A plan whose operators are data- and tensor-parallel on the same axis: each gradient reduces over its own axes."""

from __future__ import annotations

import pytest

import autoplan
from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism, Training
from tests.support import zoo
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("verified_in_pool")

TRAINING = Training(learning_rate=1e-2, clip_grad_norm=1.0, compile=False)
ROWS = ("gate_proj", "up_proj", "down_proj")
CONSTRAINTS = (autoplan.pin("q_proj", "S(2)"), *(autoplan.pin(name, "S(0)") for name in ROWS))


@pytest.mark.parametrize("zero", sampled([0, 3], [3]))
def test_operators_of_both_kinds_on_one_axis_train_right(zero: int) -> None:
    module, batch, loss_fn = zoo.small("llama", layers=2)
    plan = parallelize_alone(
        module, "1x4 cpu", batch, loss_fn=loss_fn, training=TRAINING, constraints=CONSTRAINTS,
        parallelism=Parallelism(dp=2, tp=2, pp=1, zero=zero, micro_batch=2),
    )  # fmt: skip
    layer = "model.layers.0"
    stored = {p.name: p for p in program_of(plan.record).parameters}
    for name in ROWS:
        assert stored[f"{layer}.mlp.{name}.weight"].reduce_axes == ("dp", "tp"), "rows of the batch over both axes"
    q = stored[f"{layer}.self_attn.q_proj.weight"]
    assert q.reduce_axes == ("dp",) and q.layout.state("tp").kind == "S"
    assert plan.verify().passed
