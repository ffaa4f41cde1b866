"""What users type by mistake, of each kind some: one line with value, cause and remedy, status 2, nothing written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from autoplan.cli import main
from autoplan.ir.record import SCHEMA

ROOT = Path(__file__).resolve().parents[2]
PLAN = ["plan", "--model", f"{ROOT}/examples/mlp.py:make_model", "--config", "depth=2", "--config", "width=16"]
PLAN += ["--cluster-spec", "1x2 cpu", "--batch", "16", "--effort", "fast"]
MODELS = {
    "syntax": "def make_model(:\n", "raises": "raise ValueError('no data')\n", "exits": "import sys; sys.exit(3)\n",
    "imports": "import notinstalled_x\n", "none": "def make_model(): return None\n",
    "quits": "def make_model(): raise SystemExit\ndef example_inputs(batch): return ()\n",
    "opens": "def make_model(): pass\ndef example_inputs(batch): return open('nowhere.bin')\n",
}
CLUSTERS = {"bad": "nodes = = 1", "odd": "nodes = 1\nwheels = 4\n", "negative": "nodes = -1\ndevices_per_node = 2\n"}
MISTYPED: list[tuple[list[str], str]] = [
    ([], "no command is given. give one of plan"),
    (["plann"], "did you mean plan"),
    (["plan", "--model"], "expected one argument"),
    (["compare", "good"], "it lacks cluster_spec"),
    (["checkpoint", "check", "x"], "use one of verify"),
    (["train", "--steps", "3", "good"], "what a script takes follows: autoplan train FOLDER --steps …"),
    (["train", "good", "--max-restarts", "3"], "write it before: autoplan train --max-restarts N good"),
    (["train", "good", "--max-restarts=3"], "what follows the folder is handed to train.py"),
    ([*PLAN, "--batch", "0"], "--batch 0: a size is at least 1"),
    ([*PLAN, "--batch", "x"], "--batch 'x': it is not a number"),
    ([*PLAN, "--effort", "slow"], "use one of full, fast"),
    ([*PLAN, "--loss", "cross_entropie"], "did you mean cross_entropy?"),
    ([*PLAN, "--training", "learning_rate=nan"], "takes a number there"),
    ([*PLAN, "--training", "seed=1.5"], "takes a whole number there"),
    ([*PLAN, "--training", "lr_schedule=cosine"], "as in lr_schedule={'name': 'cosine', 'steps': 1000}"),
    ([*PLAN, "--training", ""], "takes KEY=VALUE"),
    ([*PLAN, "--parallelism", ""], "it says nothing"),
    ([*PLAN, "--parallelism", "dp=2,dp=1"], "dp is both 2 and 1"),
    ([*PLAN, "--parallelism", "pp=2,tp=2"], "they multiply to 4, and the cluster has 2 devices"),
    ([*PLAN, "--config", "depth"], "--config takes KEY=VALUE"),
    ([*PLAN, "--config", "depth=x"], "mend it there"),
    ([*PLAN, "--export", "file/sub"], "file is a file"),
    ([*PLAN, "--export", ""], "it is no folder's path"),
    ([*PLAN, "--export", "/proc/nope"], "nothing can be written in /proc"),
    (["devices", "h1000"], "nearest: h200"),
    (["checkpoint", "verify", "good"], "there is no finished checkpoint"),
    (["measure", "good", "--steps", "0"], "is not a whole number of at least 1"),
    (["rehearse", "good", "--ranks", "7"], "the plan has ranks 0 to 1"),
    (["trace", "good", "file/x.json"], "the folder file can't be made"),
    (["trace", "good", "t.json", "--measured", "file"], "it is no trace of a step"),
    (["config", "good", "megatron2"], "did you mean megatron"),
    (["explain", "good", "nosuch"], "the nearest names are"),
    (["what-if", "good", "--batch", "7"], "give a batch of 8 rows"),
    (["what-if", "good", "--bandwidth", "nic:x"], "is no factor"),
    (["diff", "good", "nowhere"], "there is no plan.json"),
]
OF_MODELS = {
    "syntax": "SyntaxError", "raises": "ValueError: no data", "exits": "SystemExit: 3 (", "imports": "notinstalled_x",
    "none": "define example_inputs(batch)", "quits": "SystemExit", "opens": "FileNotFoundError",
}  # fmt: skip
OF_CLUSTERS = {"bad": "is not TOML", "odd": "lacks devices_per_node", "negative": "lacks device"}
DAMAGED: dict[str, tuple[Callable[[str], str], str]] = {
    "cut off": (lambda text: text[:200], "no JSON"),
    "empty": (lambda text: "", "no JSON"),
    "a list": (lambda text: "[1, 2]", "it has no schema"),
    "old": (lambda text: text.replace(f'"schema": {SCHEMA}', '"schema": 3'), f"reads schema {SCHEMA}"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a plan, ``good``, a file, models and clusters."""
    found = tmp_path_factory.mktemp("mistakes")
    assert main([*PLAN, "--parallelism", "dp=2", "--export", str(found / "good")]) == 0
    (found / "file").write_text("x")
    for name, text in MODELS.items():
        (found / f"{name}.py").write_text(text)
    for name, text in CLUSTERS.items():
        (found / f"{name}.toml").write_text(text)
    return found


def check(arguments: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def seen() -> dict[str, int]:
        paths = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
        return {str(path): path.stat().st_mtime_ns for path in paths if path.is_file()}

    before = seen()
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("autoplan: error: ") and said in err, err
    assert re.fullmatch(r"[^\n]+: [^\n]+\. [^\n]+\n", err), err
    assert seen() == before


@pytest.mark.parametrize(("arguments", "said"), MISTYPED, ids=lambda value: None)
def test_what_is_mistyped_is_one_line(
    arguments: list[str], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    check(arguments, said, folder, capsys)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_s_file_that_fails_is_one_line(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it ends the process: autoplan's own end would say nothing."""
    monkeypatch.chdir(folder)
    check(["plan", "--model", f"{name}.py:make_model", *PLAN[7:]], OF_MODELS[name], folder, capsys)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_s_file_that_says_none_is_one_line(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    check([*PLAN[:7], "--cluster-spec", f"{name}.toml"], OF_CLUSTERS[name], folder, capsys)


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_plan_is_one_line(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit, said = DAMAGED[name]
    (tmp_path / "plan.json").write_text(edit((folder / "good" / "plan.json").read_text()))
    check(["report", str(tmp_path)], said, tmp_path, capsys)


def test_what_is_verified_is_told_where_program_py_was_edited(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = shutil.copytree(folder / "good", tmp_path / "own")
    program, text = own / "program.py", (own / "program.py").read_text()
    for edited in (False, True):
        program.write_text(text + "# mine\n" * edited)
        assert main(["seal", str(own)]) == 0 and main(["verify", str(own)]) == 0
        assert ("it isn't what is compared" in capsys.readouterr().err) == edited
    program.unlink()
    assert main(["verify", str(own)]) == 2 and "there is no program.py" in capsys.readouterr().err
