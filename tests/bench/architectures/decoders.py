"""Decoders: causal language models."""

from __future__ import annotations

from tests.bench.architectures.architecture import HEADS, HIDDEN, LAYERS, VOCABULARY, Architecture
from tests.bench.architectures.batches import text

ENDS = {"bos_token_id": 1, "eos_token_id": 2}
WORDS = {**ENDS, "vocab_size": VOCABULARY, "pad_token_id": 0}
STANDARD = {
    **WORDS, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": 2 * HIDDEN, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {**STANDARD, "num_key_value_heads": 2}
OF_GPT2 = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64, "vocab_size": VOCABULARY, **ENDS}


def decoder(name: str, stem: str, sizes: dict[str, object], *, listed: bool = False, **more: object) -> Architecture:
    """One whose classes are named alike: ``stem``ForCausalLM, ``stem``Config."""
    return Architecture(name, "decoder", f"{stem}ForCausalLM", f"{stem}Config", sizes | more, text, listed)


LISTED = (
    Architecture("gpt2", "decoder", "GPT2LMHeadModel", "GPT2Config", OF_GPT2, text, True),
    decoder("gpt_neox", "GPTNeoX", STANDARD, listed=True),
    decoder("llama", "Llama", GROUPED, listed=True),
    decoder("mistral", "Mistral", GROUPED, listed=True, sliding_window=8),
    decoder("mixtral", "Mixtral", GROUPED, listed=True, num_local_experts=4),
    decoder("qwen2", "Qwen2", GROUPED, listed=True),
    decoder("qwen3", "Qwen3", GROUPED, listed=True, head_dim=8),
    decoder(
        "qwen2_moe", "Qwen2Moe", GROUPED, listed=True, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=HIDDEN, shared_expert_intermediate_size=HIDDEN,
    ),
    decoder("gemma2", "Gemma2", GROUPED, listed=True, head_dim=8, sliding_window=8),
    decoder("phi3", "Phi3", GROUPED, listed=True),
    decoder(
        "falcon", "Falcon", {**WORDS, "hidden_size": HIDDEN}, listed=True, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
    ),
    decoder(
        "opt", "OPT", {**WORDS, "hidden_size": HIDDEN}, listed=True, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, ffn_dim=2 * HIDDEN, word_embed_proj_dim=HIDDEN, max_position_embeddings=64,
    ),
    decoder("bloom", "Bloom", {**WORDS, "hidden_size": HIDDEN}, listed=True, n_layer=LAYERS, n_head=HEADS),
    decoder("olmoe", "Olmoe", GROUPED, listed=True, num_experts=4, num_experts_per_tok=2),
    decoder(
        "gpt_oss", "GptOss", GROUPED, listed=True, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=8,
    ),
)  # fmt: skip
