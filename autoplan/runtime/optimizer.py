"""The optimizer: a class of torch.optim over this rank's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from autoplan.errors import ParallelismError
from autoplan.options import Training
from autoplan.runtime.clip import clip_gradients
from autoplan.runtime.held import HeldParameter
from autoplan.runtime.host import attach, updated_on_host

# Each of these updates an element from that element's own gradient and state, so a part is updated as in the whole.
# Muon, Adafactor and LBFGS look at whole matrices.
ELEMENTWISE = (
    "adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd",
)  # fmt: skip


def build_optimizer(parameters: Iterable[nn.Parameter], training: Training, on_host: bool = False) -> Optimizer:
    """The planned optimizer over these parameters; it doesn't clip.

    Plain tensors and DTensors are groups of their own: torch's foreach kernels take no mixture.

    on_host  they are the host's copies: updated in one pass over memory, where the optimizer has a fused kernel
    """
    kind = optimizer_class(training.optimizer)
    further: dict[str, Any] = {"fused": True} if on_host and "fused" in inspect.signature(kind).parameters else {}
    kind = updated_on_host(kind) if on_host else kind
    trainable = [p for p in parameters if p.requires_grad]
    groups = [[p for p in trainable if isinstance(p, DTensor) == sharded] for sharded in (False, True)]
    each = [{"params": group} for group in groups if group] or [{"params": []}]
    return kind(each, **options(kind, training), **further)


def rank_optimizer(training: Training, held: Sequence[HeldParameter], device: torch.device) -> Optimizer:
    """The optimizer of this rank's parameters, which clips to ``training.clip_grad_norm`` before each step."""
    on_host = any(h.master is not None for h in held)
    optimizer = build_optimizer((h.updated for h in held), training, on_host)
    limit = training.clip_grad_norm
    if limit is not None:
        optimizer.register_step_pre_hook(lambda *_: void(clip_gradients(held, limit, device)))
    if on_host:
        attach(optimizer, held, device)
    return optimizer


def void(_: object) -> None:
    """A step hook's result would replace the step's arguments."""


def optimizer_class(name: str) -> type[Optimizer]:
    """The class of torch.optim with this lower-case name; ParallelismError where there is none that may be sharded."""
    classes = {key.lower(): value for key, value in vars(torch.optim).items()}
    if name not in ELEMENTWISE:
        raise ParallelismError(
            f"optimizer={name!r}",
            "it isn't an optimizer of torch.optim that updates each element by itself, which a sharded step needs",
            f"use one of {ELEMENTWISE}",
        )
    return classes[name]


def options(kind: type[Optimizer], training: Training) -> dict[str, Any]:
    """The fields of Training that this optimizer takes, by its own names."""
    given = {
        "lr": training.learning_rate,
        "weight_decay": training.weight_decay,
        "betas": training.betas,
        "eps": training.eps,
        "momentum": training.momentum,
    }
    accepted = inspect.signature(kind).parameters
    return {name: value for name, value in given.items() if name in accepted}
