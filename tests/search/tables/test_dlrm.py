"""The DLRM of examples/: its report, its program, and tables that no device has room for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import autoplan
from autoplan.cluster import ClusterSpec
from autoplan.errors import DoesNotFitError
from autoplan.search.tables.placed_search import recommends
from autoplan.trace.pipeline import trace
from tests.support import zoo

dlrm = zoo.example("dlrm")
SMALL = ["--rows", "50", "--width", "4", "--batch", "16"]


@pytest.mark.slow
def test_the_example_plans_verifies_and_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = dlrm.main([*SMALL, "--export", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "equal to one device, on 4 local processes" in printed
    section = printed[printed.index("Tables, traffic") :].split("\n\n")[0].splitlines()
    names = [f"tables.{i}.weight" for i in range(len(dlrm.table_sizes(50)))]
    *rows, gradients = section[2:]
    assert gradients.endswith("adamw moves rows that have none")
    told = {line.split()[0]: line for line in rows}
    assert sorted(told) == names
    assert all(f"sum of {dlrm.LONG}" in line for line in told.values())
    program = (tmp_path / "out" / "program.py").read_text()
    assert "placed_lookups(self.tables" in program
    (flat,) = [p for p in plan.lowered.parameters if p.members]
    assert {member.source for member in flat.members} <= set(names)


def wide() -> tuple[torch.nn.Module, ClusterSpec]:
    """Tables of 4.3 million rows, and devices with room for a third of them."""
    with torch.device("meta"):
        model = dlrm.make_model(rows=3_000_000, width=16, batch=64)
    return model, replace(ClusterSpec.parse("1x4 cpu"), memory_bytes=500_000_000)


def test_tables_that_no_device_has_room_for_are_shared_out() -> None:
    model, cluster = wide()
    plan = autoplan.parallelize(model, cluster, parallelism="table-parallel", effort="fast")
    assert max(stage.total for stage in plan.predicted.peak_bytes) <= 500_000_000
    with pytest.raises(DoesNotFitError):
        autoplan.parallelize(model, cluster, parallelism="ddp", effort="fast")


def test_only_recommenders_are_tried_with_tables_placed_unasked() -> None:
    batch = dlrm.clicks_of(dlrm.table_sizes(50), 16)
    assert recommends(trace(dlrm.make_model(50, 4, 16), batch, training=True))
    for name in ("llama", "bert", "gpt2"):
        model, given, loss_fn = zoo.small(name)
        assert not recommends(trace(model, given, loss_fn=loss_fn, training=True))
