"""``fully_shard`` on each layer, on the embedding and the head where they aren't tied, and on the model, as torchtitan
has it; with the parameters kept between forward and backward, or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.bench.pairs.byhand.parts import adamw, computing, rows_of
from tests.bench.pairs.measured import Step


def zero1(module: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int) -> Step:
    """Gathered once a step, gradients reduced once a step."""
    return sharded(module, batch, precision, count, once=True)


def zero3(module: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int) -> Step:
    """Gathered for each forward and each backward, gradients reduced after each microbatch."""
    return sharded(module, batch, precision, count, once=False)


def sharded(module: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int, once: bool) -> Step:
    half = torch.bfloat16 if precision == "bf16-mixed" else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for unit in units_of(module):
        fully_shard(unit, reshard_after_forward=not once, mp_policy=policy)
    fully_shard(module, reshard_after_forward=False, mp_policy=policy)
    microbatches = rows_of(batch, dist.get_rank(), dist.get_world_size(), count)
    optimizer = adamw(module.parameters())

    def run() -> Tensor:
        optimizer.zero_grad()
        total = []
        for j, microbatch in enumerate(microbatches):
            last = j == count - 1
            module.set_is_last_backward(last)
            if once:
                module.set_requires_gradient_sync(last)
                module.set_reshard_after_backward(last)
            with computing(precision):
                loss = module(**microbatch).loss / count
            loss.backward()
            total.append(loss.detach())
        optimizer.step()
        return sum(total[1:], total[0])

    given = [x for microbatch in microbatches for x in microbatch.values()]
    return Step(run, lambda: [*module.parameters(), *module.buffers(), *given])


def units_of(module: nn.Module) -> list[Any]:
    """What is gathered at once: a module, or several."""
    inner, embedding, head = module.base_model, module.get_input_embeddings(), module.get_output_embeddings()
    if hasattr(inner, "h"):  # GPT-2, whose head is tied to the embedding
        return [*inner.h]
    return [embedding, *inner.layers, [inner.norm, head]]
