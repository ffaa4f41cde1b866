"""DistributedDataParallel: gradients of all microbatches but the last are accumulated under ``no_sync``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.bench.pairs.byhand.parts import adamw, computing, rows_of
from tests.bench.pairs.measured import Step


def ddp(module: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int) -> Step:
    microbatches = rows_of(batch, dist.get_rank(), dist.get_world_size(), count)
    parallel = DistributedDataParallel(module, gradient_as_bucket_view=True)
    optimizer = adamw(module.parameters())

    def run() -> Tensor:
        optimizer.zero_grad()
        total = []
        for j, microbatch in enumerate(microbatches):
            with parallel.no_sync() if j < count - 1 else nullcontext():
                with computing(precision):
                    loss = parallel(**microbatch).loss / count
                loss.backward()
            total.append(loss.detach())
        optimizer.step()
        return sum(total[1:], total[0])

    given = [x for microbatch in microbatches for x in microbatch.values()]
    return Step(run, lambda: [*module.parameters(), *module.buffers(), *given])
