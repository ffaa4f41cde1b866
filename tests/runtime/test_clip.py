"""The global norm counts each parameter once: sharded, replicated, split, tied across stages, scaled for float16."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from autoplan.ir.codec import decode, encode
from autoplan.ir.typed_program import Lowered
from autoplan.options import Training
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled

EIGHT = dict(dp=2, tp=2, pp=2, microbatches=2)
LIMIT = 0.05


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(8, timeout_s=120) as ranks:
        yield ranks


def clipped(rank: int, world: int, zero: int, training: Training) -> tuple[float, float, float]:
    """(the norm before, the norm after, the largest share by which a gradient is not the limit's of what it was)."""
    spec = tiny.spec(**EIGHT, zero=zero, training=training)
    if training.precision != "fp64":
        text = json.dumps(encode(spec.lowered)).replace("float64", "float32")
        spec = replace(spec, lowered=decode(Lowered, json.loads(text), "lowered"))
    with Program(spec, tiny.program(len(spec.lowered.stages))) as program:
        program.load_weights(tiny.reference().state_dict())
        program.step(next(tiny.batches(1)))
        whole = program.full_grads()
        before = program.clip_grad_norm_(LIMIT).item()
        scaled = program.full_grads()
        off = [((scaled[n] * before / LIMIT - g).norm() / g.norm()).item() for n, g in whole.items()]
        return before, program.clip_grad_norm_(1e9).item(), max(off, default=0.0)


@pytest.mark.parametrize(
    ("zero", "precision"),
    sampled(itertools.product((0, 1, 3), ("fp64", "fp16-mixed")), [(1, "fp16-mixed")]),
)
def test_data_tensor_and_pipeline_parallel_and_tied(pool: RankPool, zero: int, precision: str) -> None:
    model = tiny.reference()
    model(**next(tiny.batches(1))).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()
    assert norm > 2 * LIMIT
    close = 1e-5  # torch adds 1e-6 to the norm that it divides by
    for before, after, off in pool.run(clipped, zero, Training(precision=precision, compile=False)):
        assert before == pytest.approx(norm, rel=1e-12 if precision == "fp64" else 1e-5)
        assert after == pytest.approx(LIMIT, rel=close)
        assert off < close
