"""transformers' Trainer over a plan.

    from autoplan.integrations.transformers import Trainer            # in place of transformers' own
    trainer = Trainer(plan="out/llama", model=model, args=args, …)

Data, callbacks, logging, evaluation, checkpoints and schedules stay the Trainer's. ``training_of(args)`` is what to
plan with. docs/how_to/trainers.md has what is refused.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, Sampler
from transformers import TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import EvalLoopOutput, TrainOutput, has_length

from autoplan.errors import InputsError
from autoplan.integrations.accelerate import FOLDER, Accelerator
from autoplan.integrations.arguments import (
    check_evaluation,
    check_output,
    check_trainer,
    settled,
    tell_of_stream,
    training_of,
)
from autoplan.integrations.program_model import program_of
from autoplan.plan import Plan
from autoplan.runtime.inference.agreed_batch import planned_rows
from autoplan.runtime.program_spec import DATA

__all__ = ["Trainer", "training_of"]

SCHEDULER = "scheduler.pt"  # transformers' own name, in its checkpoints


class Trainer(transformers.Trainer):
    """Transformers' own, whose steps are the plan's program.

    plan    a folder that ``plan.export`` wrote, or the plan loaded from it
    others  as transformers.Trainer takes them; ``model`` may be on the meta device where the plan holds its values

    The plan's batch is per_device_train_batch_size x gradient_accumulation_steps x its data ranks. ParallelismError for
    an argument, an optimizer or an own method that the program can't do justice to.
    """

    model: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self, model: nn.Module | None = None, args: TrainingArguments | None = None, *rest: Any,
        plan: Plan | str | os.PathLike, **further: Any,
    ) -> None:  # fmt: skip
        if model is None:
            raise InputsError("model=None", "its names and its configuration are needed", "give the planned model")
        args = TrainingArguments("tmp_trainer") if args is None else args
        self.program = program_of(plan)
        with ExitStack() as stack:  # an error leaves no process group behind
            stack.callback(self.program.close)
            super().__init__(model, settled(args, self.program), *rest, **further)
            check_trainer(type(self), Trainer, vars(self))
            stack.pop_all()
        self.module = model
        self._set_signature_columns_if_needed()
        self.model = self.model_wrapped = self.callback_handler.model = self.accelerator.prepare_model(model)
        if isinstance(self.train_dataset, IterableDataset):
            self.model.rows = "whole"  # every rank reads it
            tell_of_stream(args, self.train_dataset, self.program)

    def train(self, resume_from_checkpoint: str | bool | None = None, *rest: Any, **further: Any) -> TrainOutput:
        """CheckpointError where ``output_dir`` holds checkpoints that another run left, and this one doesn't resume."""
        if not resume_from_checkpoint:
            check_output(self.args, self.program, FOLDER)
        return super().train(resume_from_checkpoint, *rest, **further)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        asked = self.asked | {"mixed_precision": self.args.mixed_precision}
        asked |= {"dynamo_plugin": None, "dynamo_backend": "no"}  # for torch_compile of the arguments, which was told
        self.accelerator = Accelerator(plan=self.program, **asked)
        self.gather_function = self.accelerator.gather_for_metrics

    def _build_accelerator_args(self, **given: Any) -> dict[str, Any]:
        self.asked = {
            name: value for name, value in super()._build_accelerator_args(**given).items() if value is not None
        }
        return self.asked | {"mixed_precision": "no"}

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Each rank's device holds its part alone."""

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        return planned_rows(self.program.spec)

    def get_train_dataloader(self) -> DataLoader:
        """InputsError where the last batch of the data has rows that the program doesn't run."""
        rows = planned_rows(self.program.spec)
        data: Any = self.train_dataset
        left = len(data) % rows if has_length(data) else 0
        if left and not self.args.dataloader_drop_last:
            try:
                self.program.steps_at.at(replace(self.program.steps_at.planned, rows=left))
            except InputsError as error:
                cause = f"the last batch would have {left} of the plan's {rows}, and {error.cause}"
                remedy = "give dataloader_drop_last=True"
                raise InputsError(f"{len(data)} rows of data", cause, remedy) from None
        return super().get_train_dataloader()

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        """Groups of like length are those of the plan's batch, as on one device."""
        sampler = super()._get_train_sampler(train_dataset)
        if isinstance(sampler, LengthGroupedSampler):
            sampler.batch_size = planned_rows(self.program.spec)
        return sampler

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        check_evaluation(self.args, self.program)
        return super().get_eval_dataloader(eval_dataset)

    def create_optimizer(self, model: Any = None) -> Optimizer:
        """The Trainer's own, over the module; ``prepare`` compares it with the plan's."""
        return super().create_optimizer(self.module)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """The program's step; its loss is the mean over the whole batch."""
        batch = self.model.batch((), self._prepare_inputs(inputs))
        return self.program.step(batch, rows=self.model.rows).detach()

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """This rank's share: ranks with the same rows count them once."""
        spec = self.program.spec
        return super().floating_point_ops(inputs) * spec.size(DATA) // spec.lowered.mesh.devices

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        """Likewise, of what all ranks have counted."""
        spec, before = self.program.spec, self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)
        found = self.state.num_input_tokens_seen - before
        self.state.num_input_tokens_seen = before + found * spec.size(DATA) // spec.lowered.mesh.devices

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        return self.accelerator.clip_grad_norm_(None, self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> float:
        found = self.accelerator.clip_grad_norm_(None, float("inf")) if grad_norm is None else grad_norm
        return found.item()

    def evaluation_loop(
        self, dataloader: DataLoader, description: str, prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:  # fmt: skip
        """The mean of the batches' losses by their rows, as the Trainer has it on one device."""
        if description == "Prediction":
            cause = "a plan's program gives the loss alone"
            raise InputsError("trainer.predict()", cause, "plan Inference() of what save_model wrote")
        self.callback_handler.eval_dataloader = dataloader
        total, count = 0.0, 0
        data: Any = dataloader.dataset
        left, size = (len(data) if has_length(data) else None), getattr(dataloader.batch_sampler, "batch_size", None)
        for inputs in dataloader:
            loss = self.program.evaluate(self.model.batch((), self._prepare_inputs(inputs)))
            rows = size or rows_of(inputs)  # a sampler's batches are split over the data ranks
            rows = rows if left is None else min(left, rows)
            left = None if left is None else left - rows
            total, count = total + loss.double().item() * rows, count + rows
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        metrics = {f"{metric_key_prefix}_loss": total / count} if count else {}
        nothing: Any = None
        return EvalLoopOutput(predictions=nothing, label_ids=None, metrics=metrics, num_samples=count)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """What from_pretrained reads, of a model of peft's its adapters; called on every rank."""
        folder = Path(output_dir or self.args.output_dir or ".")
        self.model.save_pretrained(folder)
        if self.args.should_save:
            tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
            torch.save(self.args, folder / "training_args.bin")
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """The program's checkpoint, each rank its part, and the schedule."""
        self.optimizer.rates.take()
        self.program.save_checkpoint(Path(output_dir) / FOLDER)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and (Path(checkpoint) / SCHEDULER).is_file():
            self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER, weights_only=True))
            self.optimizer.rates.give()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """All that training goes on from, or the weights where the checkpoint has no more."""
        saved = Path(resume_from_checkpoint) / FOLDER
        if saved.is_dir():
            self.program.load_checkpoint(saved)
        else:
            self.program.load_weights(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self.state.best_model_checkpoint is not None:
            self.program.load_weights(self.state.best_model_checkpoint)


def rows_of(inputs: dict[str, Any]) -> int:
    """Rows of a batch that is the same on all ranks."""
    return next((value.shape[0] for value in inputs.values() if isinstance(value, Tensor) and value.ndim), 1)
