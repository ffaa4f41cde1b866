"""transformers' models of language that ``make zoo`` has no row of."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.bench.architectures import decoders_further, decoders_recent, encoders_further
from tests.bench.architectures.architecture import BATCH, HEADS, HIDDEN, VOCABULARY, Architecture
from tests.bench.architectures.batches import masked_text, text, two_texts
from tests.bench.architectures.decoders import GROUPED, STANDARD, WORDS, decoder
from tests.bench.architectures.decoders_further import OF_EXPERTS, OF_GROUPS, OF_LATENTS
from tests.bench.architectures.decoders_recent import LOCAL, STATES
from tests.bench.architectures.encoders import OF_BART, OF_T5, encoder, seq2seq
from tests.bench.wide.model import Brought, Made, of_transformers

TWO = GROUPED | {"num_hidden_layers": 2}
PLAIN = STANDARD | {"num_hidden_layers": 2}
OFFSET = PLAIN | {"max_position_embeddings": 66}
UNTOLD = {"jetmoe", "phimoe", "xlnet", "llama4"}


def lm(name: str, model: str, config: str, sizes: dict[str, object], **more: object) -> Architecture:
    return Architecture(name, "decoder", model, config, sizes | more, text)


DECODERS = (
    *(one for one in (*decoders_further.FURTHER, *decoders_recent.FURTHER) if one.name in UNTOLD),
    decoder("afmoe", "Afmoe", TWO, **OF_EXPERTS, num_experts=4, num_dense_layers=1, head_dim=8, sliding_window=8),
    decoder("doge", "Doge", TWO),
    decoder("deepseek v3.2", "DeepseekV32", PLAIN, **OF_GROUPS, **OF_LATENTS, index_topk=8, index_n_heads=2,
        index_head_dim=8),
    decoder("exaone moe", "ExaoneMoe", TWO, **OF_EXPERTS, num_experts=4, head_dim=8),
    decoder("falcon h1", "FalconH1", TWO, **STATES, head_dim=8, mamba_d_ssm=64),
    decoder("glm4 moe lite", "Glm4MoeLite", PLAIN, **OF_GROUPS, **OF_LATENTS),
    decoder("granite moe hybrid", "GraniteMoeHybrid", TWO, **LOCAL, **STATES, shared_intermediate_size=HIDDEN,
            layer_types=["mamba", "attention"]),
    decoder("lfm2", "Lfm2", TWO, layer_types=["conv", "full_attention"], block_multiple_of=8),
    decoder("lfm2 moe", "Lfm2Moe", TWO, layer_types=["conv", "full_attention"], moe_intermediate_size=HIDDEN,
        num_experts=4,
            num_experts_per_tok=2, num_dense_layers=1),
    decoder("longcat flash", "LongcatFlash", {**WORDS, "hidden_size": HIDDEN}, num_layers=1, num_hidden_layers=2,
            num_attention_heads=HEADS, ffn_hidden_size=64, expert_ffn_hidden_size=HIDDEN, **OF_LATENTS, moe_topk=2,
            n_routed_experts=4, zero_expert_num=2, head_dim=4),
    decoder("minimax", "MiniMax", TWO, **LOCAL, head_dim=8, block_size=8, layer_types=["linear_attention",
        "full_attention"]),
    decoder("olmo hybrid", "OlmoHybrid", TWO, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
            linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"]),
    decoder("qwen3 next", "Qwen3Next", TWO, **OF_EXPERTS, num_experts=4, head_dim=8, linear_num_key_heads=2,
            linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
            shared_expert_intermediate_size=32,
            layer_types=["linear_attention", "full_attention"]),
    decoder("xlstm", "xLSTM", {"vocab_size": VOCABULARY, "hidden_size": HIDDEN}, num_blocks=2, num_heads=HEADS,
        chunk_size=8),
    decoder("zamba2", "Zamba2", PLAIN, num_key_value_heads=HEADS, mamba_d_state=8, mamba_headdim=8, n_mamba_heads=8,
            mamba_ngroups=1, num_mem_blocks=1, chunk_size=8, layers_block_type=["mamba", "hybrid"], use_mem_rope=True),
    decoder("nemotron h", "NemotronH", TWO, mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=8, n_groups=1,
        chunk_size=8,
            layers_block_type=["mamba", "attention"], head_dim=8),
    lm("gemma3n", "Gemma3nForCausalLM", "Gemma3nTextConfig", TWO, head_dim=8, sliding_window=8, laurel_rank=4,
       hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCABULARY, num_kv_shared_layers=0, altup_num_inputs=2,
       layer_types=["sliding_attention", "full_attention"], activation_sparsity_pattern=[0.5, 0.0]),
    lm("reformer", "ReformerModelWithLMHead", "ReformerConfig", {
        **WORDS, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "attention_head_size": 8, "feed_forward_size": 64,
        "attn_layers": ["local", "local"], "local_attn_chunk_length": 8, "axial_pos_shape": [4, 4],
        "axial_pos_embds_dim": [16, 16], "max_position_embeddings": 64, "is_decoder": True}),
    decoder("opt projected", "OPT", {**WORDS, "hidden_size": HIDDEN, "word_embed_proj_dim": 16}, num_hidden_layers=2,
            num_attention_heads=HEADS, ffn_dim=64, max_position_embeddings=64),
    decoder("roformer lm", "RoFormer", PLAIN, is_decoder=True, embedding_size=HIDDEN),
    decoder("big bird lm", "BigBird", PLAIN, is_decoder=True, attention_type="original_full"),
)  # fmt: skip
ENCODERS = (
    *(one for one in encoders_further.FURTHER if one.name != "mpnet"),
    encoder("big bird", "BigBird", PLAIN, attention_type="original_full"),
    encoder("camembert", "Camembert", OFFSET),
    encoder("convbert", "ConvBert", PLAIN, embedding_size=HIDDEN, head_ratio=2, conv_kernel_size=3),
    encoder("data2vec text", "Data2VecText", OFFSET),
    encoder("deberta v1", "Deberta", PLAIN, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    encoder("ernie", "Ernie", PLAIN),
    encoder("esm", "Esm", OFFSET, position_embedding_type="rotary", mask_token_id=3),
    encoder("eurobert", "EuroBert", TWO),
    encoder("fnet", "FNet", PLAIN),
    encoder("funnel", "Funnel", {"vocab_size": VOCABULARY, "block_sizes": [1, 1], "num_decoder_layers": 1,
        "d_model": HIDDEN},
            n_head=HEADS, d_head=8, d_inner=64),
    encoder("ibert", "IBert", OFFSET),
    encoder("longformer", "Longformer", OFFSET, attention_window=[8, 8]),
    encoder("luke", "Luke", OFFSET, entity_vocab_size=16, entity_emb_size=16),
    encoder("megatron bert", "MegatronBert", PLAIN),
    encoder("mobilebert", "MobileBert", PLAIN, embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    encoder("nomic bert", "NomicBert", PLAIN),
    encoder("nystromformer", "Nystromformer", PLAIN, num_landmarks=16, segment_means_seq_len=16),
    encoder("rembert", "RemBert", PLAIN, input_embedding_size=16, output_embedding_size=16),
    encoder("roberta pre layer norm", "RobertaPreLayerNorm", OFFSET),
    encoder("rocbert", "RoCBert", PLAIN, pronunciation_vocab_size=VOCABULARY, shape_vocab_size=VOCABULARY,
            pronunciation_embed_dim=8, shape_embed_dim=8),
    encoder("roformer", "RoFormer", PLAIN, embedding_size=HIDDEN),
    encoder("squeezebert", "SqueezeBert", PLAIN, embedding_size=HIDDEN),
    encoder("xlm roberta xl", "XLMRobertaXL", OFFSET),
    encoder("xmod", "Xmod", OFFSET, languages=["en"], default_language="en"),
    encoder("yoso", "Yoso", PLAIN, use_expectation=True),
    Architecture("flaubert", "encoder", "FlaubertWithLMHeadModel", "FlaubertConfig", {
        "vocab_size": VOCABULARY, "emb_dim": HIDDEN, "n_layers": 2, "n_heads": HEADS, "max_position_embeddings": 64,
        "pad_index": 0, "n_langs": 1}, masked_text),
)  # fmt: skip


def padded_texts(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """An encoder-decoder's batch with the mask of what is padded."""
    batch = two_texts(generator)
    return batch | {"attention_mask": (torch.arange(20)[None] < 20 - torch.arange(BATCH)[:, None] % 4).long()}


def padded(architecture: Architecture) -> Architecture:
    return replace(architecture, batch=padded_texts)


SEQ2SEQ = (
    seq2seq("bigbird pegasus", "BigBirdPegasus", OF_BART, attention_type="original_full"),
    seq2seq("blenderbot", "Blenderbot", OF_BART),
    seq2seq("blenderbot small", "BlenderbotSmall", OF_BART),
    padded(seq2seq("led", "LED", {k: v for k, v in OF_BART.items() if k != "max_position_embeddings"},
        attention_window=[4, 4],
            max_encoder_position_embeddings=64, max_decoder_position_embeddings=64)),
    padded(seq2seq("long t5", "LongT5", OF_T5, local_radius=4)),
    padded(seq2seq("long t5 global", "LongT5", OF_T5, local_radius=4, encoder_attention_type="transient-global",
        global_block_size=4)),
    Architecture("marian", "encoder-decoder", "MarianMTModel", "MarianConfig", OF_BART, two_texts),
    seq2seq("mvp", "Mvp", OF_BART),
    seq2seq("nllb moe", "NllbMoe", OF_BART, num_experts=4, expert_capacity=32, encoder_sparse_step=2,
        decoder_sparse_step=2,
            encoder_layerdrop=0.0, decoder_layerdrop=0.0),
    seq2seq("pegasus x", "PegasusX", OF_BART, num_global_tokens=4, block_size=4),
    seq2seq("plbart", "PLBart", OF_BART),
    seq2seq("prophetnet", "ProphetNet", {**WORDS, "hidden_size": HIDDEN, "num_encoder_layers": 2,
        "num_decoder_layers": 2,
            "num_encoder_attention_heads": HEADS, "num_decoder_attention_heads": HEADS, "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64, "max_position_embeddings": 64, "decoder_start_token_id": 1, "ngram": 2,
            "num_buckets": 8, "relative_max_distance": 16}),
    padded(seq2seq("switch", "SwitchTransformers", OF_T5, num_experts=4, expert_capacity=64,
        num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1, router_jitter_noise=0.0)),
    seq2seq("umt5", "UMT5", OF_T5),
)  # fmt: skip


def unclipped() -> Made:
    """gemma3n with its alternating updates in eval mode; in training they clip a weight in forward, and are refused."""
    module, batch, loss_fn = next(one for one in MODELS if one.name == "gemma3n").made()
    for part in module.modules():
        if type(part).__name__.endswith("AltUp"):
            part.eval()
    return module, batch, loss_fn


MODELS = (
    *map(of_transformers, (*DECODERS, *ENCODERS, *SEQ2SEQ)),
    Brought("gemma3n unclipped", "transformers", unclipped),
)
