"""The predicted step beside the measured one, and a program that is measured."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import autoplan
from autoplan import Inference, Plan
from autoplan.cli import main
from autoplan.errors import AutoplanError, InputsError, LaunchError, ParallelismError
from autoplan.ir.codec import decode, encode
from autoplan.measurement import Measurement
from autoplan.measurement.part_by_part import RankMeasured, beside
from autoplan.measurement.profiled import profiled
from autoplan.measurement.rank_step import OTHERS, RankStep, rank_step
from autoplan.verify.local_ranks import RankPool
from tests.support.hand_made_plans import of_four_stages
from tests.support.replanned import planned


def rank(pipeline: int, step_s: float, peak: int | None = None, **waited: float) -> RankMeasured:
    compute_s, update_s = 0.4 * step_s, 0.1 * step_s
    idle_s = step_s - compute_s - update_s - sum(waited.values())
    parts = RankStep(step_s, compute_s, update_s, waited, idle_s, {axis: 2 * s for axis, s in waited.items()})
    return RankMeasured("H100", (step_s, 2 * step_s, step_s), parts, pipeline, peak)


def test_both_steps_are_put_together_from_the_same_parts() -> None:
    record = of_four_stages()
    predicted = record.chosen.predicted
    found = beside(record, [rank(k, 1.0, 10**9 + k, pp=0.1, dp=0.2) for k in range(4)])
    assert found.step_s == 1.0 and found.steps_s == (1.0, 2.0, 1.0) and found.predicted_s == predicted.step_time_s
    assert sum(p.predicted_s for p in found.parts) == pytest.approx(predicted.step_time_s)
    assert sum(p.measured_s for p in found.parts) == pytest.approx(1.0)
    by_name = {p.name: p for p in found.parts}
    assert by_name["pipeline bubble and messages"].measured_s == pytest.approx(0.1 + 0.2)
    assert by_name["waiting for collectives over dp"].measured_s == pytest.approx(0.2)
    assert by_name["pipeline bubble and messages"].predicted_s > 0.99 * predicted.bubble_fraction * found.predicted_s
    assert [(p.rank, p.predicted_bytes, p.measured_bytes) for p in found.peaks] == [
        (k, predicted.peak_bytes[k].total, 10**9 + k) for k in range(4)
    ]
    assert {p.name: p.measured_s for p in found.axes}["dp"] == pytest.approx(0.4)
    assert found.most_off is not None and found.most_off.name in str(found)
    assert decode(Measurement, json.loads(json.dumps(encode(found))), "here") == found


@pytest.mark.parametrize(("device", "remedy"), [("H100", "the host to launch kernels"), ("cpu", "fewer processes")])
def test_an_idle_device_waits_for_its_host_and_an_idle_core_for_others(device: str, remedy: str) -> None:
    idle = replace(rank(0, 9.0), device=device, parts=RankStep(9.0, 1.0, 0.0, {}, 8.0, {}))
    found = beside(planned().record, [idle])
    assert found.most_off is not None and found.most_off.name == "nothing computes or is sent"
    assert remedy in str(found)


def test_what_the_profiler_adds_is_taken_from_idle_time_first() -> None:
    record = of_four_stages()
    slow = rank(0, 1.0, dp=0.2)
    for step_s, compute_s, idle_s in ((0.8, 0.4, 0.1), (0.35, 0.2, 0.0)):
        timed = [replace(slow, steps_s=(step_s,), pipeline=k) for k in range(4)]
        parts = {p.name: p.measured_s for p in beside(record, timed).parts}
        assert parts["compute"] == pytest.approx(compute_s) and sum(parts.values()) == pytest.approx(step_s)
        assert parts["pipeline bubble and messages"] == pytest.approx(idle_s)


def test_a_step_as_predicted_has_no_remedy() -> None:
    record = planned(parallelism="ddp").record
    found = beside(record, [rank(0, 1.0)] * 4)
    same = replace(found, parts=tuple(replace(p, measured_s=p.predicted_s) for p in found.parts))
    assert same.most_off is None and "No part is off" in str(same)


def measured(rank: int, world: int, folder: str) -> tuple[Measurement, str]:
    plan, other = autoplan.load(folder), autoplan.load(folder + "-other")
    with plan.program() as program:
        program.init_weights()
        with pytest.raises(InputsError, match="another plan's") as error:
            other.measure(program, steps=1)
        with pytest.raises(InputsError, match=r"it is a tuple"):
            plan.measure((torch.zeros(8, 16), torch.zeros(8)))  # type: ignore[arg-type]
        there = Path(folder) if rank == 0 else Path("/nowhere")  # other nodes' folders are their own
        return plan.measure(program, steps=2, trace=there / "profile.json"), str(error.value)


def test_a_program_is_measured(pool: RankPool, tmp_path: Path) -> None:
    planned(parallelism="ddp").export(tmp_path / "out")
    planned(parallelism="zero1").export(tmp_path / "out-other")
    (first, _), *others = pool.run(measured, str(tmp_path / "out"))
    assert all(found == first for found, _ in others) and first.ranks == 4 and len(first.steps_s) == 2
    names = [p.name for p in first.parts]
    assert names == ["compute", "parameter update", "waiting for other ranks", "nothing computes or is sent"]
    compute, update, waited, _ = first.parts
    assert min(compute.measured_s, update.measured_s, waited.measured_s) > 0 and not first.peaks
    kept = json.loads((tmp_path / "out" / "profile.json").read_text())["traceEvents"]
    assert rank_step(kept, {}).waited_s[OTHERS] > 0


def test_a_step_begins_once_every_profiler_has_started() -> None:
    late_s = 0.3
    events = profiled(lambda: torch.ones(8).sum(), lambda: None, torch.device("cpu"), lambda: time.sleep(late_s))
    assert 0 < rank_step(events, {}).step_s < late_s


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [({"steps": 0}, InputsError, "steps=0"), ({"batch": {}}, InputsError, "give a program"),
     ({"trace": f"{__file__}/trace"}, InputsError, "can't be made: .* a place of your own")],
)  # fmt: skip
def test_what_cannot_be_measured(asked: dict, error: type[AutoplanError], told: str) -> None:
    with pytest.raises(error, match=told):
        Plan(of_four_stages()).measure(**asked)


def test_a_plan_for_other_devices_says_how_to_start_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LaunchError, match="torchrun --nnodes 1 --nproc-per-node 4 -m autoplan measure"):
        Plan(of_four_stages()).measure()
    with pytest.raises(ParallelismError, match="no step"):
        planned(training=Inference()).measure()
    assert main(["measure", str(tmp_path)]) == 2 and "there is no plan.json" in capsys.readouterr().err
    assert main(["measure", str(tmp_path), "--json", f"{__file__}/found.json"]) == 2
    assert f"the folder {__file__} can't be made" in capsys.readouterr().err  # before anything runs


@pytest.mark.slow
def test_this_machines_processes_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(parallelism="ddp")
    assert plan.measure(steps=1).ranks == 4  # without a folder
    folder = plan.export(tmp_path / "out")
    assert main(["measure", str(folder), "--steps", "2", "--json", str(tmp_path / "found.json")]) == 0
    found = decode(Measurement, json.loads((tmp_path / "found.json").read_text()), "found.json")
    assert str(found) in capsys.readouterr().out and len(found.steps_s) == 2
    loaded = autoplan.load(folder)
    (folder / "program.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(LaunchError, match=r"program\.py"):
        loaded.measure(steps=1)
