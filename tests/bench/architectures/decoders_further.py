"""Decoders beyond those that are asked for."""

from __future__ import annotations

from tests.bench.architectures.architecture import HEADS, HIDDEN, LAYERS, Architecture
from tests.bench.architectures.batches import text
from tests.bench.architectures.decoders import GROUPED, OF_GPT2, STANDARD, WORDS, decoder

OF_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": HIDDEN}
OF_GROUPS = {**OF_EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
OF_LATENTS = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    "num_key_value_heads": HEADS,
}  # fmt: skip
SLIDING = {"head_dim": 8, "sliding_window": 8}

FURTHER = (
    decoder("arcee", "Arcee", GROUPED),
    decoder("biogpt", "BioGpt", STANDARD),
    decoder("codegen", "CodeGen", OF_GPT2, rotary_dim=4),
    decoder("cohere", "Cohere", GROUPED),
    decoder("cohere2", "Cohere2", GROUPED, sliding_window=8),
    Architecture("ctrl", "decoder", "CTRLLMHeadModel", "CTRLConfig", OF_GPT2 | {"dff": 2 * HIDDEN}, text),
    decoder("deepseek_v2", "DeepseekV2", STANDARD, **OF_GROUPS, **OF_LATENTS, topk_method="greedy"),
    decoder("deepseek_v3", "DeepseekV3", STANDARD, **OF_GROUPS, **OF_LATENTS),
    decoder("diffllama", "DiffLlama", GROUPED),
    decoder("dots1", "Dots1", GROUPED, **OF_GROUPS, n_shared_experts=1),
    decoder("ernie4_5", "Ernie4_5", GROUPED),
    decoder("exaone4", "Exaone4", GROUPED, sliding_window=8),
    decoder("falcon_grouped", "Falcon", {**WORDS, "hidden_size": HIDDEN}, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_kv_heads=2, new_decoder_architecture=True),
    decoder("falcon_alibi", "Falcon", {**WORDS, "hidden_size": HIDDEN}, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, alibi=True, multi_query=False),
    decoder("gemma", "Gemma", GROUPED, head_dim=8),
    Architecture("gemma3", "decoder", "Gemma3ForCausalLM", "Gemma3TextConfig", GROUPED | SLIDING, text),
    decoder("glm", "Glm", GROUPED, head_dim=8),
    decoder("glm4", "Glm4", GROUPED, head_dim=8),
    decoder("glm4_moe", "Glm4Moe", GROUPED, **OF_GROUPS),
    decoder("gpt_bigcode", "GPTBigCode", OF_GPT2),
    decoder("gpt_neo", "GPTNeo", {**WORDS, "hidden_size": HIDDEN}, num_layers=LAYERS, num_heads=HEADS,
            attention_types=[[["global", "local"], 2]], max_position_embeddings=64, window_size=8),
    decoder("gptj", "GPTJ", OF_GPT2, rotary_dim=4),
    decoder("granite", "Granite", GROUPED),
    decoder("granitemoe", "GraniteMoe", GROUPED, num_local_experts=4, num_experts_per_tok=2),
    decoder("helium", "Helium", GROUPED, head_dim=8),
    decoder("hunyuan_v1_dense", "HunYuanDenseV1", GROUPED, head_dim=8),
    decoder("jetmoe", "JetMoe", {**WORDS, "hidden_size": HIDDEN}, num_hidden_layers=LAYERS, num_key_value_heads=2,
            kv_channels=8, num_local_experts=4, num_experts_per_tok=2, intermediate_size=2 * HIDDEN),
    decoder("mpt", "Mpt", {"d_model": HIDDEN, "n_heads": HEADS}, n_layers=LAYERS, max_seq_len=64,
            vocab_size=WORDS["vocab_size"]),
    decoder("nemotron", "Nemotron", GROUPED),
    decoder("olmo", "Olmo", GROUPED),
    decoder("olmo2", "Olmo2", GROUPED),
    decoder("olmo3", "Olmo3", GROUPED, sliding_window=8),
    Architecture("openai", "decoder", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", OF_GPT2, text),
    decoder("persimmon", "Persimmon", STANDARD),
    decoder("phi", "Phi", STANDARD),
    decoder("phimoe", "Phimoe", GROUPED, num_local_experts=4, num_experts_per_tok=2),
    decoder("qwen3_moe", "Qwen3Moe", GROUPED, **OF_EXPERTS, num_experts=4, head_dim=8),
    decoder("seed_oss", "SeedOss", GROUPED, head_dim=8),
    decoder("smollm3", "SmolLM3", GROUPED),
    decoder("stablelm", "StableLm", STANDARD, num_key_value_heads=HEADS),
    decoder("starcoder2", "Starcoder2", GROUPED),
    decoder("xglm", "XGLM", {**WORDS, "d_model": HIDDEN}, num_layers=LAYERS, attention_heads=HEADS,
            ffn_dim=2 * HIDDEN, max_position_embeddings=64),
    Architecture("xlnet", "decoder", "XLNetLMHeadModel", "XLNetConfig", {
        **WORDS, "d_model": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "d_inner": 2 * HIDDEN,
    }, text),
)  # fmt: skip
