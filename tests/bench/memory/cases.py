"""What is planned and run: a small Llama and a small GPT-2, their batches, and plans of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from autoplan import Parallelism, Training

RANKS = 4
LENGTH = 256
TRAINING = Training(optimizer="adamw", precision="fp32", learning_rate=1e-4)
MIXED = TRAINING.with_precision("bf16-mixed")


@dataclass(frozen=True)
class Case:
    """One plan: of which model, over how many rows of a batch, what is pinned."""

    model: str
    rows: int
    parallelism: Parallelism
    training: Training = field(default=TRAINING)


def single(**fields: object) -> Parallelism:
    """Everything on one axis each unless it is given, nothing recomputed."""
    return Parallelism(**{"dp": 1, "tp": 1, "pp": 1, "recompute": "none", **fields})  # type: ignore[arg-type]


CASES: Mapping[str, Case] = {
    "ddp": Case("llama", 8, single(dp=4, zero=0, micro_batch=2)),
    "ddp, two microbatches": Case("gpt2", 16, single(dp=4, zero=0, micro_batch=2)),
    "zero1": Case("llama", 16, single(dp=4, zero=1, micro_batch=2)),
    "zero2": Case("llama", 16, single(dp=4, zero=2, micro_batch=2)),
    "zero3": Case("gpt2", 16, single(dp=4, zero=3, micro_batch=4)),
    "tensor": Case("llama", 8, single(tp=4, micro_batch=8, sequence_parallel=False)),
    "tensor, sequence": Case("gpt2", 8, single(tp=4, micro_batch=8, sequence_parallel=True)),
    "gpipe": Case("llama", 16, single(pp=4, micro_batch=4, pipeline_schedule="gpipe")),
    "1f1b, recomputed": Case("llama", 32, single(pp=4, micro_batch=4, pipeline_schedule="1f1b", recompute="full")),
    "1f1b, selective": Case(
        "gpt2", 32, single(dp=2, pp=2, zero=0, micro_batch=4, pipeline_schedule="1f1b", recompute="selective")
    ),
    "interleaved": Case(
        "llama", 32,
        single(tp=2, pp=2, micro_batch=4, pipeline_schedule="interleaved", virtual_stages=2, sequence_parallel=False),
    ),
    "1f1b, 64 microbatches": Case("llama", 64, single(pp=4, micro_batch=1, pipeline_schedule="1f1b")),
    "interleaved, 32 microbatches": Case(
        "gpt2", 64,
        single(dp=2, pp=2, zero=0, micro_batch=1, pipeline_schedule="interleaved", virtual_stages=2),
    ),
    "interleaved, four ranks": Case(
        "llama", 32, single(pp=4, micro_batch=1, pipeline_schedule="interleaved", virtual_stages=2)
    ),
    "interleaved, zero1": Case(
        "llama", 32, single(dp=2, pp=2, zero=1, micro_batch=2, pipeline_schedule="interleaved", virtual_stages=2)
    ),
    "1f1b, zero3": Case("llama", 32, single(dp=2, pp=2, zero=3, micro_batch=2, pipeline_schedule="1f1b")),
    "zero-bubble": Case(
        "llama", 32, single(tp=2, pp=2, micro_batch=4, pipeline_schedule="zero-bubble", virtual_stages=2,
                            sequence_parallel=False),
    ),
    "dp x tp, recomputed": Case(
        "gpt2", 16, single(dp=2, tp=2, zero=0, micro_batch=4, recompute="full", sequence_parallel=False)
    ),
    "ddp, mixed": Case("llama", 16, single(dp=4, zero=0, micro_batch=2), MIXED),
    "zero1, mixed": Case("llama", 16, single(dp=4, zero=1, micro_batch=2), MIXED),
    "tensor, mixed": Case("gpt2", 16, single(tp=4, micro_batch=8, sequence_parallel=False), MIXED),
    "1f1b, mixed": Case("llama", 32, single(pp=4, micro_batch=4, pipeline_schedule="1f1b"), MIXED),
}  # fmt: skip
"""Each pins what makes it that plan."""


def model_of(name: str) -> nn.Module:
    """On the meta device: planning needs no values, and the ranks draw their own."""
    with torch.device("meta"):
        return MODELS[name]()


def llama() -> nn.Module:
    """33 million parameters, an untied head."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4096, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
            num_key_value_heads=4, max_position_embeddings=LENGTH, use_cache=False,
        )
    )  # fmt: skip


def gpt2() -> nn.Module:
    """29 million parameters, the head tied to the embedding, biases, a fused projection, learned positions."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=8192, n_embd=512, n_layer=8, n_head=8, n_positions=LENGTH, use_cache=False, attn_pdrop=0.0,
            embd_pdrop=0.0, resid_pdrop=0.0,
        )
    )  # fmt: skip


MODELS = {"llama": llama, "gpt2": gpt2}


def batch(rows: int) -> dict[str, torch.Tensor]:
    """The global batch of one step, for planning."""
    return {name: torch.zeros(rows, LENGTH, dtype=torch.int64) for name in ("input_ids", "labels")}
