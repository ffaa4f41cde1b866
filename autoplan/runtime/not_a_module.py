"""Errors for what people call on a module, or on its loss, and a program has otherwise."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from autoplan.errors import InputsError, NotAModuleError

MODES = "a program has no modes: step() trains, evaluate(batch) computes the loss as model.eval() has it"
SHARDED = "each rank holds a part of the parameters, and program.optimizer updates them"
PLACED = "a program lies on this rank's device, in the precision that was planned"
KEPT = "leave it out; program.state_dict() has this rank's parts by name, program.full_state_dict() whole tensors"
FREEZING = "a plan says what is trained: it was traced with requires_grad as the model had it"
SAVED = "a checkpoint goes on with a training; weights alone are files as save_pretrained writes them"
TRAINS = "step(batch) and evaluate(batch) give the loss that was planned"
INSTEAD = {
    **dict.fromkeys(("train", "eval"), (MODES, "leave it out")),
    **dict.fromkeys(("parameters", "named_parameters", "buffers", "named_buffers"), (SHARDED, KEPT)),
    **dict.fromkeys(("modules", "named_modules", "children"), ("it is one rank's part of a model", KEPT)),
    **dict.fromkeys(("to", "cuda", "cpu", "half", "bfloat16", "float", "double"), (PLACED, "leave it out")),
    "zero_grad": (SHARDED, "call program.optimizer.zero_grad()"),
    "requires_grad_": (FREEZING, "set it on the model, and plan again"),
    "forward": ("step(batch) runs forward and backward of all microbatches", "call program.step(batch)"),
    "backward": ("step(batch) has run the backward", "leave it out, and call program.optimizer.step()"),
    **dict.fromkeys(("save", "save_pretrained", "save_model"), (SAVED, "call program.save_checkpoint or save_weights")),
    **dict.fromkeys(("load", "from_pretrained", "load_model"), (SAVED, "call program.load_checkpoint or load_weights")),
    **dict.fromkeys(("generate", "predict"), (TRAINS, "save_weights(folder), and load these into the model")),
    "compile": ("what is compiled is planned", "plan with training=Training(compile=True)"),
}
"""Why a program hasn't got it, and what to do instead."""


def not_called() -> NotAModuleError:
    """The error for ``program(batch)``."""
    cause = "a program trains by step(batch), which runs forward and backward of all microbatches"
    return NotAModuleError("program(batch)", cause, "call program.step(batch), or program.evaluate(batch) for its loss")


def not_of_a_module(kind: str, name: str) -> AttributeError:
    """The error for an attribute that a program hasn't got."""
    if name in INSTEAD:
        return NotAModuleError(f"program.{name}", *INSTEAD[name])
    return AttributeError(f"{kind!r} object has no attribute {name!r}")


class StepLoss(Tensor):
    """The loss that a step returns: a scalar like any other, whose backward has run. What is computed with it, copied
    or saved of it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def backward(self, *_: Any, **__: Any) -> NoReturn:
        """InputsError: gradients would be counted twice."""
        cause = "program.step(batch) has run the backward: gradients are there, summed over all ranks"
        raise InputsError("loss.backward()", cause, "leave it out, and call program.optimizer.step()")

    def __format__(self, spec: str) -> str:
        return format(self.as_subclass(Tensor), spec)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(self.as_subclass(Tensor))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.as_subclass(Tensor).__deepcopy__(memo)


def step_loss(loss: Tensor) -> Tensor:
    """A step's result; on a fake device it stays what it is."""
    return loss.as_subclass(StepLoss) if type(loss) is Tensor else loss
