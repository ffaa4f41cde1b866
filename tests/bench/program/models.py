"""Small models whose one-rank programs are compared with the modules themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

ROWS, LENGTH, VOCABULARY = 2, 32, 128


def gpt2(dropout: float = 0.0) -> nn.Module:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4, resid_pdrop=dropout,
        embd_pdrop=dropout, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def bert() -> nn.Module:
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForMaskedLM(config)


def mixtral() -> nn.Module:
    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, max_position_embeddings=LENGTH, use_cache=False,
        sliding_window=None,
    )  # fmt: skip
    return MixtralForCausalLM(config)


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "GPT-2": gpt2, "GPT-2, dropout": lambda: gpt2(0.1), "Llama": llama, "BERT": bert, "Mixtral": mixtral,
}  # fmt: skip


def batch() -> dict[str, Tensor]:
    """Token ids and labels of one step."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}
