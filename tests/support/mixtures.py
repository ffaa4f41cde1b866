"""Small mixtures of experts of transformers, and tokens for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.support.zoo import HEADS, HIDDEN, VOCABULARY, Batch, batch_of

LAYERS = 2
SIZES = {
    "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": 2,
    "vocab_size": VOCABULARY, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
    "num_experts_per_tok": 2,
}  # fmt: skip


def sized(layers: int) -> dict[str, int]:
    return {**SIZES, "num_hidden_layers": layers}


def mixtral(layers: int, **further: bool) -> nn.Module:
    return MixtralForCausalLM(MixtralConfig(**sized(layers), intermediate_size=48, num_local_experts=8, **further))


def qwen2(layers: int, **further: bool) -> nn.Module:
    """A shared expert beside the others, gated."""
    sizes = {"intermediate_size": 64, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 32}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**sized(layers), **sizes, num_experts=8, **further))


def qwen3(layers: int, **further: bool) -> nn.Module:
    """Every other layer is dense."""
    sizes = {"head_dim": 8, "intermediate_size": 64, "moe_intermediate_size": 16, "num_experts": 8}
    sparse = {"decoder_sparse_step": 2, "mlp_only_layers": []}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sized(layers), **sizes, **sparse, **further))


def olmoe(layers: int, **further: bool) -> nn.Module:
    return OlmoeForCausalLM(OlmoeConfig(**sized(layers), intermediate_size=16, num_experts=8, **further))


BY_LAYERS: dict[str, Callable[..., nn.Module]] = {"mixtral": mixtral, "qwen2": qwen2, "qwen3": qwen3, "olmoe": olmoe}


def tokens() -> Batch:
    return batch_of("llama")


def gpt_oss() -> nn.Module:
    """Gates and ups alternate, clamped; biases; attention sinks, every other layer in a window."""
    kinds = ["sliding_attention", "full_attention"] * (LAYERS // 2)
    sizes = {"head_dim": 8, "intermediate_size": 16, "num_local_experts": 8, "sliding_window": 4}
    further = {"output_router_logits": True, "pad_token_id": 0}
    return GptOssForCausalLM(GptOssConfig(**sized(LAYERS), **sizes, layer_types=kinds, **further))


def deepseek_v3() -> nn.Module:
    """Routed by sigmoids with a bias, in groups of experts; a shared expert; the first layer is dense."""
    experts = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
    latent = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
    sizes = {**sized(LAYERS), "num_key_value_heads": 4, "intermediate_size": 64, "moe_intermediate_size": 16}
    return DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **experts, **latent))


def llama4(choices: int) -> nn.Module:
    """Written as products of all tokens, which scores multiply before they enter an expert; a shared expert."""
    experts = {"intermediate_size": 16, "num_local_experts": 4, "interleave_moe_layer_step": 1}
    further = {"intermediate_size_mlp": 64, "head_dim": 8, "attention_chunk_size": 8, "pad_token_id": 0}
    module = Llama4ForCausalLM(Llama4TextConfig(**sized(LAYERS) | experts | further | {"num_experts_per_tok": choices}))
    for parameter in module.parameters():  # its experts and router begin as zeros, and whatever was in memory
        nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.1)
    return module


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    **{name: partial(made, LAYERS, output_router_logits=True) for name, made in BY_LAYERS.items()},
    "gpt_oss": gpt_oss,
    "deepseek_v3": deepseek_v3,
}


def wide_qwen3() -> nn.Module:
    """Of one layer wide enough that products take longer than what is sent beside them."""
    wide = {"hidden_size": 2048, "moe_intermediate_size": 1024, "num_attention_heads": 16, "head_dim": 128}
    sizes = {"num_hidden_layers": 1, "num_key_value_heads": 4, "vocab_size": 1024, "intermediate_size": 2048}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": []}
    with torch.device("meta"):
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**wide, **sizes, **experts))
