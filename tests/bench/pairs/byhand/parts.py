"""What every way by hand has: autocast, the fused optimizer, microbatches, and a loss over logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEARNING_RATE, IGNORED = 1e-3, -100


def computing(precision: str) -> AbstractContextManager:
    """Autocast under "bf16-mixed"."""
    return torch.autocast("cpu", torch.bfloat16) if precision == "bf16-mixed" else nullcontext()


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)


def parts(batch: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """The microbatches of a batch, whose rows are this rank's."""
    rows = {name: value.chunk(count) for name, value in batch.items()}
    return [{name: chunks[j] for name, chunks in rows.items()} for j in range(count)]


def rows_of(batch: Mapping[str, Tensor], rank: int, size: int, count: int) -> list[dict[str, Tensor]]:
    """This data rank's part of each microbatch, as our program has them."""
    return [{n: x.chunk(size)[rank].contiguous() for n, x in part.items()} for part in parts(batch, count)]


def shifted(labels: Tensor) -> Tensor:
    """Of each position the next token; of the last one none."""
    return F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over the targets that count; logits [.., vocabulary]."""
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), ignore_index=IGNORED)
