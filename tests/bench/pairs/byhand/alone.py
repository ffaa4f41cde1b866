"""One rank: the module as it is, in eager mode or compiled."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tests.bench.pairs.byhand.parts import adamw, computing, parts
from tests.bench.pairs.measured import Step


def eager(module: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int = 1) -> Step:
    return stepping(module, module, batch, precision, count)


def compiled(module: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int = 1) -> Step:
    return stepping(module, torch.compile(module), batch, precision, count)  # type: ignore[arg-type]


def stepping(
    module: nn.Module, called: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int
) -> Step:
    microbatches, optimizer = parts(batch, count), adamw(module.parameters())

    def run() -> Tensor:
        optimizer.zero_grad()
        total = []
        for microbatch in microbatches:
            with computing(precision):
                loss = called(**microbatch).loss / count
            loss.backward()
            total.append(loss.detach())
        optimizer.step()
        return sum(total[1:], total[0])

    return Step(run, lambda: [*module.parameters(), *module.buffers(), *batch.values()])
