"""What a loop of another library takes for its model: the program, behind the interface of an `nn.Module`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from autoplan.errors import InputsError, ParallelismError
from autoplan.integrations.adapters import adapters_of
from autoplan.integrations.left_out import AsPlanned, Gathered, check_save, refreezing
from autoplan.options import Training
from autoplan.plan import Plan, load
from autoplan.runtime.collectives.objects import together
from autoplan.runtime.data.microbatches import Batch
from autoplan.runtime.program import Program

SPARES = ("config", "main_input_name", "generation_config", "loss_type")
"""What loops read of a transformers model beside its parameters."""
TAKEN = ("forward", "state_dict", "save_pretrained", "generate", "push_to_hub")
"""What a module must not do once a program trains in its place: its values are those of before training."""
MASK = "attention_mask"


class StandIn(nn.Parameter):
    """A parameter's name, shape and dtype; its values and gradient lie in parts on the ranks."""

    @property
    def grad(self) -> Tensor:  # type: ignore[override]
        raise InputsError(
            "a parameter's .grad", "the gradients of a planned model lie in parts on its ranks",
            "clip by accelerator.clip_grad_norm_, or read program.full_grads()",
        )  # fmt: skip

    @property
    def requires_grad(self) -> bool:
        return super().requires_grad

    @requires_grad.setter
    def requires_grad(self, trained: bool) -> None:
        self.requires_grad_(trained)

    def requires_grad_(self, requires_grad: bool = True) -> StandIn:
        if requires_grad is not self.requires_grad:
            raise refreezing("a parameter", requires_grad)
        return self


class Outputs(dict):
    """What a planned model gives: its loss, as transformers' outputs have it."""

    @property
    def loss(self) -> Tensor:
        return self["loss"]

    def __getattr__(self, name: str) -> Tensor:
        raise AttributeError(
            f"outputs.{name}: a planned model gives its loss alone; results of the forward need a plan of Inference()"
        )

    def __getitem__(self, key: object) -> Tensor:
        return super().__getitem__("loss" if key == 0 else key)


class Done(torch.autograd.Function):
    """A loss whose backward the program has run: its own does nothing, and sees by what the loss was multiplied."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, loss: Tensor, model: PlannedModel) -> Tensor:
        ctx.model = model
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.model.multiplied = gradients[0]
        if gradients[0].device.type == "cpu":
            ctx.model.check_multiplied()
        return None, None, None


class PlannedModel(nn.Module):
    """The program of a plan in the place of the module that it was planned from.

    ``model(**batch)`` in training mode is ``program.step``: forward and backward; its outputs have ``loss``. Called
    with tensors in order it gives the loss itself. In evaluation mode it is ``program.evaluate``. A backward of the
    loss finds its work done; a loss that was multiplied before is an InputsError (on an accelerator at the next call,
    so that no step waits for the device).

    rows    "whole": every rank is given the whole batch; None: a batch's shapes tell
    module  the user's: parameters' names and shapes are its own, and training starts from its values, if it has some
    """

    def __init__(self, program: Program, module: nn.Module) -> None:
        super().__init__()
        self.program, self.multiplied = program, None
        self.of = type(module).__name__
        self.rows: Literal["whole"] | None = None
        for name in SPARES:
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))
        self.as_planned, self.gathered = AsPlanned(program, module), Gathered()
        parameters = dict(module.named_parameters())
        self.stand_ins = {
            name: StandIn(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
            for name, p in parameters.items()
        }
        if any(p.is_meta for p in parameters.values()):
            program.init_weights(None if program.spec.start.stored else torch.initial_seed())
        else:
            program.load_weights(module.state_dict())
        self.save_adapters = adapters_of(module)
        for name in TAKEN:
            if hasattr(module, name):
                setattr(module, name, refused(self.of, name))

    def forward(self, *args: Tensor, **inputs: Tensor) -> Tensor | Outputs:
        self.check_multiplied()
        batch = self.batch(args, inputs)
        if self.training:
            taken = self.program.step(batch, rows=self.rows)
            loss = Done.apply(torch.zeros((), requires_grad=True), taken, self)
        else:
            loss = self.program.evaluate(batch)
        return loss if args else Outputs(loss=loss)

    def batch(self, args: tuple[Tensor, ...], inputs: Mapping[str, Tensor]) -> Batch:
        """The plan's inputs among those given. An attention mask that the plan hasn't may be left out where it masks
        nothing; anything else that is too many or missing is an InputsError of the program's."""
        self.as_planned.check()
        if args and inputs:
            raise InputsError("model(…)", "inputs are given in order and by name", "give all in one way")
        if args:
            return args
        known = {value.name for value in self.program.spec.lowered.batch}
        given = {name: value for name, value in inputs.items() if name in known or value is not None}
        mask = given.get(MASK)
        if mask is not None and MASK not in known:
            if not bool(mask.all()):
                cause = "the plan was made without one, and this one masks something"
                raise InputsError(MASK, cause, f"plan with {MASK} among the example_inputs")
            del given[MASK]
        return given

    def check_multiplied(self) -> None:
        """InputsError where the loss was multiplied between the forward and its backward."""
        scale, self.multiplied = self.multiplied, None
        if scale is not None and scale.item() != 1:
            raise InputsError(
                f"a loss times {scale.item():g}", "the program has run the backward of its own loss",
                "call backward on outputs.loss as it is: a plan's microbatches accumulate by themselves",
            )  # fmt: skip

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and shapes; values are ``state_dict()``'s."""
        yield from ((f"{prefix}.{name}" if prefix else name, p) for name, p in self.stand_ins.items())

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """As of a transformers model; embeddings are known by their names."""
        every = ((name, p) for name, p in self.stand_ins.items() if p.requires_grad or not only_trainable)
        return sum(p.numel() for name, p in every if not (exclude_embeddings and "embed" in name))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.program.optimizer.zero_grad(set_to_none)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The whole model under the user's names on rank 0, {} on the others; called on every rank."""
        return self.gathered.give(self.program.full_state_dict(), self.program.steps)

    def _apply(self, fn: Any, recurse: bool = True) -> PlannedModel:
        """What ``to``, ``cuda``, ``half`` and the like call. Its device is the program's; InputsError for a dtype."""
        found = fn(torch.zeros((), dtype=torch.float32))
        if found.dtype != torch.float32:
            cause = "a plan's program keeps the precision that it was planned with"
            raise InputsError(f"model.to({found.dtype})", cause, "plan with Training(precision=…)")
        return self

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        self.program.load_weights(state_dict, strict=strict)
        return nn.modules.module._IncompatibleKeys([], [])

    def save_pretrained(self, folder: str | os.PathLike, **kwargs: object) -> None:
        """``program.save_weights``; of a model with adapters of peft's these alone, as peft has them, which reads what
        else is said. Called on every rank. InputsError for an argument that would have no effect, and for another
        ``state_dict`` than the model's own."""
        save = self.save_adapters
        check_save(kwargs, adapters=save is not None)
        together(lambda: self.gathered.check(kwargs.get("state_dict"), self.program.steps))
        if save is None:
            self.program.save_weights(folder)
        else:
            values = self.program.full_state_dict()
            together(lambda: save(str(folder), values, kwargs) if values else None)


def refused(of: str, name: str) -> Any:
    def call(*args: object, **kwargs: object) -> None:
        cause = "a plan's program trains in its place, and this module holds the values of before"
        raise InputsError(f"{of}.{name}()", cause, "use the prepared model, or the trainer's own methods")

    return call


def program_of(plan: Plan | str | os.PathLike) -> Program:
    """The program of an exported plan that other loops can run; LaunchError where it has no folder."""
    plan = plan if isinstance(plan, Plan) else load(plan)
    training = plan.record.training
    if not isinstance(training, Training):
        raise ParallelismError("this plan", "it doesn't train", "plan with Training()")
    if training.lr_schedule is not None:
        cause = "the loop's own scheduler sets the learning rate"
        raise ParallelismError(f"lr_schedule={training.lr_schedule.name!r} of the plan", cause, "plan without it")
    return plan.program()
