"""Damage and edits in an exported folder are told; an export replaces its own files alone."""

from __future__ import annotations

import json
import os
import py_compile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.errors import PlanFileError
from autoplan.export.folder import opened, seal_folder, write_folder
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Lowered
from autoplan.lower import after_search
from tests.support.hand_made import llama
from tests.support.records import record_of


@pytest.fixture(scope="module")
def record() -> PlanRecord:
    return record_of(llama(), "1x4 cpu", dp=2, tp=2, pp=1)


@pytest.fixture
def exported(record, tmp_path) -> Path:
    return write_folder(record, tmp_path / "out", "dp=2 tp=2", {"report.html": "<html></html>"})


def refused_edit(exported: Path, name: str, change: Callable[[str], str]) -> str:
    """What is said where a file was edited, by load or by what runs the program."""
    path = exported / name
    path.write_text(change(path.read_text()))
    with pytest.raises(PlanFileError) as caught:
        opened(exported)
    return str(caught.value)


def test_an_edited_plan_or_program_is_refused_and_sealed_on_purpose(record, exported):
    assert seal_folder(exported) == ()
    said = refused_edit(exported, "plan.json", lambda text: text.replace('"name": "Llama"', '"name": "Lama"', 1))
    assert "its content isn't what its checksum says: it is damaged, or was edited" in said
    assert "autoplan seal FOLDER" in said
    assert seal_folder(exported) == ("plan.json",)
    assert opened(exported).record.model.name == "Lama"
    said = refused_edit(exported, "program.py", lambda text: text + "MINE = 1\n")
    assert "it isn't the file that was exported with the plan beside it" in said
    with pytest.raises(PlanFileError, match="it isn't the file that was exported"):
        opened(exported).module()
    assert seal_folder(exported) == ("program.py",)
    assert opened(exported).module().MINE == 1


def test_what_is_no_program_is_not_sealed(exported):
    before = (exported / "plan.json").read_bytes()
    (exported / "program.py").write_text("def f(:\n")
    with pytest.raises(PlanFileError, match="it isn't Python"):
        seal_folder(exported)
    assert (exported / "plan.json").read_bytes() == before


def test_spaces_and_order_are_no_edit(record, exported):
    file = exported / "plan.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps(dict(reversed(data.items())), indent=3))
    assert opened(exported).record == record


def test_what_python_cached_of_another_program_does_not_run(exported):
    file = exported / "program.py"
    text, status = file.read_text(), file.stat()
    file.write_text("FOREIGN = 1\n".ljust(len(text)))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    py_compile.compile(str(file), doraise=True)
    file.write_text(text)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not hasattr(opened(exported).module(), "FOREIGN")


def test_an_export_replaces_its_own_and_keeps_an_edited_train_py(record, exported):
    write_folder(record, exported, "dp=2 tp=2", {"report.html": "new", "pretrained/config.json": b"{}"})
    assert (exported / "report.html").read_text() == "new" and (exported / "pretrained/config.json").is_file()
    (exported / "train.py").write_text("mine")
    with pytest.warns(UserWarning, match="train.py was edited since it was exported, and was left as it is"):
        write_folder(record, exported, "dp=2 tp=2", {"report.html": "new"})
    assert (exported / "train.py").read_text() == "mine"
    assert not (exported / "pretrained/config.json").exists()
    opened(exported)


@pytest.mark.parametrize("name", ["program.py", "train.py", "report.html", "plan.json"])
def test_an_export_replaces_nothing_of_the_user_s(record, tmp_path, name):
    (tmp_path / name).write_text("my own")
    with pytest.raises(PlanFileError, match="would be replaced"):
        write_folder(record, tmp_path, "x", {"report.html": ""})
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(name, "my own")]


def test_an_export_loses_no_edit_of_the_program(record, exported):
    (exported / "program.py").write_text("edited")
    with pytest.raises(PlanFileError, match="it was edited since it was exported"):
        write_folder(record, exported, "x", {})
    assert (exported / "program.py").read_text() == "edited"


def test_a_loaded_plan_is_proven_once_and_runs_its_own_program(
    record: PlanRecord, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven: list[Lowered] = []
    monkeypatch.setattr(after_search, "typecheck", lambda program, apart: proven.append(program))
    plan = opened(exported)
    assert plan.spec().lowered is plan.lowered and len(proven) == 1
    write_folder(replace(record, model=replace(record.model, name="Other")), exported, "another plan", {})
    with pytest.raises(PlanFileError, match=r"program\.py: it isn't the file that was exported with the plan"):
        plan.module()
