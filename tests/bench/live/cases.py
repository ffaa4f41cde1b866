"""What is planned and run: one small Llama, its batch, and the plans whose order is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from autoplan import Parallelism, Training

ROWS, LENGTH = 16, 256
TRAINING = Training(optimizer="adamw", precision="fp32", learning_rate=1e-4)
AUTO = "auto"
COMPRESSED = ("powersgd", "int8", "topk", "1bit")
"""Gradients whose steps aren't one device's: plans that auto never takes, and isn't compared with."""

PLANS: Mapping[str, Parallelism | str] = {
    AUTO: AUTO,
    "data": Parallelism(dp=4, tp=1, pp=1, zero=0, micro_batch=4, recompute="none"),
    "data, recomputed": Parallelism(dp=4, tp=1, pp=1, zero=0, micro_batch=4, recompute="full"),
    "ZeRO-1": Parallelism(dp=4, tp=1, pp=1, zero=1, micro_batch=4, recompute="none"),
    "ZeRO-3": Parallelism(dp=4, tp=1, pp=1, zero=3, micro_batch=4, recompute="none"),
    "ZeRO-3, 2 microbatches": Parallelism(dp=4, tp=1, pp=1, zero=3, micro_batch=2, recompute="none"),
    "tensor": Parallelism(dp=1, tp=4, pp=1, micro_batch=16, sequence_parallel=False, recompute="none"),
    "data x tensor": Parallelism(dp=2, tp=2, pp=1, zero=0, micro_batch=8, sequence_parallel=False, recompute="none"),
    "ZeRO-3 x tensor": Parallelism(dp=2, tp=2, pp=1, zero=3, micro_batch=4, sequence_parallel=False, recompute="none"),
    "pipeline x data, 1F1B": Parallelism(
        dp=2, tp=1, pp=2, zero=0, micro_batch=2, pipeline_schedule="1f1b", recompute="none"
    ),
    "pipeline x data, one microbatch": Parallelism(
        dp=2, tp=1, pp=2, zero=0, micro_batch=8, pipeline_schedule="gpipe", recompute="none"
    ),
    "pipeline x tensor, 1F1B": Parallelism(
        dp=1, tp=2, pp=2, micro_batch=4, pipeline_schedule="1f1b", sequence_parallel=False, recompute="none"
    ),
    "pipeline, 1F1B": Parallelism(dp=1, tp=1, pp=4, micro_batch=2, pipeline_schedule="1f1b", recompute="none"),
    "pipeline, GPipe": Parallelism(dp=1, tp=1, pp=4, micro_batch=4, pipeline_schedule="gpipe", recompute="none"),
    "pipeline, one microbatch": Parallelism(
        dp=1, tp=1, pp=4, micro_batch=16, pipeline_schedule="gpipe", recompute="none"
    ),
    **{
        kind: Parallelism(dp=4, tp=1, pp=1, zero=0, micro_batch=4, recompute="none", compression=kind)
        for kind in COMPRESSED
    },
}
"""Each pins what makes it that plan; ``auto`` pins nothing."""


def training_of(name: str) -> Training:
    """Of a plan by its name: 1-bit Adam's only step of warm-up isn't timed."""
    return replace(TRAINING, compression_start=1) if name == "1bit" else TRAINING


def small_llama() -> LlamaForCausalLM:
    """Seven million parameters: 29 MB of gradients take a second and more over a slow link, none over a quick one."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1024,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )
    )


def batch() -> dict[str, torch.Tensor]:
    """The global batch of one step, for planning."""
    return {name: torch.zeros(ROWS, LENGTH, dtype=torch.int64) for name in ("input_ids", "labels")}
