"""The parts of `make gpu`, on a CPU and in small form: what is left for a GPU is the device's name."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
import torch

from tests.bench.gpu import calibrated, correctness, measured, one_rank, predicted, profiled
from tests.bench.gpu.__main__ import all_parts, main, result_file
from tests.bench.gpu.clock import kernel_times, kernels, peak_bytes
from tests.bench.gpu.clock import profiled as profiled_by
from tests.bench.gpu.document import document
from tests.bench.gpu.kernels import run as run_kernels
from tests.bench.gpu.parts import PARTS
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting

CPU = torch.device("cpu")


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting("cpu", True, tmp_path)


def test_without_the_device_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "no-such-device", "--folder", str(tmp_path / "gpu"), "--write", "x.md"]) == 2
    assert "no no-such-device here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_document_has_each_part_the_date_and_the_device(tmp_path: Path) -> None:
    result = Result("One part", "What was measured.", ("a", "b"), (("1", "2"),), ("a: too much",))
    result.write(tmp_path / "part.json")
    assert Result.read(tmp_path / "part.json") == result
    setting = Setting("cpu", True, tmp_path)
    setting.note_device()
    text = document(setting.measured_on(), [result], {"trace": "it took more than 600 s"})
    assert f"Measured on {date.today():%Y-%m-%d} on one cpu, torch {torch.__version__}.\n" in text
    assert "| a | b |\n| --- | --- |\n| 1 | 2 |\n\nNot as asked:\n\n- a: too much" in text
    assert "## trace\n\nDidn't end: it took more than 600 s" in text


def test_waits_are_told_from_a_trace() -> None:
    x = torch.ones(3)

    def act() -> None:
        x.sum().item()

    found = profiled.waiting(list(profiled_by(act, CPU).events() or []))
    assert found == {"aten::item": 1, "aten::_local_scalar_dense": 1}, "what the profile itself waits for isn't counted"
    assert not profiled.waiting(list(profiled_by(lambda: x + x, CPU).events() or []))


def test_the_clock_counts_kernels_and_bytes() -> None:
    x = torch.ones(1000)
    assert kernels(lambda: x + x + x, CPU) == 2
    ((name, (count, taken)),) = kernel_times(lambda: x + x + x, CPU).items()
    assert (name, count) == ("aten::add", 2) and 0 < taken < 1
    assert peak_bytes(lambda: lambda: (x + x) * (x - x), CPU) == 3 * 4000


def test_a_program_trains_as_the_module_does(setting: Setting) -> None:
    module = setting.module("GPT-2, dropout")
    assert {m.p for m in module.modules() if isinstance(m, torch.nn.Dropout)} == {0.0}
    wanted = correctness.trained(setting, setting.module("Llama").double())
    again = correctness.trained(setting, setting.module("Llama").double())
    assert correctness.largest_difference(again, wanted) == 0.0
    name = next(iter(wanted))
    moved = {**again, name: again[name] + wanted[name].abs().max() / 2}
    assert correctness.largest_difference(moved, wanted) == pytest.approx(0.5)


def test_kernels_of_docstrings_are_timed(setting: Setting) -> None:
    rows = run_kernels(setting).rows
    assert len(rows) == 6 and all(float(ms) > 0 for _, ms, _ in rows)


@pytest.mark.slow
def test_a_profile_is_fitted_anew_from_its_table(setting: Setting) -> None:
    measured_once = calibrated.run(setting)
    (setting.folder / "profile.toml").unlink()
    assert main(["--refit", "--device", "cpu", "--small", "--folder", str(setting.folder)]) == 0
    again = Result.read(result_file(setting, "calibrated"))
    assert [row[0] for row in again.rows] == [row[0] for row in measured_once.rows]
    found = (setting.folder / "profile.toml").read_text()
    assert "one process on" in found, "the profile says where it was measured"


@pytest.mark.slow
def test_one_rank_is_measured_and_traced(setting: Setting) -> None:
    row, ratio = one_rank.pair(setting, one_rank.pairs(setting)[0])
    assert row[:3] == ("Llama", "fp32", "eager") and 0.1 < ratio < 10
    assert 100 < int(row[-3]) < 2 * int(row[-2])
    ours, theirs = row[-1].split(" : ")
    assert float(ours) == pytest.approx(float(theirs), abs=2e-4), "the same values, the same loss"
    (traced,) = profiled.run(setting).rows
    assert traced[0] == "Llama" and (setting.folder / traced[-1]).stat().st_size > 10_000


@pytest.mark.slow
def test_predicted_rehearsed_and_measured(setting: Setting) -> None:
    """Measured in one place, predicted from what that left in another."""
    assert len(measured.run(setting).rows) == 2
    row = predicted.row_of(setting, "llama", measured.read(setting)["llama"])
    assert abs(row.rehearsed_off) < 0.15 and abs(row.bytes_off) < 0.25
    assert row.seconds[0] > 0 < row.seconds[1] and min(row.kernels) > 100
    found = predicted.run(setting)
    assert len(found.rows) == 2 and len(row.cells()) == len(found.heads)


@pytest.mark.slow
def test_ranks_that_share_the_device_equal_the_module(setting: Setting) -> None:
    found = correctness.run(setting)
    assert [row[0] for row in found.rows] == list(correctness.FEW) and not found.wrong, found.wrong


@pytest.mark.slow
def test_every_part_runs_apart(setting: Setting, tmp_path: Path) -> None:
    assert all_parts(setting, ["calibrated", "trace", "no-such-part"], tmp_path / "gpu.md") == 1
    assert not result_file(setting, "no-such-part").exists()
    assert not (tmp_path / "gpu.md").exists(), "a CPU's figures aren't a GPU's"
    assert Result.read(result_file(setting, "calibrated")).rows
    assert (tmp_path / "profile.toml").exists() and list(PARTS)[1] == "calibrated"


@pytest.mark.slow
def test_plans_are_made_before_the_device_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "gpu"
    assert main(["--small", "--prepare", "--folder", str(folder), "trace", "one-rank"]) == 0
    assert sorted(each.name for each in (folder / "plans").iterdir()) == [
        "llama-bf16-mixed-compiled-none-1", "llama-fp32-eager-none-1"
    ]  # fmt: skip
