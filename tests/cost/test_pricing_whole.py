"""Optimizers that look at whole matrices: what their gathers and products take, and what the others don't."""

from __future__ import annotations

import pytest

from autoplan.cost.gathered_optimizer import newton_schulz_s, user_shapes, whole_cost
from autoplan.options import Training
from cost_models.compute import matmul_seconds
from cost_models.hardware import load_device
from tests.support.hand_made import llama
from tests.support.records import record_of

H100, _ = load_device("h100-sxm")
MODEL = llama(dtype="bfloat16", hidden=256, ffn=512, vocab=1024)


def test_muon_takes_its_products_once_for_each_matrix() -> None:
    cost = whole_cost(Training(optimizer="muon", precision="bf16-mixed"), 5.0, MODEL, H100)
    assert cost is not None
    matrices = [shape for shape in user_shapes(MODEL.parameters) if len(shape) == 2]
    assert len(matrices) == 4 * 7 + 2  # of each layer, the embedding and the head
    total = cost.product_s * sum(p.type.bytes for p in MODEL.parameters)
    assert total == pytest.approx(5 * sum(newton_schulz_s(shape, H100) for shape in matrices))
    fewer = Training(optimizer="muon", precision="bf16-mixed", optimizer_options={"ns_steps": 1})
    less = whole_cost(fewer, 5.0, MODEL, H100)
    assert less is not None and less.product_s == pytest.approx(cost.product_s / 5)
    products = ((64, 64, 256), (64, 64, 64), (64, 256, 64))
    wanted = sum(float(matmul_seconds(m, n, k, 1, "bfloat16", H100)) for m, n, k in products)
    assert newton_schulz_s((256, 64), H100) == newton_schulz_s((64, 256), H100) == pytest.approx(wanted)


def step_s(optimizer: str, **pinned: object) -> float:
    training = Training(optimizer=optimizer, precision="bf16-mixed", compile=False)
    return record_of(MODEL, "1x4 h100-sxm", training, pp=1, **pinned).chosen.predicted.step_time_s


def test_a_step_pays_for_what_is_put_together() -> None:
    assert whole_cost(Training(optimizer="lamb"), 7.0, MODEL, H100) is None
    cost = whole_cost(Training(optimizer="muon", precision="bf16-mixed"), 5.0, MODEL, H100)
    assert cost is not None
    products_s = cost.product_s * sum(p.type.bytes for p in MODEL.parameters)
    whole, sharded, split = dict(dp=4, tp=1, zero=0), dict(dp=4, tp=1, zero=1), dict(dp=1, tp=4, zero=0)
    # with one moment less than AdamW, and its products beside
    assert 0 < step_s("muon", **whole) - step_s("adamw", **whole) < products_s
    for parts in (sharded, split):
        more_s = step_s("muon", **parts) - step_s("adamw", **parts)
        assert more_s > products_s
        assert step_s("adafactor", **parts) > step_s("adagrad", **parts)
