"""Gradients summed in another dtype than they are stored in: by our buckets and by fully_shard, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from torch import Tensor

from autoplan.errors import ParallelismError
from autoplan.options import Training
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.hand_made import llama
from tests.support.records import record_of
from tests.support.sampling import sampled


def gradients(rank: int, world: int, zero: int, reduce_dtype: str | None) -> Mapping[str, Tensor]:
    training = Training(precision="fp64", compile=False, reduce_dtype=reduce_dtype)
    with Program(tiny.spec(dp=4, zero=zero, microbatches=2, training=training), tiny.program(1)) as program:
        program.load_weights(tiny.reference().state_dict())
        program.step(next(tiny.batches(1)))
        return program.full_grads()


@pytest.mark.parametrize("zero", sampled([0, 1, 2, 3], [3]))
def test_sums_are_rounded_as_asked(pool: RankPool, zero: int) -> None:
    exact = pool.run(gradients, zero, None)[0]
    for dtype, least, most in (("fp32", 1e-9, 1e-6), ("bf16", 1e-4, 2e-2)):
        found = pool.run(gradients, zero, dtype)[0]
        for name, gradient in exact.items():
            off = ((found[name] - gradient).norm() / gradient.norm()).item()
            assert least < off < most and found[name].dtype == gradient.dtype, f"{name} in {dtype}: {off:.1e}"


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_half_the_bytes_are_sent(zero: int) -> None:
    seconds = {}
    for dtype in (None, "fp32", "bf16"):
        training = Training(precision="bf16-mixed", reduce_dtype=dtype)
        chosen = record_of(llama(dtype="bfloat16"), "1x4 h100-sxm", training, dp=4, tp=1, pp=1, zero=zero).chosen
        sums = [c for c in chosen.predicted.collectives if c.where == "gradients"]
        seconds[dtype] = sum(c.bytes * c.count for c in sums), sum(c.seconds for c in sums)
    assert seconds[None] == seconds["fp32"]
    assert seconds["bf16"][0] * 2 == seconds["fp32"][0] and seconds["bf16"][1] < seconds["fp32"][1]


def test_another_dtype_is_refused_and_exactness_sums_in_no_less() -> None:
    with pytest.raises(ParallelismError, match="reduce_dtype='fp16': gradients are summed in one of"):
        Training(reduce_dtype="fp16")
    assert Training(reduce_dtype="bf16").with_precision("fp64").reduce_dtype is None
    assert Training(reduce_dtype="bf16").with_precision("bf16-mixed").reduce_dtype == "bf16"
