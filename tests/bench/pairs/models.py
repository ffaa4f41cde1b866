"""The models of the pairs, in two sizes: one whose counts are taken quickly, one whose seconds are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)


@dataclass(frozen=True)
class Size:
    """Of a model and its batch: ``rows`` of ``length`` tokens in a step, over all ranks and microbatches; two heads
    of queries share keys and values."""

    hidden: int
    layers: int
    vocabulary: int
    rows: int
    length: int
    heads: int = 4


SMALL = Size(hidden=32, layers=4, vocabulary=128, rows=16, length=32)
LARGE = Size(hidden=128, layers=4, vocabulary=512, rows=16, length=64)
EXPERTS, DROPOUT = 4, 0.1


def llama(size: Size) -> nn.Module:
    config = LlamaConfig(
        vocab_size=size.vocabulary, hidden_size=size.hidden, intermediate_size=2 * size.hidden,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, num_key_value_heads=size.heads // 2,
        max_position_embeddings=size.length, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def gpt2(size: Size, attention: float = 0.0) -> nn.Module:
    """With dropout, of attention's probabilities as given."""
    config = GPT2Config(
        vocab_size=size.vocabulary, n_positions=size.length, n_embd=size.hidden, n_layer=size.layers, n_head=size.heads,
        resid_pdrop=DROPOUT, embd_pdrop=DROPOUT, attn_pdrop=attention, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def mixtral(size: Size) -> nn.Module:
    config = MixtralConfig(
        vocab_size=size.vocabulary, hidden_size=size.hidden, intermediate_size=2 * size.hidden,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, num_key_value_heads=size.heads // 2,
        num_local_experts=EXPERTS, max_position_embeddings=size.length, use_cache=False, sliding_window=None,
    )  # fmt: skip
    return MixtralForCausalLM(config)


MODELS: Mapping[str, Callable[[Size], nn.Module]] = {
    "Llama": llama, "GPT-2, dropout": gpt2, "Mixtral": mixtral,
    "GPT-2, dropout in attention": partial(gpt2, attention=DROPOUT),
}  # fmt: skip


def made(name: str, size: Size) -> nn.Module:
    """The model with the same values on every rank."""
    torch.manual_seed(0)
    return MODELS[name](size).train()


def batch(size: Size) -> dict[str, Tensor]:
    """Token ids and labels of one step, all rows."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, size.vocabulary, (size.rows, size.length), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}
