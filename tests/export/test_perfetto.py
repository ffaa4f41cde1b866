"""The predicted step as a trace: as long as the step, with a measured one beside it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from autoplan.errors import InputsError
from autoplan.plan import Plan
from tests.support.hand_made_plans import of_four_stages


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(of_four_stages())


def events(path: Path) -> list[dict]:
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["traceEvents"]


def test_the_trace_is_as_long_as_the_step(plan: Plan, tmp_path: Path) -> None:
    for name in ("step.json", "step.json.gz"):
        found = [e for e in events(plan.trace(tmp_path / name)) if e["ph"] == "X"]
        end = max(e["ts"] + e["dur"] for e in found)
        assert end == pytest.approx(plan.predicted.step_time_s * 1e6) and min(e["ts"] for e in found) >= 0
        forwards = [e for e in found if e["name"].startswith("forward")]
        assert len(forwards) == 4 * plan.record.chosen.microbatches


def test_every_message_has_both_ends(plan: Plan, tmp_path: Path) -> None:
    found = events(plan.trace(tmp_path / "step.json"))
    sent, come = ({e["id"]: e for e in found if e["ph"] == phase} for phase in "sf")
    assert sent.keys() == come.keys() and len(sent) == 2 * 3 * plan.record.chosen.microbatches
    assert all(abs(come[key]["pid"] - e["pid"]) == 1 and come[key]["ts"] >= e["ts"] for key, e in sent.items())


def test_a_measured_step_stands_beside_it(plan: Plan, tmp_path: Path) -> None:
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps({"traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
        {"ph": "X", "name": "aten::mm", "pid": 0, "tid": 7, "ts": 5e9, "dur": 3.0},
        {"ph": "X", "name": "aten::add", "pid": 0, "tid": 7, "ts": 5e9 + 10, "dur": 1.0},
    ]}))  # fmt: skip
    own = [e for e in events(plan.trace(tmp_path / "both.json", measured=measured)) if e["pid"] == "measured 0"]
    assert own[0]["args"]["name"] == "measured: python" and [e.get("ts") for e in own[1:]] == [0.0, 10.0]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"traceEvents": []}', '{"traceEvents": [{"ph": "X"}]}'])
def test_what_is_no_trace_is_refused(plan: Plan, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputsError, match="no trace of a step"):
        plan.trace(tmp_path / "both.json", measured=tmp_path / "bad.json")
    with pytest.raises(InputsError):
        plan.trace(tmp_path / "both.json", measured=tmp_path / "missing.json")
    assert not (tmp_path / "both.json").exists()
