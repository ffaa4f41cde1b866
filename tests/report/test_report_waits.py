"""What a device waits for: of messages its own alone, and never longer than the step."""

from __future__ import annotations

import re

import pytest

from autoplan.options import Parallelism
from autoplan.report.text_report import report_text
from autoplan.report.waits import received_s, spent_s
from tests.support.hand_made_plans import plan
from tests.support.sampling import slow


def test_a_rank_of_several_stages_receives_for_each() -> None:
    """Two ranks, four stages: rank 0 holds stages 0 and 2, rank 1 stages 1 and 3; each is at every border."""
    assert received_s([2.0, 4.0, 8.0], 2) == [1 + (2 + 4), (1 + 2) + 4]
    assert received_s([2.0, 4.0], 3) == [1, 1 + 2, 2]
    assert received_s([2.0], 2) == [1, 1] and received_s([], 1) == [0.0]


@pytest.mark.parametrize(
    "pinned",
    [
        slow(Parallelism(dp=2, pp=2, micro_batch=4)),
        slow(Parallelism(dp=1, tp=1, pp=4, micro_batch=1)),
        slow(Parallelism(dp=2, pp=2, micro_batch=1, pipeline_schedule="interleaved")),
        Parallelism(dp=1, tp=2, pp=2, micro_batch=2, pipeline_schedule="zero-bubble"),
    ],
)
def test_no_plan_waits_longer_than_its_step(pinned: Parallelism) -> None:
    record = plan(pinned)
    predicted = record.chosen.predicted
    idle_s, open_s = predicted.bubble_fraction * predicted.step_time_s, spent_s(record, hidden=False)
    assert idle_s > 0 and open_s > 0 and idle_s + open_s < predicted.step_time_s
    for other in record.alternatives:
        waits = other.waits
        alone_s = 0.0 if waits is None else waits.seconds - waits.hidden_s
        assert other.idle_s + alone_s <= other.step_time_s or other.why_not
    text = report_text(record)
    told = f"{100 * open_s / predicted.step_time_s:.1f}% of the step in the open"
    assert told in text and re.search(r"the best plan of this space could be at most \d+\.\d% quicker", text)
