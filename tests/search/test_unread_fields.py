"""A field that nothing reads without another is refused; a plan's, whose reader another parallelism frees, goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import ParallelismError
from autoplan.options import Parallelism, Training
from autoplan.replan import Change, replan
from tests.support.hand_made import mlp
from tests.support.records import record_of

EXACT = Training(precision="fp64")


@pytest.mark.parametrize(
    ("pinned", "set_to", "told"),
    [
        (Parallelism(), {"compression_start": 5}, r"5 without compression: .*compression='powersgd'\), or leave comp"),
        (Parallelism(local_steps=4), {"outer_momentum": 0.5}, "0.5 without outer_optimizer: outer_optimizer alone"),
        (Parallelism(), {"outer_learning_rate": 1.0}, "outer_optimizer='nesterov'"),
        (Parallelism(servers=1, ahead=0), {"delay_compensation": 0.04}, "0.04 without ahead: .*ahead='unbounded'"),
        (Parallelism(cp=1, cp_attention="ring"), {}, "cp_attention='ring' with cp=1: .* give cp=2 or more"),
    ],
)
def test_what_nothing_reads_is_refused(pinned: Parallelism, set_to: dict[str, float], told: str) -> None:
    record = record_of(mlp(), "1x2 cpu", EXACT)
    with pytest.raises(ParallelismError, match=told):
        replan(record, Change(parallelism=pinned, training=replace(EXACT, **set_to), effort="fast"))  # type: ignore[arg-type]


def test_what_a_parallelism_freed_goes_with_it() -> None:
    training = replace(EXACT, compression_start=5)
    before = replan(record_of(mlp(), "1x2 cpu", EXACT), Change(parallelism="1bit-adam", training=training))
    assert before.training.compression_start == 5
    assert replan(before, Change(parallelism="ddp")).training.compression_start is None
    assert replan(before, Change(effort="fast")).training.compression_start == 5
