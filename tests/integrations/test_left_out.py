"""What a loop asks of its module, or says of a save, and a program wouldn't do: refused with its name, or told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

from torch import nn
from torch.nn import functional
from transformers import TrainingArguments

from autoplan import Training
from autoplan.errors import InputsError, ParallelismError, TraceError
from autoplan.integrations.accelerate import Accelerator
from autoplan.integrations.arguments import check_trainer, settled
from autoplan.integrations.program_model import PlannedModel
from autoplan.integrations.transformers import Trainer
from tests.support.forked import in_fork
from tests.support.planning import parallelize_unproved

ROWS = 4


def made() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    model[2].requires_grad_(False)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    batch = (torch.empty(ROWS, 8), torch.empty(ROWS, 2))
    training = Training(optimizer="sgd", learning_rate=0.1, weight_decay=0.0)
    plan = parallelize_unproved(made(), "1x1 cpu", batch, loss_fn=functional.mse_loss, training=training)
    return plan.export(tmp_path_factory.mktemp("plan") / "plan")


def prepared(folder: Path, model: nn.Module) -> tuple[Accelerator, PlannedModel]:
    accelerator = Accelerator(plan=folder, split_batches=True)
    return accelerator, accelerator.prepare_model(model)


@in_fork
def test_what_was_unfrozen_before_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accelerator, _ = prepared(folder, made())
    accelerator.end_training()
    assert "doesn't train" not in capsys.readouterr().err
    accelerator, planned = prepared(folder, made().requires_grad_(True))
    assert "the plan doesn't train 2.weight, 2.bias, which requires gradients" in capsys.readouterr().err
    planned(torch.ones(ROWS, 8), torch.ones(ROWS, 2))
    accelerator.end_training()


@in_fork
def test_freezing_once_it_trains_is_refused(folder: Path) -> None:
    model = made()
    accelerator, planned = prepared(folder, model)
    batch = torch.ones(ROWS, 8), torch.ones(ROWS, 2)
    for part, trained in ((model[2], True), (model[0], False)):
        part.requires_grad_(trained)
        with pytest.raises(InputsError, match=rf"requires_grad={trained} of .\.weight: the plan says what is trained"):
            planned(*batch)
        part.requires_grad_(not trained)
    planned(*batch)
    first = next(planned.parameters())
    with pytest.raises(InputsError, match="the plan says what is trained"):
        planned.requires_grad_(False)
    with pytest.raises(InputsError, match="the plan says what is trained"):
        first.requires_grad = False
    first.requires_grad_(True)
    accelerator.end_training()


@in_fork
def test_hooks_that_no_step_calls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = made()
    model[0].register_forward_hook(print)
    accelerator, _ = prepared(folder, model)
    assert "forward hooks aren't called: print of 0" in capsys.readouterr().err
    accelerator.end_training()
    model = made()
    model[0].weight.register_hook(torch.neg)
    accelerator = Accelerator(plan=folder, split_batches=True)
    with pytest.raises(TraceError, match=r"neg of parameter '0\.weight'"):
        accelerator.prepare_model(model)
    accelerator.end_training()


@in_fork
def test_arguments_of_a_save(folder: Path, tmp_path: Path) -> None:
    accelerator, planned = prepared(folder, made())
    for said, message in (
        ({"push_to_hub": True}, "huggingface_hub"),
        ({"max_shard_size": "1GB"}, "max_file_bytes"),
        ({"variant": "fp16"}, "no effect on them"),
        ({"safe_serialization": False}, "no effect on them"),
        ({"state_dict": made().state_dict()}, "it isn't what the prepared model's state_dict gave"),
    ):
        with pytest.raises(InputsError, match=message):
            planned.save_pretrained(tmp_path / "saved", **said)
    with pytest.raises(InputsError, match="max_file_bytes"):
        accelerator.save_model(planned, tmp_path / "saved", max_shard_size="1GB")
    assert not (tmp_path / "saved").exists()
    state = accelerator.get_state_dict(planned)
    said = {"is_main_process": True, "save_function": accelerator.save, "push_to_hub": False}
    planned.save_pretrained(tmp_path / "saved", state_dict=state, **said)
    planned(torch.ones(ROWS, 8), torch.ones(ROWS, 2))
    accelerator.program.optimizer.step()
    with pytest.raises(InputsError, match="it was gathered after step 0, and step 1 has been taken since"):
        planned.save_pretrained(tmp_path / "saved", state_dict=state)
    accelerator.end_training()


@in_fork
def test_dtypes_and_parts_of_the_parameters(folder: Path) -> None:
    model = made()
    accelerator, planned = prepared(folder, model)
    assert planned.to("cpu") is planned and planned.float() is planned
    with pytest.raises(InputsError, match=r"to\(torch\.bfloat16\)"):
        planned.to(torch.bfloat16)
    planned(torch.ones(ROWS, 8), torch.ones(ROWS, 2))
    for parameters in (model.parameters(), planned.parameters(), None):
        accelerator.clip_grad_norm_(parameters, 1.0)
    with pytest.raises(InputsError, match=r"0\.weight isn't among the parameters"):
        accelerator.clip_grad_norm_(model[4].parameters(), 1.0)
    accelerator.end_training()


class OwnSave(Trainer):
    def _save(self, *args: object, **kwargs: object) -> None:
        raise AssertionError


@in_fork
def test_seeds_and_saves_of_a_trainer(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accelerator, _ = prepared(folder, made())
    for seed, told in ((42, True), (0, False)):
        args = TrainingArguments(str(tmp_path), per_device_train_batch_size=ROWS, use_cpu=True, seed=seed, report_to=[])
        settled(args, accelerator.program)
        assert ("follows the plan's seed=0, not 42" in capsys.readouterr().err) is told
    args = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=ROWS, use_cpu=True, report_to=[],
        accelerator_config={"split_batches": True},
    )  # fmt: skip
    with pytest.raises(ParallelismError, match="is the part of one data rank"):
        settled(args, accelerator.program)
    accelerator.end_training()
    with pytest.raises(ParallelismError, match=r"OwnSave\._save"):
        check_trainer(OwnSave, Trainer, {})
