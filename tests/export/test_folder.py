"""The exported folder: whole or not at all; what is read is what was written; nonsense is refused by name."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import pytest

from autoplan.errors import PlanFileError
from autoplan.export import folder as folders
from autoplan.export.folder import (
    compact_json,
    opened,
    plan_text,
    program_spec,
    write_folder,
)
from autoplan.ir import codec
from autoplan.ir.checksums import is_sealed, sealed
from autoplan.ir.record import SCHEMA, PlanRecord
from cost_models.hardware import PROFILES
from tests.support.hand_made import llama
from tests.support.records import parse_plan, record_of


@pytest.fixture(scope="module")
def record() -> PlanRecord:
    return record_of(llama(), "1x4 cpu", dp=2, tp=2, pp=1)


@pytest.fixture
def exported(record, tmp_path) -> Path:
    return write_folder(record, tmp_path / "out", "dp=2 tp=2", {"report.html": "<html></html>"})


def test_what_is_read_is_what_was_written(record, exported):
    assert opened(exported).record == record
    assert opened(exported / "plan.json").record == record


def test_a_reading_takes_one_checksum_and_each_class_s_annotations_once(exported, monkeypatch):
    sums, classes = [], []
    hints = typing.get_type_hints
    monkeypatch.setattr(folders, "is_sealed", lambda data: sums.append(1) or is_sealed(data))
    monkeypatch.setattr(codec.typing, "get_type_hints", lambda kind: classes.append(kind) or hints(kind))
    opened(exported)
    assert len(sums) == 1
    assert len(classes) < 3 * len(set(classes)), "once for each part of the plan that has the class"


def test_a_plan_carries_the_figures_of_its_profile(tmp_path):
    """Read where the profile isn't, it is the plan that was written, with what its report asks of the cluster."""
    profile = tmp_path / "mine.toml"
    profile.write_text((PROFILES / "cpu.toml").read_text())
    made = record_of(llama(), f"1x4 {profile}", dp=2, tp=2, pp=1)
    text = plan_text(made, "x")
    profile.unlink()
    read = parse_plan(text, "plan.json")
    assert read == made
    assert (read.cluster.usable_bytes, read.cluster.topology()) == (made.cluster.usable_bytes, made.cluster.topology())


def test_the_folder_holds_the_four_files_and_nothing_else(exported):
    assert sorted(p.name for p in exported.iterdir()) == ["plan.json", "program.py", "report.html", "train.py"]
    assert [p.name for p in exported.parent.iterdir()] == ["out"]


def test_the_same_plan_is_the_same_text(record):
    assert plan_text(record, "x") == plan_text(record, "x")


def test_the_program_imports_and_its_spec_agrees(record, exported):
    module = opened(exported).module()
    assert len(module.STAGES) == len(program_spec(record).lowered.stages) == 1


def test_exporting_again_keeps_other_files(record, exported):
    (exported / "notes.txt").write_text("mine")
    write_folder(record, exported, "dp=2 tp=2", {})
    assert (exported / "notes.txt").read_text() == "mine"


def test_a_failure_leaves_no_half_written_folder(record, tmp_path, monkeypatch):
    def fail(*_: object) -> str:
        raise RuntimeError("no program")

    monkeypatch.setattr(folders, "program_text", fail)
    with pytest.raises(RuntimeError):
        write_folder(record, tmp_path / "out", "x", {})
    assert list(tmp_path.iterdir()) == []


def test_json_lines_stay_short_where_they_can():
    text = compact_json({"a": list(range(100)), "b": {"c": 1}})
    assert json.loads(text) == {"a": list(range(100)), "b": {"c": 1}}
    assert '"b": {"c": 1}' in text


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda d: d | {"schema": 99}, f"schema 99: this version of autoplan reads schema {SCHEMA}"),
        (lambda d: {k: v for k, v in d.items() if k != "schema"}, "it has no schema"),
        (lambda d: {k: v for k, v in d.items() if k != "chosen"}, "it lacks ['chosen']"),
        (lambda d: d | {"model": {"name": "x"}}, "lacks"),
        (lambda d: d | {"cluster": {"nodes": 0, "devices_per_node": 4, "device": "cpu"}}, "nodes"),
        (lambda d: d | {"cluster": None}, "cluster: dict belongs here"),
        (lambda d: d | {"profiles": {"devices": []}}, "profiles: a Known lacks ['fabrics']"),
        (lambda d: d | {"training_kind": None}, "training_kind: it is Training or Inference"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_reason(exported, edit, said):
    file = exported / "plan.json"
    file.write_text(json.dumps(sealed(edit(json.loads(file.read_text())))))
    with pytest.raises(PlanFileError) as caught:
        opened(exported)
    assert said in str(caught.value)


def test_a_layout_edited_into_nonsense_is_refused(exported):
    file = exported / "plan.json"
    data = json.loads(file.read_text())
    strategies = dict(data["chosen"]["blocks"][1]["strategies"])
    dict(strategies["down"]["axes"])["tp"]["output"] = "I"
    file.write_text(json.dumps(sealed(data)))
    with pytest.raises(PlanFileError, match=r"its layouts don't follow.*down"):
        opened(exported)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_other_texts_are_no_plans(text):
    with pytest.raises(PlanFileError):
        parse_plan(text, "plan.json")


def test_a_missing_folder_says_so(tmp_path, exported):
    with pytest.raises(PlanFileError, match=r"there is no plan\.json"):
        opened(tmp_path / "nowhere")
    (exported / "program.py").unlink()
    with pytest.raises(PlanFileError, match=r"there is no program\.py"):
        opened(exported).module()
