"""The values that a plan comes with: written whole, split into files, read back, and none but those."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import autoplan
from autoplan.errors import PlanFileError, WeightsError
from autoplan.ir.start import Start
from autoplan.runtime.weights.loading import Safetensors
from autoplan.runtime.weights.start_values import check_values, put_values, write_values
from tests.attacks import initial_models as made
from tests.attacks.initialisation import planned
from tests.support.forked import run_script

STORED = Start(name="Own", stored=True)


def test_values_are_written_once_each_and_split(tmp_path: Path) -> None:
    model = made.Own()
    model.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)), persistent=False)
    start = write_values(STORED, model, tmp_path / "one")
    assert [file.name for file in start.files] == ["model.safetensors"]
    tensors = load_file(tmp_path / "one" / "model.safetensors")
    own = dict([*model.named_parameters(), *model.named_buffers()])
    assert tensors.keys() == own.keys() and all(torch.equal(tensors[name], own[name]) for name in own)
    many = write_values(STORED, model, tmp_path / "many", most=200)
    names = [file.name for file in many.files]
    assert names[0] == "model-00001-of-00003.safetensors" and names[-1] == "model.safetensors.index.json"
    assert set(Safetensors(tmp_path / "many").names()) == own.keys()


def test_one_in_so_many_files_is_checked(tmp_path: Path) -> None:
    start = write_values(STORED, made.Own(), tmp_path / "out", most=200)
    (tmp_path / "out" / start.files[1].name).write_bytes(b"")
    check_values(start, tmp_path / "out", 0, 2)
    with pytest.raises(WeightsError, match="it holds other bytes"):
        check_values(start, tmp_path / "out", 1, 2)
    with pytest.raises(WeightsError, match="the plan was written without its values"):
        check_values(STORED, tmp_path / "out")


def test_fewer_files_take_the_place_of_more(tmp_path: Path) -> None:
    staged, target = tmp_path / "staged", tmp_path / "target"
    target.mkdir()
    start = Start()
    for most in (200, 10**9):
        staged.mkdir()
        before = start
        start = write_values(STORED, made.Own(), staged / "weights", most=most)
        put_values(start, staged, target, before)
        (staged / "weights").rmdir()
        staged.rmdir()
    assert [path.name for path in (target / "weights").iterdir()] == ["model.safetensors"]


def test_a_plan_without_values_at_hand_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="its values are neither in this process nor in its folder"):
        write_values(STORED, None, tmp_path / "out")
    lost = planned(made.Own()).export(tmp_path / "plan")
    (lost / "weights" / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="it is missing, and training starts from it"):
        autoplan.load(lost).export(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_report_says_where_training_starts() -> None:
    stored, drawn = planned(made.Own()).report(verbose=True), planned(made.Own).report(verbose=True)
    assert "starts from the values that the model holds, which export writes beside the plan" in stored
    assert "starts from Own() run again under a seed, compared with it bit for bit" in drawn
    once = " ".join(planned(lambda: made.changed(made.by_generator)).report(verbose=True).split())
    assert "the values that the function() made under seed 0; no other seed, for it draws from a generator" in once
    hollow = planned(made.on_meta()).report(verbose=True).splitlines()
    assert hollow[3].startswith("starts from UNKNOWN: Own says nothing of the values of scale, up.weight, up.bias and")


def test_train_py_asks_for_weights_before_anything_starts(tmp_path: Path) -> None:
    folder = planned(made.on_meta()).export(tmp_path / "out")
    done = run_script(folder / "train.py", ["--steps", "1"])
    assert done.returncode == 2 and done.stdout == ""
    (said,) = done.stderr.strip().splitlines()
    assert said == (
        "autoplan: error: Own: nothing is known of the initial values of scale, up.weight, up.bias and 2 more. give "
        "--weights safetensors, or plan the function that makes it: parallelize(make_model, ...)."
    )


def test_a_checkpoint_or_weights_are_enough(tmp_path: Path) -> None:
    plan = planned(made.on_meta())
    plan.check_start(weights="there.safetensors")
    with pytest.raises(WeightsError, match="give --weights safetensors"):
        plan.check_start(checkpoints=tmp_path)
    (tmp_path / "step-00000005").mkdir()
    plan.check_start(checkpoints=tmp_path)
    planned(nn.Linear(made.WIDTH, made.WIDTH)).check_start()
