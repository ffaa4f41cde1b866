"""make validate on the rows that the repository holds: what it prints, the document, the plot."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cost_models.hardware import device_names
from tests.bench.closed_form.__main__ import main
from tests.bench.closed_form.document import document
from tests.bench.closed_form.fitting import both_ways
from tests.bench.closed_form.fitting.both_ways import FITTED
from tests.bench.closed_form.metrics import Point
from tests.bench.closed_form.plot import write_plot
from tests.bench.closed_form.published import SHIPPED, all_results, cases_on, default_folder
from tests.bench.closed_form.report import summaries
from tests.bench.closed_form.result import TableResult, results_of
from tests.bench.closed_form.tables import TABLES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results() -> tuple[TableResult, ...]:
    return all_results(SHIPPED)


@pytest.mark.slow
def test_every_table_ships_a_few_rows_and_every_one_is_priced(results: tuple[TableResult, ...]) -> None:
    assert {table.name for table in TABLES} <= {result.name for result in results}
    for result in results:
        assert not any("known device" in reason for _, reason in result.left_out), result.left_out
        assert all(0 < point.predicted < 1e30 for point in result.points)
    assert sum(path.stat().st_size for path in SHIPPED.glob("*.csv")) < 100_000


def test_predictions_of_steps_are_within_a_factor_of_three(results: tuple[TableResult, ...]) -> None:
    """A wrong unit or a missing axis of ranks is further off than that; how close they are is told by the document."""
    steps = [point for result in results if result.quantity == "step time, s" for point in result.points]
    assert len(steps) > 40
    assert all(1 / 3 < point.predicted / point.measured < 3 for point in steps)


ONE_FIT = {"a100-sxm-40gb": ("matmul_sustained",)}


@pytest.mark.parametrize(
    "fitted", [pytest.param(ONE_FIT, id="one fit"), pytest.param(FITTED, id="every fit", marks=pytest.mark.slow)]
)
def test_the_document_holds_what_is_printed(
    fitted: dict[str, tuple[str, ...]], results: tuple[TableResult, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(both_ways, "FITTED", fitted)
    path = tmp_path / "accuracy.md"
    assert main(["--published", str(SHIPPED), "--write", str(path)]) == 0
    printed, written = capsys.readouterr().out, path.read_text(encoding="utf-8")
    assert "few rows that the repository holds" in written
    halves = written.partition("## Both halves in turn")[2].partition("\n## ")[0]
    devices = {line.split(" | ")[1] for line in halves.splitlines() if line.startswith("| ")}
    assert devices - {"device", "---"} == set(fitted)
    for line in summaries(results):
        assert f"| {' | '.join(line)} |" in written
        assert re.search(r"\W+".join(map(re.escape, line)), printed), line
    assert (tmp_path / "accuracy.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_what_others_wrote_between_the_markers_is_kept(results: tuple[TableResult, ...]) -> None:
    first = document(results, (), SHIPPED, "plot.svg")
    assert "<!-- gpu -->\nNot measured: no GPU was at hand.\n<!-- /gpu -->" in first
    own = r"\g<1>| measured | table \\1 |\n\g<2>"
    live = re.sub(r"(<!-- live -->\n).*?(<!-- /live -->)", own, first, flags=re.DOTALL)
    assert document(results, (), SHIPPED, "plot.svg", live) == live != first


def test_a_table_of_several_devices_has_a_line_over_all() -> None:
    points = [Point(row, "", "", "ab"[row % 2], 1.0 + row / 10, 1.0) for row in range(1, 9)]
    lines = summaries(results_of("table", "time, s", points, "", "file.csv"))
    assert [line[1] for line in lines] == ["b", "a", "all"]
    assert [line[2:4] for line in lines] == [("2", "2"), ("2", "2"), ("4", "4")]
    many = [Point(row, "", "", str(row % 7), 1.0, 1.0) for row in range(1, 23)]
    short = summaries(results_of("table", "time, s", many, "", "file.csv"))
    assert [(line[1], line[2:4]) for line in short] == [("1", ("2", "2")), ("all", ("14", "8"))]


def test_the_plot_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    points = [Point(row, "", "", "device", 1.0 + row / 10, 1.0) for row in range(1, 9)]
    results = results_of("table", "time, s", points, "", "file.csv")
    for name in ("one.svg", "two.svg"):
        write_plot(results, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.slow
def test_the_example_in_the_document_predicts_a_step() -> None:
    text = (ROOT / "docs" / "appendix" / "accuracy.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example and len(example[1].strip().splitlines()) == 10
    ran = subprocess.run([sys.executable, "-c", example[1]], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0 and re.fullmatch(r"\d+\.\d\d s, \d+ TFLOP/s a device\n", ran.stdout), ran.stderr


def test_a_folder_without_tables_and_a_figure_that_is_not_fitted_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--published", str(tmp_path)]) == 1
    assert "holds none of the published tables" in capsys.readouterr().err
    assert main(["--published", str(SHIPPED), "--fit", "a100-sxm-80gb", "--figures", "hue"]) == 1
    assert "can't be fitted" in capsys.readouterr().err


def test_the_fit_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--published", str(SHIPPED), "--fit", "a100-sxm-40gb", "--figures", "matmul_sustained"]
    assert main(command) == 0
    assert "sustained = { value = 0." in capsys.readouterr().out


def test_cases_by_device_and_the_folder() -> None:
    assert default_folder().is_dir()
    assert {case.device for name in device_names() for case in cases_on(SHIPPED, name)} <= set(device_names())
    assert cases_on(SHIPPED, "cpu") == ()
