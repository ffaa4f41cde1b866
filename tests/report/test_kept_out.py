"""A quicker plan beside the chosen one is told with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.ir.choice import Alternative
from autoplan.ir.record import Asked, PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.report.kept_out import kept_out
from autoplan.report.notes import next_best
from autoplan.search.entry import search
from tests.support import hand_made


@pytest.fixture(scope="module")
def record() -> PlanRecord:
    model, training, cluster = hand_made.llama(), Training(), ClusterSpec(1, 4, "h100-sxm")
    return PlanRecord(cluster, training, model, *search(model, cluster, training, Parallelism(dp=4), ()), None)


@pytest.mark.parametrize(
    ("quicker", "asked", "reason"),
    [
        (Parallelism(dp=4, servers=2), Parallelism(), "the search doesn't try parameter servers by itself"),
        (Parallelism(dp=4, servers=2), Parallelism(servers=1), "what was pinned or constrained kept it out"),
        (Parallelism(dp=2, tp=2), Parallelism(dp=4), "what was pinned or constrained kept it out"),
        (Parallelism(dp=2, tp=2, zero=1), Parallelism(zero=1), "the search stopped within 1.0% of its bound"),
        (Parallelism(dp=2, tp=2), Parallelism(), "the search stopped within 1.0% of its bound"),
        (Parallelism(tensor=(2, 2)), Parallelism(), "the search doesn't try several tensor axes by itself"),
    ],
)
def test_the_reason_is_what_the_search_leaves_or_what_was_asked(
    record: PlanRecord, quicker: Parallelism, asked: Parallelism, reason: str
) -> None:
    told = replace(record, asked=Asked(parallelism=asked), search=replace(record.search, optimality_gap=0.01))
    assert kept_out(told, quicker) == reason


def test_a_quicker_one_within_the_interval_is_called_equal(record: PlanRecord) -> None:
    step_s = record.chosen.predicted.step_time_s
    told = replace(record, asked=Asked())
    servers = Parallelism(dp=4, servers=4)

    def note(share: float) -> str:
        return next_best(replace(told, alternatives=(Alternative("parameter-server", servers, share * step_s, 0),)))[0]

    reason = "It isn't taken: the search doesn't try parameter servers by itself."
    near = f"Quicker: parameter-server also fits and takes 0.4% less time. {reason}"
    assert note(0.996) == f"{near} The two are equal as far as predictions go."
    assert note(0.5) == f"Quicker: parameter-server also fits and takes 0.50 times as long. {reason}"
    assert note(1.004) == "Next: parameter-server also fits and takes 0.4% longer."
