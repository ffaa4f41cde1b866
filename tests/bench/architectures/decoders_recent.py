"""Decoders of the last years, and kinds that are rarer: more experts, windows, recurrent layers."""

from __future__ import annotations

from tests.bench.architectures.architecture import HEADS, HIDDEN, LAYERS, Architecture
from tests.bench.architectures.batches import text
from tests.bench.architectures.decoders import GROUPED, STANDARD, WORDS, decoder
from tests.bench.architectures.decoders_further import OF_LATENTS, SLIDING

TWO_OF_FOUR = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
STATES = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8,
}  # fmt: skip

FURTHER: tuple[Architecture, ...] = (
    decoder("apertus", "Apertus", GROUPED),
    decoder("bamba", "Bamba", GROUPED, **STATES, attn_layer_indices=[1, 3]),
    Architecture("bert_lm", "decoder", "BertLMHeadModel", "BertConfig", STANDARD | {"is_decoder": True}, text),
    decoder("bitnet", "BitNet", GROUPED),
    decoder("cpmant", "CpmAnt", {"hidden_size": HIDDEN, "vocab_size": WORDS["vocab_size"]}, num_attention_heads=HEADS,
            dim_head=8, dim_ff=2 * HIDDEN, num_hidden_layers=LAYERS, prompt_length=4, prompt_types=4, segment_types=4,
            position_bias_num_buckets=16, position_bias_max_distance=32),
    decoder("cwm", "Cwm", GROUPED, **SLIDING),
    decoder("ernie4_5_moe", "Ernie4_5_Moe", GROUPED, moe_num_experts=4, moe_k=2, moe_intermediate_size=HIDDEN,
            moe_num_shared_experts=1),
    decoder("flex_olmo", "FlexOlmo", GROUPED, **TWO_OF_FOUR),
    decoder("gpt_neox_japanese", "GPTNeoXJapanese", STANDARD, intermediate_multiple_size=2),
    decoder("granitemoeshared", "GraniteMoeShared", GROUPED, **LOCAL, shared_intermediate_size=HIDDEN),
    decoder("hunyuan_v1_moe", "HunYuanMoEV1", GROUPED, num_experts=4, moe_topk=2, head_dim=8),
    decoder("jais2", "Jais2", GROUPED, head_dim=8),
    Architecture("llama4", "decoder", "Llama4ForCausalLM", "Llama4TextConfig", GROUPED | {
        "intermediate_size_mlp": 2 * HIDDEN, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 1,
        "attention_chunk_size": 8,
    }, text),
    decoder("minicpm3", "MiniCPM3", STANDARD, **OF_LATENTS),
    decoder("minimax_m2", "MiniMaxM2", GROUPED, **LOCAL, head_dim=8),
    decoder("ministral", "Ministral", GROUPED, **SLIDING),
    decoder("ministral3", "Ministral3", GROUPED, head_dim=8),
    decoder("modernbert_decoder", "ModernBertDecoder", STANDARD, local_attention=8),
    decoder("nanochat", "NanoChat", GROUPED),
    decoder("recurrent_gemma", "RecurrentGemma", GROUPED, lru_width=HIDDEN, attention_window_size=8, head_dim=8,
            block_types=["recurrent", "attention"]),
    decoder("trocr", "TrOCR", {**WORDS, "d_model": HIDDEN}, decoder_layers=LAYERS, decoder_attention_heads=HEADS,
            decoder_ffn_dim=2 * HIDDEN, max_position_embeddings=64),
    decoder("vaultgemma", "VaultGemma", GROUPED, **SLIDING),
    Architecture("xlm", "decoder", "XLMWithLMHeadModel", "XLMConfig", {
        "vocab_size": WORDS["vocab_size"], "emb_dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "causal": True,
        "max_position_embeddings": 64, "pad_index": 0, "n_langs": 1, "use_lang_emb": False,
    }, text),
)  # fmt: skip
