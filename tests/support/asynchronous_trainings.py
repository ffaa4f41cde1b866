"""Optimizers under which asynchronous systems are tried, and the same on one device."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from autoplan.options import Training
from autoplan.runtime.optim.lamb import Lamb
from tests.support.asynchronous import RATE, Batch, How

ADAMW = Training(precision="fp64", learning_rate=RATE, compile=False)
CLIPPED = replace(ADAMW, clip_grad_norm=0.05)
MOMENTUM = replace(ADAMW, optimizer="sgd", momentum=0.9)
LAMB = replace(ADAMW, optimizer="lamb")


def mean_loss(module: nn.Module, batch: Batch) -> Tensor:
    """Of valid tokens; without one, where the module itself has no answer, zero, and so is every gradient."""
    if (batch["labels"] != -100).any():
        return module(**batch)
    return 0.0 * torch.stack([p.sum() for p in module.parameters()]).sum()


def how(training: Training) -> How:
    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        if training.optimizer == "lamb":
            return Lamb(module.parameters(), lr=RATE)
        if training.optimizer == "sgd":
            return torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)
        return torch.optim.AdamW(module.parameters(), lr=RATE)

    return How(mean_loss, optimizer, training.clip_grad_norm)
