"""Plans that other trainers are configured to run."""

from __future__ import annotations

from functools import cache

from autoplan.cluster import ClusterSpec
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.search.entry import search
from tests.support import hand_made
from tests.support.planning import alone

CLUSTER = ClusterSpec(1, 4, "cpu")
TRAINING = Training(precision="bf16-mixed", learning_rate=3e-4, weight_decay=0.1, betas=(0.9, 0.95), clip_grad_norm=1.0)
WAYS = (
    Parallelism(dp=2, tp=2, pp=1, zero=1, micro_batch=1),
    Parallelism(dp=1, tp=2, pp=2, zero=0, micro_batch=2, pipeline_schedule="gpipe"),
    Parallelism(dp=4, tp=1, pp=1, zero=3),
    Parallelism(dp=1, tp=1, pp=4, micro_batch=1, pipeline_schedule="1f1b", recompute="selective"),
)


@cache
def record(pinned: Parallelism, cluster: ClusterSpec = CLUSTER) -> PlanRecord:
    model = hand_made.llama(dtype="bfloat16")
    with alone():
        return PlanRecord(cluster, TRAINING, model, *search(model, cluster, TRAINING, pinned, ()), None)
