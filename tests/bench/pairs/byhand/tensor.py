"""Tensor parallel with DTensors, as torchtitan has it: sequence parallel between the products, a loss over logits that
stay split by the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from tests.bench.pairs.byhand.parts import adamw, computing, next_token_loss, parts, shifted
from tests.bench.pairs.measured import Step


def llama(module: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int) -> Step:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    whole = Shard(1)
    parallelize_module(
        module, mesh,
        {
            "model.embed_tokens": RowwiseParallel(
                input_layouts=Replicate(), output_layouts=whole, use_local_output=False
            ),
            "model.norm": SequenceParallel(),
            "lm_head": ColwiseParallel(input_layouts=whole, output_layouts=Shard(-1), use_local_output=False),
        },
    )  # fmt: skip
    for layer in module.model.layers:
        parallelize_module(
            layer, mesh,
            {
                "input_layernorm": SequenceParallel(),
                "self_attn": PrepareModuleInput(
                    input_kwarg_layouts={"hidden_states": whole},
                    desired_input_kwarg_layouts={"hidden_states": Replicate()},
                ),
                "self_attn.q_proj": ColwiseParallel(),
                "self_attn.k_proj": ColwiseParallel(),
                "self_attn.v_proj": ColwiseParallel(),
                "self_attn.o_proj": RowwiseParallel(output_layouts=whole, use_local_output=False),
                "post_attention_layernorm": SequenceParallel(),
                "mlp": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(Replicate(),)),
                "mlp.gate_proj": ColwiseParallel(),
                "mlp.up_proj": ColwiseParallel(),
                "mlp.down_proj": RowwiseParallel(output_layouts=whole, use_local_output=False),
            },
        )  # fmt: skip
    microbatches, optimizer = parts(batch, count), adamw(module.parameters())
    positions = torch.arange(batch["input_ids"].shape[1]).unsqueeze(0)

    def run() -> Tensor:
        optimizer.zero_grad()
        total = []
        for microbatch in microbatches:
            with loss_parallel():
                with computing(precision):
                    logits = module(input_ids=microbatch["input_ids"], position_ids=positions).logits
                loss = next_token_loss(logits, shifted(microbatch["labels"])) / count
                loss.backward()
            total.append(loss.detach())
        optimizer.step()
        found = sum(total[1:], total[0])
        return found.full_tensor() if isinstance(found, DTensor) else found

    return Step(run, lambda: [*module.parameters(), *module.buffers(), *batch.values()])
