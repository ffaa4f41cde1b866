"""Public configurations of transformers by name: ``hf:llama-3-70b``, ``hf:Qwen/Qwen3-8B``.

Each is as its config.json has it; sizes that are its class' defaults are left out. A longer context's scaling of rotary
positions is left out too: it changes no shape. Where no source stands beside one it is recalled, no document at hand;
`tests/models/test_presets.py` holds each to the number of parameters that its publisher counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LLAMA_3 = {"vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
           "num_key_value_heads": 8, "tie_word_embeddings": False}  # fmt: skip
QWEN_3 = {"head_dim": 128, "norm_topk_prob": True, "max_position_embeddings": 40960, "rope_theta": 1e6}
WITHOUT_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

Preset = tuple[str, Mapping[str, object]]


def decoder(hidden: int, inner: int, layers: int, heads: int, kv_heads: int) -> dict[str, object]:
    """The sizes that Llama's kin have in common."""
    return {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads}  # fmt: skip


def llama_2(*sizes: int) -> Preset:
    """Touvron et al. 2023 (arXiv:2307.09288)."""
    return "llama", {**decoder(*sizes), "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}


def llama_3(*sizes: int, **other: object) -> Preset:
    return "llama", {**LLAMA_3, **decoder(*sizes), **other}


def qwen_2_5(*sizes: int, **other: object) -> Preset:
    """Qwen Team 2024 (arXiv:2412.15115), table 1."""
    told = {"vocab_size": 152064, "max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
    return "qwen2", {**told, **decoder(*sizes), "tie_word_embeddings": False, **other}


def qwen_3(*sizes: int, tied: bool) -> Preset:
    """Yang et al. 2025 (arXiv:2505.09388), table 1."""
    told = {"vocab_size": 151936, "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1e6}
    return "qwen3", {**told, **decoder(*sizes), "tie_word_embeddings": tied}


def gpt_2(width: int, layers: int, heads: int) -> Preset:
    """Radford et al. 2019, table 2."""
    return "gpt2", {"n_embd": width, "n_layer": layers, "n_head": heads}


LONG = {"max_position_embeddings": 131072}
MIXTRALS = ("mixtral-8x7b", "mixtral-8x22b")
SMALL_QWEN = {"vocab_size": 151936, "tie_word_embeddings": True}

PRESETS: Mapping[str, Preset] = {
    "llama-2-7b": llama_2(4096, 11008, 32, 32, 32),
    "llama-2-13b": llama_2(5120, 13824, 40, 40, 40),
    "llama-2-70b": llama_2(8192, 28672, 80, 64, 8),
    "llama-3-8b": llama_3(4096, 14336, 32, 32, 8),
    "llama-3-70b": llama_3(8192, 28672, 80, 64, 8),
    "llama-3.1-8b": llama_3(4096, 14336, 32, 32, 8, **LONG),
    "llama-3.1-70b": llama_3(8192, 28672, 80, 64, 8, **LONG),
    "llama-3.1-405b": llama_3(16384, 53248, 126, 128, 8, **LONG),
    "llama-3.2-1b": llama_3(2048, 8192, 16, 32, 8, tie_word_embeddings=True, head_dim=64, **LONG),
    "llama-3.2-3b": llama_3(3072, 8192, 28, 24, 8, tie_word_embeddings=True, head_dim=128, **LONG),
    "llama-3.3-70b": llama_3(8192, 28672, 80, 64, 8, **LONG),
    "mistral-7b": ("mistral", {"vocab_size": 32768, "max_position_embeddings": 32768, "rope_theta": 1e6,
                               "rms_norm_eps": 1e-5, "sliding_window": None}),
    "mixtral-8x7b": ("mixtral", {"max_position_embeddings": 32768, "rope_theta": 1e6}),
    "mixtral-8x22b": ("mixtral", {"vocab_size": 32768, "max_position_embeddings": 65536, "rope_theta": 1e6,
                                  **decoder(6144, 16384, 56, 48, 8)}),
    "qwen2.5-0.5b": qwen_2_5(896, 4864, 24, 14, 2, **SMALL_QWEN),
    "qwen2.5-1.5b": qwen_2_5(1536, 8960, 28, 12, 2, **SMALL_QWEN),
    "qwen2.5-3b": qwen_2_5(2048, 11008, 36, 16, 2, **SMALL_QWEN),
    "qwen2.5-7b": qwen_2_5(3584, 18944, 28, 28, 4),
    "qwen2.5-14b": qwen_2_5(5120, 13824, 48, 40, 8),
    "qwen2.5-32b": qwen_2_5(5120, 27648, 64, 40, 8),
    "qwen2.5-72b": qwen_2_5(8192, 29568, 80, 64, 8),
    "qwen3-0.6b": qwen_3(1024, 3072, 28, 16, 8, tied=True),
    "qwen3-1.7b": qwen_3(2048, 6144, 28, 16, 8, tied=True),
    "qwen3-4b": qwen_3(2560, 9728, 36, 32, 8, tied=True),
    "qwen3-8b": qwen_3(4096, 12288, 36, 32, 8, tied=False),
    "qwen3-14b": qwen_3(5120, 17408, 40, 40, 8, tied=False),
    "qwen3-32b": qwen_3(5120, 25600, 64, 64, 8, tied=False),
    # Qwen/Qwen3-30B-A3B and Qwen/Qwen3-235B-A22B; openai/gpt-oss-20b, whose class' defaults are those of the 120b
    "qwen3-30b-a3b": ("qwen3_moe", {**QWEN_3, "num_hidden_layers": 48}),
    "qwen3-235b-a22b": ("qwen3_moe", {**QWEN_3, "hidden_size": 4096, "intermediate_size": 12288,
                                      "moe_intermediate_size": 1536, "num_hidden_layers": 94,
                                      "num_attention_heads": 64}),
    "gpt-oss-20b": ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    "gpt-oss-120b": ("gpt_oss", {}),
    # Moonshot's Kimi K2 (arXiv:2507.20534), table 2: DeepSeek-V3's architecture, whose class' defaults are its sizes
    "deepseek-v3": ("deepseek_v3", {}),
    "kimi-k2": ("deepseek_v3", {"num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384,
                                "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "vocab_size": 163840}),
    "gemma-2-2b": ("gemma2", {}),
    "gemma-2-9b": ("gemma2", {**decoder(3584, 14336, 42, 16, 8), "head_dim": 256}),
    "gemma-2-27b": ("gemma2", {**decoder(4608, 36864, 46, 32, 16), "head_dim": 128, "query_pre_attn_scalar": 144}),
    "phi-4": ("phi3", {**decoder(5120, 17920, 40, 40, 10), "vocab_size": 100352, "max_position_embeddings": 16384,
                       "rope_theta": 250000.0, "pad_token_id": None}),
    "olmo-2-7b": ("olmo2", {"vocab_size": 100352, "max_position_embeddings": 4096, "rope_theta": 500000.0}),
    "bloom-176b": ("bloom", {"hidden_size": 14336, "n_layer": 70, "n_head": 112}),
    "gpt2-medium": gpt_2(1024, 24, 16),
    "gpt2-large": gpt_2(1280, 36, 20),
    "gpt2-xl": gpt_2(1600, 48, 25),
    # Brown et al. 2020 (arXiv:2005.14165), table 2.1, with Megatron's padded vocabulary (Narayanan et al. 2021)
    "gpt3-175b": ("gpt2", {**WITHOUT_DROPOUT, "n_embd": 12288, "n_layer": 96, "n_head": 96, "n_positions": 2048,
                           "vocab_size": 51200}),
    "bert-large": ("bert", {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                            "num_attention_heads": 16}),
    # google-t5/t5-11b
    "t5-11b": ("t5", {"d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_layers": 24, "num_decoder_layers": 24,
                      "num_heads": 128, "vocab_size": 32128, "dropout_rate": 0.0, "decoder_start_token_id": 0}),
    # the shape of Dehghani et al. 2023 (arXiv:2302.05442), table 1; its layers run attention and MLP side by side
    "vit-22b": ("vit", {"hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 48,
                        "num_attention_heads": 48, "image_size": 224, "patch_size": 14}),
}  # fmt: skip
# what the hub calls a model, beside its organisation and what only says how it was trained or which release it is
HUB: Mapping[str, str] = {
    "gpt2": "gpt2", "bert-base": "bert", "vit-base-patch16-224": "vit", "bloom": "bloom-176b",
    "deepseek-r1": "deepseek-v3", "olmo-2-1124-7b": "olmo-2-7b",
    "mistral-7b-v0.3": "mistral-7b", "mistral-7b-instruct-v0.3": "mistral-7b",  # earlier ones have another vocabulary
    **{f"{name}{kind}-v0.1": name for name in MIXTRALS for kind in ("", "-instruct")},
    **{f"meta-{name}": name for name in PRESETS if name.startswith("llama")},
}  # fmt: skip
TRAINED = re.compile(r"-(instruct|chat|it|base|hf|uncased|\d{4})$")


def preset_name(name: str) -> str:
    """The preset or model type that a name of the hub stands for, as far as this list knows.

    "Qwen/Qwen2.5-7B-Instruct" is "qwen2.5-7b"; a name that stands for none comes back in small letters.
    """
    given = name.rpartition("/")[2].lower()
    while given not in PRESETS and given not in HUB and TRAINED.search(given):
        given = TRAINED.sub("", given)
    return HUB.get(given, given)
