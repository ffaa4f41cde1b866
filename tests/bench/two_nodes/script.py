"""train.py itself on two nodes: ranks are killed, both nodes start again, training goes on from a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tests.bench.live.clusters import Cluster
from tests.kill.case import Case, Outcome
from tests.kill.training import RANKS, Kill

PLANS = ("zero3", "tp=2 pp=2")
KILLS, SEED, LIMIT_S = 2, 5, 1800


def kills(root: Path, tool: Path, rate: str) -> Iterator[Kill | Outcome]:
    """For each plan a training on one node that nobody disturbs, and one on two nodes in which ranks are killed."""
    cluster = Cluster("two nodes", 2, RANKS // 2, rate)
    launcher = tuple(cluster.command(tool, LIMIT_S))
    for plan in PLANS:
        case = Case(plan, root / plan.replace(" ", "-"))
        yield from case.disturbed("two-nodes", KILLS, random.Random(SEED), launcher)
