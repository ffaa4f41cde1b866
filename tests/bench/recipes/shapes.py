"""The model of each recipe: a name of ``hf:`` with the settings that its publisher gives, by the name in the file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A model by a name of ``resolve_model``, its settings, where these come from, and the sequence where a row gives
    none.

    adapters  linear layers that have low-rank adapters, beside which all else is frozen; () where all is trained
    """

    model: str
    settings: tuple[str, ...] = ()
    source: str = "a preset of autoplan"
    seq: int | None = None
    adapters: tuple[str, ...] = ()


def settings(**values: object) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in values.items())


def gpt_3(layers: int, hidden: int, heads: int, source: str, seq: int | None = None) -> Shape:
    return Shape("hf:gpt3-175b", settings(n_layer=layers, n_embd=hidden, n_head=heads), source, seq)


def nemotron(hidden: int, inner: int, layers: int, heads: int, kv: int, source: str) -> Shape:
    told = settings(hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
                    num_key_value_heads=kv, head_dim=hidden // heads, vocab_size=256000,
                    max_position_embeddings=8192)  # fmt: skip
    return Shape("hf:nemotron", told, source)


def nanotron(hidden: int, inner: int, layers: int, heads: int, tied: bool) -> Shape:
    told = settings(vocab_size=131072, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                    num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=8192,
                    tie_word_embeddings=tied)  # fmt: skip
    return Shape("hf:llama", told, "Llama 3's shape of that size with a key head for each query head and 131,072 "
                 "tokens: the one whose parameters are as many as its name says")  # fmt: skip


def nemotron_h(pattern: str, source: str, **values: object) -> Shape:
    """A hybrid: M for a state-space layer, E for a mixture, * for attention."""
    kinds = {"M": "linear_attention", "E": "moe", "*": "full_attention"}
    layers = ",".join(f'"{kinds[letter]}"' for letter in pattern)
    return Shape("hf:nemotron_h", settings(layers_block_type=f"[{layers}]", **values), source)


LLAMA_3_8B, LLAMA_3_70B = Shape("hf:llama-3-8b"), Shape("hf:llama-3-70b")
LLAMA_3_405B = Shape("hf:llama-3.1-405b")
QWEN_3_30B, QWEN_3_235B = Shape("hf:qwen3-30b-a3b"), Shape("hf:qwen3-235b-a22b")
GPT_OSS_20B, GPT_OSS_120B = Shape("hf:gpt-oss-20b"), Shape("hf:gpt-oss-120b")
DEEPSEEK_V3, KIMI_K2 = Shape("hf:deepseek-v3"), Shape("hf:kimi-k2")
QWEN_2_7B, QWEN_2_32B = Shape("hf:qwen2.5-7b"), Shape("hf:qwen2.5-32b")
NEMO = "recalled, no document at hand: NVIDIA's launcher scripts"
GPT_3 = gpt_3(96, 12288, 96, "Brown et al. 2020 (arXiv:2005.14165), table 2.1", 2048)
NEMOTRON_15B = nemotron(6144, 24576, 32, 48, 8, "Parmar et al. 2024 (arXiv:2402.16819), table 1")
NEMOTRON_340B = nemotron(18432, 73728, 96, 96, 8, "NVIDIA 2024 (arXiv:2406.11704), table 1")
NEMOTRON_3_NANO = nemotron_h(
    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "the configuration of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B on the hub",
    vocab_size=131072, max_position_embeddings=262144, hidden_size=2688, num_attention_heads=32, num_key_value_heads=2,
    head_dim=128, mamba_num_heads=64, mamba_head_dim=64, ssm_state_size=128, n_groups=8,
    intermediate_size=1856, moe_intermediate_size=1856, moe_shared_expert_intermediate_size=3712, n_routed_experts=128,
    num_experts_per_tok=6,
)  # fmt: skip
NEMOTRON_3_SUPER = nemotron_h(
    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    "Nemotron3SuperProvider of Megatron-Bridge, its two layers that predict further tokens left out",
    vocab_size=131072, max_position_embeddings=262144, hidden_size=4096, num_attention_heads=32, num_key_value_heads=2,
    head_dim=128, mamba_num_heads=128, mamba_head_dim=64, ssm_state_size=128, n_groups=8, intermediate_size=2688,
    moe_intermediate_size=2688, moe_shared_expert_intermediate_size=5376, moe_latent_size=1024, n_routed_experts=512,
    num_experts_per_tok=22,
)  # fmt: skip
GROK_1 = Shape(
    "hf:mixtral-8x7b",
    settings(vocab_size=131072, hidden_size=6144, intermediate_size=32768, num_hidden_layers=64,
             num_attention_heads=48, num_key_value_heads=8),
    "xai-org/grok-1, as a mixture of Mixtral's kind: its norms behind sublayers and its caps of logits left out",
)  # fmt: skip

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FUSED = ATTENTION[:3]
EVERY = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
LLAMA_2_LORA = Shape(
    "hf:llama-2-70b", settings(max_position_embeddings=8192),
    "megatron_gpt_peft_tuning_config.yaml of MLPerf's submissions", 8192, ATTENTION,
)  # fmt: skip

SHAPES = {
    "llama2_70b_lora": LLAMA_2_LORA,
    "LLAMA2-7B": Shape("hf:llama-2-7b"), "LLAMA2-13B": Shape("hf:llama-2-13b"), "LLAMA2-70B": Shape("hf:llama-2-70b"),
    "Llama3 8B": LLAMA_3_8B, "LLAMA3-8B": LLAMA_3_8B, "Llama3-8B": LLAMA_3_8B, "Llama3.1-8B": LLAMA_3_8B,
    "llama31_8b": Shape(LLAMA_3_8B.model, seq=8192),
    "Llama3 70B": LLAMA_3_70B, "Llama3 70B 2-node": LLAMA_3_70B, "LLAMA3-70B": LLAMA_3_70B, "LLAMA3_70B": LLAMA_3_70B,
    "Llama3-70B": LLAMA_3_70B, "Llama3.1-70B": LLAMA_3_70B, "MaxText-Llama3-70B": LLAMA_3_70B,
    "LLAMA3.1_405B": LLAMA_3_405B, "Llama3.1-405B": LLAMA_3_405B, "Llama-3.1-405B": LLAMA_3_405B,
    "llama31_405b": Shape(LLAMA_3_405B.model, seq=8192),
    "GPT3-5B": gpt_3(24, 4096, 32, NEMO), "GPT3-20B": gpt_3(44, 6144, 48, NEMO), "GPT3-175B": GPT_3, "gpt3": GPT_3,
    "Nemotron-8B": nemotron(4096, 16384, 32, 32, 32, NEMO), "Nemotron-22B": nemotron(6144, 24576, 40, 48, 48, NEMO),
    "Nemotron4-15B": NEMOTRON_15B, "Nemotron4-340B": NEMOTRON_340B, "Nemotron-340B": NEMOTRON_340B,
    "Qwen2.5 7B": QWEN_2_7B, "Qwen2.5 32B": QWEN_2_32B, "Qwen2.5 32B 2-node": QWEN_2_32B,
    "Qwen3_30B_a3B": QWEN_3_30B, "Qwen3 MoE 30B": QWEN_3_30B,
    "Qwen3_235B_a22B": QWEN_3_235B, "Qwen3-235B": QWEN_3_235B,
    "Qwen3-Next-80B-A3B": Shape("hf:qwen3_next", (), "the configuration that transformers has of it"),
    "GPT-OSS 20B": GPT_OSS_20B, "GPT OSS 120B": GPT_OSS_120B, "GPT-OSS 120B": GPT_OSS_120B,
    "DeepSeekV3": DEEPSEEK_V3, "DeepSeek V3 671B": DEEPSEEK_V3, "DeepSeek-V3-671B": DEEPSEEK_V3,
    "Kimi K2": KIMI_K2, "Kimi_K2": KIMI_K2, "Grok1-314B": GROK_1,
    "Nemotron_3_Nano": NEMOTRON_3_NANO, "Nemotron V3 Nano 30B (26.02)": NEMOTRON_3_NANO,
    "Nemotron_3_5_Lightning": NEMOTRON_3_NANO,
    "Nemotron_3_Super": NEMOTRON_3_SUPER, "Nemotron V3 Super 120B (26.02)": NEMOTRON_3_SUPER,
    "llama-like 1.34B": nanotron(2048, 8192, 16, 32, True), "llama-like 3.57B": nanotron(3072, 8192, 28, 24, True),
    "llama-like 8.86B": nanotron(4096, 14336, 32, 32, False), "llama-like 80.0B": nanotron(8192, 28672, 80, 64, False),
}  # fmt: skip
UNKNOWN = {
    "DeepSeekV4 Flash": "its shape isn't published where it could be read",
    "model": "the row names no model",
}
