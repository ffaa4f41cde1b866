"""A plan in transformers' Trainer: its own example, shrunk, takes the steps that it takes on one device."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

from safetensors.torch import load_file
from transformers import TrainingArguments

import autoplan
from autoplan.errors import CheckpointError, InputsError, ParallelismError
from autoplan.integrations.accelerate import FOLDER
from autoplan.integrations.transformers import Trainer, training_of
from autoplan.runtime.checkpoint.state_json import STATE
from tests.support import trainer_loop as loop
from tests.support.forked import in_fork, run_ranks, run_script
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled

WAYS = {"dp": {"dp": 2}, "tp": {"tp": 2}}


def exported(folder: Path, pinned: Mapping[str, int], cluster: str = "1x2 cpu") -> Path:
    ids = torch.zeros(loop.ROWS, loop.TOKENS, dtype=torch.int64)
    plan = parallelize_alone(
        loop.small_llama(), cluster, {"input_ids": ids, "labels": ids}, effort="fast",
        training=training_of(loop.arguments(str(folder))), parallelism=autoplan.Parallelism(**pinned),  # type: ignore[arg-type]
    )  # fmt: skip
    return plan.export(folder)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What transformers' own Trainer finds on one device."""
    folder = tmp_path_factory.mktemp("one")
    done = run_script(Path(shutil.copy(loop.__file__, folder)), [str(folder / "run"), "1"])
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.parametrize(("way", "again"), sampled([("dp", False), ("dp", True), ("tp", True)], [("dp", False)]))
def test_the_example_is_one_device_s(way: str, again: bool, one: Path, tmp_path: Path) -> None:
    """Losses, norms, rates, evaluations, the count of operations, the best weights, also of a short last batch; and
    again from a checkpoint."""
    plan, script = exported(tmp_path / "plan", WAYS[way]), Path(shutil.copy(loop.__file__, tmp_path))
    ranks, run = str(WAYS[way].get("dp", 1)), tmp_path / "run"
    wanted = json.loads((one / "found.json").read_text())
    for further, steps in (([], 10), ([str(run / "checkpoint-4")], 6))[: 1 + again]:
        for done in run_ranks(script, 2, [str(run), ranks, str(plan), *further]):
            assert done.returncode == 0, done.stderr
        found = json.loads((run / "found.json").read_text())
        assert found["steps"] == steps
        for line, known in zip(found["lines"], wanted["lines"], strict=True):
            assert line == pytest.approx(known, rel=2e-6)
    saved, known = (load_file(folder / "final" / "model.safetensors") for folder in (run, one))
    assert saved.keys() == known.keys()
    for name, value in known.items():
        torch.testing.assert_close(saved[name], value, rtol=1e-4, atol=2e-6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("alone") / "plan", {}, "1x1 cpu")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"label_smoothing_factor": 0.1}, "the plan's loss"),
        ({"neftune_noise_alpha": 5.0}, "no noise"),
        ({"auto_find_batch_size": True}, "the batch is the plan's"),
        ({"per_device_train_batch_size": 8}, "give 8 rows with 1 step"),
        ({"per_device_eval_batch_size": 64}, "an evaluation as many at most"),
    ],
)
@in_fork
def test_arguments_that_a_program_cannot_honour(given: dict, message: str, alone: Path, tmp_path: Path) -> None:
    args = loop.arguments(str(tmp_path), **given)
    with pytest.raises(ParallelismError, match=message):
        Trainer(plan=alone, model=loop.small_llama(), args=args)


@in_fork
def test_a_default_that_is_too_large_is_made_to_fit(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoplan.integrations.arguments.evaluated_at_once", lambda program: 3)
    args = loop.arguments(str(tmp_path), per_device_eval_batch_size=8)
    trainer = Trainer(plan=alone, model=loop.small_llama(), args=args, eval_dataset=loop.Tokens(8, 2))
    assert trainer.args.per_device_eval_batch_size == 3 and args.per_device_eval_batch_size == 8
    assert "per_device_eval_batch_size: 3, as the plan's batch has" in capsys.readouterr().err
    trainer.program.close()


@in_fork
def test_torch_compile_is_the_plan_s_to_say(alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = loop.arguments(str(tmp_path), torch_compile=True)
    trainer = Trainer(plan=alone, model=loop.small_llama(), args=args, eval_dataset=loop.Tokens(8, 2))
    assert "torch_compile: the plan says what is compiled" in capsys.readouterr().err
    trainer.program.close()


@in_fork
def test_checkpoints_of_another_run_are_found_before_training(alone: Path, tmp_path: Path) -> None:
    """A save would refuse to replace them, hours later."""
    data = {"train_dataset": loop.Tokens(32, 1), "eval_dataset": loop.Tokens(8, 2)}
    given: dict = {"save_steps": 1, "eval_steps": 1, "max_steps": 1, "load_best_model_at_end": False}
    args = loop.arguments(str(tmp_path), **given)
    trainer = Trainer(plan=alone, model=loop.small_llama(), args=args, **data)
    trainer.train()
    trainer.train()  # its own are replaced
    trainer.program.close()
    other = Trainer(plan=alone, model=loop.small_llama(), args=args, **data)
    with pytest.raises(CheckpointError, match=r"holds 1 checkpoints of another run, checkpoint-1 among them"):
        other.train()
    state = tmp_path / "checkpoint-1" / FOLDER / STATE
    state.write_text(state.read_text()[:-10])
    with pytest.raises(CheckpointError, match="it holds checkpoint-1: it is damaged: ") as told:
        other.train()
    assert told.value.value.startswith("output_dir=") and "move checkpoint-1 away" in told.value.remedy
    other.args.save_strategy = "no"
    other.train()
    other.program.close()


@pytest.mark.parametrize("given", [{}, {"seed": 42}, {"seed": 7}, {"seed": 0}])
def test_a_plan_s_seed_is_the_arguments_also_their_default(given: dict, tmp_path: Path) -> None:
    """Nobody can tell a default from the same number that was written: the Trainer follows both, and so does a plan."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, **given)
    assert training_of(args).seed == args.seed == given.get("seed", 42)
    assert training_of(args, seed=3).seed == 3


class OwnLoss(Trainer):
    def compute_loss(self, *args: object, **kwargs: object) -> torch.Tensor:
        return torch.zeros(())


@in_fork
def test_own_losses_and_metrics_are_refused(alone: Path, tmp_path: Path) -> None:
    given = {"plan": alone, "args": loop.arguments(str(tmp_path)), "eval_dataset": loop.Tokens(8, 2)}
    with pytest.raises(ParallelismError, match="compute_metrics"):
        Trainer(model=loop.small_llama(), compute_metrics=len, **given)
    with pytest.raises(ParallelismError, match=r"OwnLoss\.compute_loss"):
        OwnLoss(model=loop.small_llama(), **given)


@in_fork
def test_another_optimizer_than_the_plan_s_and_short_batches(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = loop.arguments(str(tmp_path), adam_beta2=0.9, activation_checkpointing=True)
    data = {"train_dataset": loop.Tokens(33, 1), "eval_dataset": loop.Tokens(8, 2)}
    trainer = Trainer(plan=alone, model=loop.small_llama(), args=args, **data)
    assert "activation_checkpointing: the plan says what is recomputed" in capsys.readouterr().err
    trainer.get_train_dataloader()  # one row is split over one data rank

    def refused(sizes: object) -> None:
        raise InputsError(sizes, "rows are split", "give more")

    with monkeypatch.context() as patched, pytest.raises(InputsError, match=r"rows are split.*dataloader_drop_last="):
        patched.setattr(trainer.program.steps_at, "at", refused)
        trainer.train()
    with pytest.raises(InputsError, match="the loss alone"):
        trainer.predict(loop.Tokens(8, 1))
    trainer.train_dataset = loop.Tokens(32, 1)
    with pytest.raises(ParallelismError, match=r"betas=\(0\.9, 0\.9\)"):
        trainer.train()
    trainer.program.close()


def test_optimizers_without_a_class_of_torch() -> None:
    with pytest.raises(ParallelismError, match="adafactor"):
        training_of(loop.arguments("nowhere", optim="adafactor"))
