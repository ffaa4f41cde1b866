"""Accelerate's Accelerator over a plan: its loops run the plan's program.

    accelerator = Accelerator(plan="out/llama")     # in place of accelerate.Accelerator()
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

All that follows in the loop stays: ``outputs = model(**batch)``, ``accelerator.backward(outputs.loss)``, steps,
``save_state``. docs/how_to/trainers.md says what is asked of a loop.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import accelerate
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import DistributedType, synchronize_rng_states
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from autoplan.errors import InputsError, LaunchError, ParallelismError
from autoplan.integrations.data_rows import loader_of
from autoplan.integrations.left_out import check_save
from autoplan.integrations.program_model import PlannedModel, program_of
from autoplan.integrations.program_optimizer import Rates
from autoplan.plan import Plan
from autoplan.runtime.inference.agreed_batch import planned_rows
from autoplan.runtime.program import Program
from autoplan.runtime.program_spec import DATA

OTHERS = (
    "deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin", "torch_tp_plugin",
    "parallelism_config",
)  # fmt: skip
PRECISIONS = {"no": ("fp32", "fp64", "bf16"), "bf16": ("bf16-mixed",), "fp16": ("fp16-mixed",)}
FOLDER = "program"  # of a saved state, what the program saves


class PlannedOptimizer(AcceleratedOptimizer):
    """The program's optimizer; groups and rates are those of the loop's own."""

    def __init__(self, program: Program, given: Optimizer, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__(given, device_placement=False)
        self.program, self.rates, self.skipped = program, Rates(program, given, parameters), False

    def step(self, closure: object = None) -> None:
        """One update. InputsError for a closure: the program's step is forward and backward of its batch."""
        if closure is not None:
            raise InputsError("optimizer.step(closure)", "a plan's program computes its own gradients", "leave it out")
        self.rates.take()
        self.skipped = self.program.skipped
        self.program.optimizer.step()
        self.optimizer.step()  # over parameters without gradients: so its schedulers and hooks see that it stepped

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        self.program.optimizer.zero_grad()

    @property
    def step_was_skipped(self) -> bool:
        return self.skipped

    def state_dict(self) -> dict[str, Any]:
        return self.program.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.program.optimizer.load_state_dict(state_dict)


class PlannedScheduler(AcceleratedScheduler):
    """Moves once for each of the loader's batches that an update has used, as Accelerate's own."""

    def __init__(self, scheduler: LRScheduler, optimizers: list, times: int) -> None:
        super().__init__(scheduler, optimizers, split_batches=True)
        self.times = times

    def step(self, *args: Any, **kwargs: Any) -> None:
        for _ in range(self.times):
            super().step(*args, **kwargs)


class Accelerator(accelerate.Accelerator):
    """Accelerate's own, but for what a plan decides.

    plan    a folder that ``plan.export`` wrote, or the plan loaded from it, or its program
    split_batches  as Accelerate documents it: True, and a loader's batch is the whole batch of a step; False, and it
            is one data rank's part of it
    dispatch_batches  of a DataLoaderConfiguration: True, and every rank collates the whole batch and takes its rows
    others  as accelerate.Accelerator takes them

    The batch of a step is the plan's, whose microbatches accumulate: gradient_accumulation_steps is 1. ParallelismError
    for a plugin of another system, for another precision than the plan's, and for a second model.
    """

    _models: list[Any]
    _optimizers: list[Any]

    def __init__(
        self, *args: Any, plan: Plan | str | os.PathLike | Program, split_batches: bool = False, **kwargs: Any
    ) -> None:
        check_arguments(kwargs)
        asked = kwargs.pop("mixed_precision", None)
        self.program = plan if isinstance(plan, Program) else program_of(plan)
        with ExitStack() as stack:  # an error leaves no process group behind
            stack.callback(self.program.close)
            check_precision(asked, self.program)
            super().__init__(*args, mixed_precision="no", cpu=self.program.device.type == "cpu", **kwargs)
            check_state(self, self.program)
            stack.pop_all()
        if split_batches:  # Accelerate 1.15 reads it from its DataLoaderConfiguration alone
            self.dataloader_config.split_batches = True
        self.planned: PlannedModel | None = None
        self.parameters: dict[str, nn.Parameter] = {}
        self.register_save_state_pre_hook(lambda _, __, folder: self.program.save_checkpoint(Path(folder) / FOLDER))
        self.register_load_state_pre_hook(lambda _, folder: void(self.program.load_checkpoint(Path(folder) / FOLDER)))

    @property
    def data_ranks(self) -> int:
        """Ranks that see rows of their own."""
        return self.program.spec.size(DATA)

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """As Accelerate's; the model first, wherever it stands."""
        for each in args:
            if isinstance(each, nn.Module):
                self.prepare_model(each)
        return super().prepare(*args, device_placement=device_placement)

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> PlannedModel:
        """The planned model in place of the module that the plan was made from; it starts from its values."""
        if self.planned is None:
            self.parameters = dict(model.named_parameters())
            self.planned = PlannedModel(self.program, model)
            self.planned.rows = "whole" if self.dispatch_batches else None
            self.prepared = model
        elif model is not self.planned and model is not self.prepared:
            raise ParallelismError("a second model", "an Accelerator runs one plan", "make another Accelerator for it")
        if self.planned not in self._models:
            self._models.append(self.planned)
        return self.planned

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> PlannedOptimizer:
        """The program's optimizer; ParallelismError where the given one isn't the plan's."""
        if self.planned is None:
            raise InputsError("prepare(optimizer)", "there is no model yet", "prepare the model first, or with it")
        if not isinstance(optimizer, PlannedOptimizer):
            optimizer = PlannedOptimizer(self.program, optimizer, self.parameters)
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        return optimizer

    def prepare_scheduler(self, scheduler: LRScheduler) -> PlannedScheduler:
        if not isinstance(scheduler, PlannedScheduler):
            times = 1 if self.split_batches or not self.step_scheduler_with_optimizer else self.data_ranks
            scheduler = PlannedScheduler(scheduler, self._optimizers, times)
        if scheduler not in self._schedulers:
            self._schedulers.append(scheduler)
        return scheduler

    def prepare_data_loader(
        self, data_loader: DataLoader, device_placement: bool | None = None, slice_fn_for_dispatch: object = None
    ) -> DataLoader:
        """This data rank's rows of the loader's batches, shuffled alike on all ranks."""
        if not getattr(data_loader, "_is_accelerate_prepared", False):
            join = 1 if self.split_batches else self.data_ranks
            check_rows(data_loader, self.program, join)
            own = loader_of(data_loader, self.program, join, whole=bool(self.dispatch_batches))
            generator = getattr(getattr(own.batch_sampler, "sampler", None), "generator", None)
            if generator is not None:
                synchronize_rng_states(["generator"], generator)
            data_loader = prepare_data_loader(
                own, self.device, num_processes=1, process_index=0, put_on_device=False, rng_types=["torch"],
                dispatch_batches=False, use_seedable_sampler=self.use_seedable_sampler,
                data_seed=self.dataloader_config.data_seed, use_stateful_dataloader=self.use_stateful_dataloader,
            )  # fmt: skip
            data_loader._is_accelerate_prepared = True
        if data_loader not in self._dataloaders:
            self._dataloaders.append(data_loader)
        return data_loader

    def clip_grad_norm_(self, parameters: object, max_norm: float, norm_type: float = 2) -> Tensor:
        """Clips all gradients of the model by their global 2-norm; returns the norm before."""
        if norm_type != 2:
            raise InputsError(f"norm_type={norm_type}", "a plan's program clips by the 2-norm", "leave it out")
        self.check_all(parameters)
        limit = self.program.spec.training.clip_grad_norm
        if limit is not None and limit != max_norm and max_norm != float("inf"):
            cause = f"the plan clips to {limit:g} before each step"
            raise ParallelismError(f"max_norm={max_norm:g}", cause, "plan without clip_grad_norm, or with this one")
        return self.program.clip_grad_norm_(max_norm)

    def check_all(self, parameters: object) -> None:
        """InputsError for some of the model's parameters."""
        if parameters is None or self.planned is None:
            return
        given = {id(p) for p in ([parameters] if isinstance(parameters, Tensor) else parameters)}  # type: ignore[attr-defined]
        both = zip(self.planned.stand_ins.items(), self.parameters.values(), strict=True)
        lacking = [name for (name, p), own in both if p.requires_grad and given.isdisjoint((id(p), id(own)))]
        if lacking:
            cause = f"a plan's program clips by the norm of all gradients, and {lacking[0]} isn't among the parameters"
            raise InputsError("clip_grad_norm_(parameters)", cause, "give model.parameters()")

    def clip_grad_value_(self, parameters: object, clip_value: float) -> None:
        raise InputsError("clip_grad_value_", "a plan's program clips by the norm alone", "use clip_grad_norm_")

    def unwrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        """The planned model as it is: ``save_pretrained`` and ``state_dict`` give what was trained."""
        return model

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """The whole model on rank 0, {} on the others."""
        return self.program.full_state_dict() if self.planned is None else self.planned.state_dict()

    def save_model(
        self, model: nn.Module, save_directory: str | os.PathLike, max_shard_size: int | str | None = None,
        safe_serialization: bool = True,
    ) -> None:  # fmt: skip
        """As ``program.save_weights``; InputsError for what it doesn't do."""
        check_save({"max_shard_size": max_shard_size, "safe_serialization": safe_serialization}, adapters=False)
        self.program.save_weights(save_directory)

    def save_state(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """The program's checkpoint in the subfolder ``program``; the rest as Accelerate saves it."""
        for optimizer in self._optimizers:
            optimizer.rates.take()
        return self.without_parts(super().save_state, output_dir, *args, **kwargs)

    def load_state(self, input_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        self.without_parts(super().load_state, input_dir, *args, **kwargs)
        for optimizer in self._optimizers:
            optimizer.rates.give()

    def without_parts(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Model and optimizer are the program's to save and load, in a hook that Accelerate calls."""
        kept = self._models, self._optimizers
        self._models, self._optimizers = [], []
        try:
            return call(*args, **kwargs)
        finally:
            self._models, self._optimizers = kept

    def end_training(self) -> None:
        self.program.close()
        super().end_training()


def check_arguments(given: dict[str, Any]) -> None:
    """ParallelismError for what the plan decides in another way."""
    for name in OTHERS:
        if given.get(name) is not None:
            raise ParallelismError(f"{name}={given[name]!r}", "the plan says how the model is split", "leave it out")
    plugin = given.get("gradient_accumulation_plugin")
    told = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")  # by accelerate launch
    steps = int(told or given.get("gradient_accumulation_steps", 1)) if plugin is None else plugin.num_steps
    if steps != 1:
        cause = "the plan's microbatches accumulate, and its batch is that of a whole step"
        remedy = "give the loader batches so many times as large"
        raise ParallelismError(f"gradient_accumulation_steps={steps}", cause, remedy)
    dynamo = given.get("dynamo_backend") or getattr(given.get("dynamo_plugin"), "backend", None)
    dynamo = dynamo or os.environ.get("ACCELERATE_DYNAMO_BACKEND", "NO")
    if str(dynamo).rpartition(".")[2].upper() not in ("NO", "NONE"):
        raise ParallelismError(f"dynamo_backend={dynamo}", "the plan says what is compiled", "plan with compile=True")


def check_precision(asked: str | None, program: Program) -> None:
    """ParallelismError where Accelerate is asked for another precision than the plan's."""
    asked = asked or os.environ.get("ACCELERATE_MIXED_PRECISION")
    planned = program.spec.training.precision
    if asked is not None and planned not in PRECISIONS.get(str(asked), ()):
        raise ParallelismError(
            f"mixed_precision={str(asked)!r}", f"the plan's precision is {planned!r}",
            "plan with Training(precision=…), or leave it out",
        )  # fmt: skip


def check_rows(loader: DataLoader, program: Program, join: int) -> None:
    """InputsError where a loader's batches are larger than the plan's."""
    rows, planned = loader.batch_size or 0, planned_rows(program.spec)
    if rows * join > planned:
        many = f"on {join} data ranks they are {rows * join}, and the plan's batch" if join > 1 else "the plan's batch"
        remedy = f"batch_size={planned // join}" + (", or split_batches=True" if join > 1 and rows <= planned else "")
        raise InputsError(f"a loader's batches of {rows} rows", f"{many} has {planned}", f"give {remedy}")


def check_state(accelerator: accelerate.Accelerator, program: Program) -> None:
    """Errors where `accelerate launch` or an argument asks for another engine, or processes are others."""
    kind = accelerator.distributed_type
    if kind not in (DistributedType.NO, DistributedType.MULTI_CPU) and not str(kind.value).startswith("MULTI_"):
        raise ParallelismError(f"{kind.value}", "the plan says how the model is split", "launch without it: torchrun")
    ranks = program.spec.lowered.mesh.devices
    if accelerator.num_processes != ranks:
        cause = f"Accelerate sees {accelerator.num_processes} of the plan's {ranks} processes"
        raise LaunchError("the processes", cause, f"start the script by torchrun --nproc-per-node {ranks}")


def void(_: object) -> None:
    """Of a function that returns nothing."""
