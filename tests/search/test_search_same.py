"""Same input, same plan, byte for byte: planned twice, beside other plans, or in a process of its own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.export.folder import plan_text
from tests.support.planned_text import record_of, text_of
from tests.support.sampling import sampled

ROOT = Path(__file__).parents[2]
CLUSTERS = ("1x4 cpu", "2x2 cpu")
WRITE = """
import sys
import torch
from tests.support.planned_text import text_of
torch.set_num_threads(1)
sys.stdout.write(text_of(sys.argv[1]))
"""


@functools.cache
def by_itself(cluster: str, hash_seed: int) -> str:
    """plan.json from a process that makes this plan alone, and orders its sets in its own way."""
    known = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", WRITE, cluster]
    return subprocess.run(command, env=known, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def together() -> list[str]:
    """The plans of both clusters, and of the first again, by one process."""
    return [text_of(cluster) for cluster in (*CLUSTERS, CLUSTERS[0])]


def test_planning_again_gives_the_same_file(together: list[str]) -> None:
    assert together[0] == together[2] != together[1]


@pytest.mark.parametrize(("cluster", "hash_seed"), sampled(zip(CLUSTERS, (1, 2), strict=True), [("2x2 cpu", 2)]))
def test_two_plans_in_one_process_equal_each_in_its_own(together: list[str], cluster: str, hash_seed: int) -> None:
    assert by_itself(cluster, hash_seed) == together[CLUSTERS.index(cluster)]


def test_what_a_run_took_is_told_but_is_no_part_of_the_plan() -> None:
    record = record_of("1x1 cpu")
    assert sum(seconds for _, seconds in record.search.seconds) > 0
    longer = replace(record, search=replace(record.search, seconds=(("search", 1e6),)))
    assert plan_text(longer, "the plan") == plan_text(record, "the plan")
