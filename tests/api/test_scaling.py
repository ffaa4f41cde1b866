"""Scaling: which clusters are asked, and what each point is."""

from __future__ import annotations

from pathlib import Path

import pytest

import autoplan
from autoplan.cli import main
from autoplan.cluster import ClusterSpec
from autoplan.scaling import ScalingPoint, around, no_slower
from tests.support.replanned import planned


@pytest.mark.parametrize(
    ("cluster", "devices"),
    [("1x8 cpu", [2, 4, 8, 16, 32]), ("4x8 h100-sxm", [8, 16, 32, 64, 128]), ("1x1 cpu", [1, 2, 4])],
)
def test_the_clusters_around_one(cluster: str, devices: list[int]) -> None:
    found = around(ClusterSpec.of(cluster))
    assert [each.devices for each in found] == devices and ClusterSpec.of(cluster) in found


def test_wider_links_are_no_slower() -> None:
    found = [ScalingPoint("c", 4, w, f"{w}", step_s, 1 / step_s) for w, step_s in ((0.5, 3.0), (1.0, 2.0), (2.0, 2.5))]
    lacking = ScalingPoint("c", 4, 4.0, why_not="none")
    assert [(p.bandwidth, p.plan, p.step_time_s) for p in no_slower([*found, lacking])] == [
        (0.5, "0.5", 3.0), (1.0, "1.0", 2.0), (2.0, "1.0", 2.0), (4.0, "1.0", 2.0),
    ]  # fmt: skip


@pytest.mark.slow
def test_each_point_is_planned_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(parallelism="ddp")
    folder = plan.export(tmp_path / "out")
    assert main(["scaling", str(folder)]) == 0
    found = plan.scaling()
    assert str(found) in capsys.readouterr().out and 'id="scaling"' in (folder / "report.html").read_text()
    half = next(p for p in found.devices if p.devices == 2)
    assert half.step_time_s == plan.what_if("1x2 cpu", effort="fast").predicted.step_time_s
    assert [p.devices for p in found.devices] == [1, 2, 4, 8, 16] and found.devices[-1].why_not  # of 8 rows
    plan.export(folder)  # its report is no edit
    assert 'id="scaling"' in (folder / "report.html").read_text() and autoplan.load(folder) is not None
    (folder / "report.html").write_text("mine")
    assert main(["scaling", str(folder)]) == 0 and (folder / "report.html").read_text() == "mine"
