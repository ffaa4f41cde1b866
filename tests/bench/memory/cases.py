"""What is planned and run: a small Llama, GPT-2 and Mixtral, their batches, and plans of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from autoplan import Parallelism, Training

RANKS = 4
LENGTH = 256
TRAINING = Training(optimizer="adamw", precision="fp32", learning_rate=1e-4)
MIXED = TRAINING.with_precision("bf16-mixed")


@dataclass(frozen=True)
class Case:
    """One plan: of which model, over how many rows of a batch, what is pinned.

    untrained  a mixture's routers see what an untrained model's do; else they spread tokens evenly (``measured``)
    """

    model: str
    rows: int
    parallelism: Parallelism
    training: Training = field(default=TRAINING)
    untrained: bool = False

    @property
    def even(self) -> bool:
        """Whether tokens are to be spread."""
        return self.model == "mixtral" and not self.untrained


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
    "zero2, mixed": Case("gpt2", 16, single(dp=4, zero=2, micro_batch=2), MIXED),
    "zero3, mixed": Case("llama", 16, single(dp=4, zero=3, micro_batch=2), MIXED),
    "1f1b, 32 microbatches, mixed": Case("llama", 32, single(pp=4, micro_batch=1, pipeline_schedule="1f1b"), MIXED),
    "interleaved, four stages a rank": Case(
        "llama", 32, single(dp=2, pp=2, zero=0, micro_batch=1, pipeline_schedule="interleaved", virtual_stages=4)
    ),
    "interleaved, zero1, mixed": Case(
        "llama", 64, single(dp=2, pp=2, zero=1, micro_batch=1, pipeline_schedule="interleaved", virtual_stages=2), MIXED
    ),
    "context, ring": Case("llama", 8, single(cp=4, cp_attention="ring", micro_batch=8)),
    "context, rows": Case("llama", 8, single(cp=4, cp_attention="rows", micro_batch=8)),
    "context, heads": Case("llama", 8, single(cp=4, cp_attention="heads", micro_batch=8)),
    "context and tensor": Case("llama", 8, single(cp=2, tp=2, micro_batch=4), MIXED),
    "mixture, experts": Case("mixtral", 16, single(dp=4, ep=4, zero=1, micro_batch=4)),
    "mixture, experts, mixed": Case("mixtral", 16, single(dp=4, ep=4, zero=1, micro_batch=4), MIXED),
    "mixture, tensor": Case("mixtral", 8, single(tp=4, micro_batch=8)),
    "mixture, stages": Case(
        "mixtral", 16, single(pp=2, dp=2, ep=2, zero=1, micro_batch=2, pipeline_schedule="1f1b"),
        replace(TRAINING, statistics="microbatch"),
    ),
    "mixture, experts, untrained router": Case(
        "mixtral", 16, single(dp=4, ep=4, zero=1, micro_batch=4), untrained=True
    ),
    "mixture, stages, untrained router": Case(
        "mixtral", 16, single(pp=2, dp=2, ep=2, zero=1, micro_batch=2, pipeline_schedule="1f1b"),
        replace(TRAINING, statistics="microbatch"), untrained=True,
    ),
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


def mixtral() -> nn.Module:
    """46 million parameters, four layers of eight experts, of which two take each token."""
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=4096, hidden_size=384, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=4, max_position_embeddings=LENGTH, use_cache=False, num_local_experts=8,
            num_experts_per_tok=2, output_router_logits=True,
        )
    )  # fmt: skip


MODELS = {"llama": llama, "gpt2": gpt2, "mixtral": mixtral}


def batch(rows: int) -> dict[str, torch.Tensor]:
    """The global batch of one step, for planning."""
    return {name: torch.zeros(rows, LENGTH, dtype=torch.int64) for name in ("input_ids", "labels")}
