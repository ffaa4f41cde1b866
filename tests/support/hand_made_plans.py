"""Plans of the Llama written by hand, searched under pinned choices."""

from __future__ import annotations

from autoplan.cluster import ClusterSpec
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.search.entry import search
from tests.support import hand_made
from tests.support.planning import alone

CLUSTER = ClusterSpec(1, 4, "cpu")


def of_four_stages() -> PlanRecord:
    """On four GPUs, one stage each."""
    model, training, cluster = hand_made.llama(), Training(), ClusterSpec(1, 4, "h100-sxm")
    pinned = Parallelism(dp=1, tp=1, pp=4, micro_batch=1, pipeline_schedule="1f1b")
    with alone():
        return PlanRecord(cluster, training, model, *search(model, cluster, training, pinned, ()), None)


def plan(pinned: Parallelism) -> PlanRecord:
    """On four processes, with what else was found."""
    model, training = hand_made.llama(), Training()
    chosen, alternatives, report = search(model, CLUSTER, training, pinned, ())
    return PlanRecord(CLUSTER, training, model, chosen, alternatives, report, None)
