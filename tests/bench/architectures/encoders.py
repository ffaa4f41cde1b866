"""Encoders of text, and encoder-decoders."""

from __future__ import annotations

from tests.bench.architectures.architecture import HEADS, HIDDEN, LAYERS, VOCABULARY, Architecture
from tests.bench.architectures.batches import masked_text, two_texts
from tests.bench.architectures.decoders import STANDARD, WORDS


def encoder(name: str, stem: str, sizes: dict[str, object], *, listed: bool = False, **more: object) -> Architecture:
    return Architecture(name, "encoder", f"{stem}ForMaskedLM", f"{stem}Config", sizes | more, masked_text, listed)


def seq2seq(name: str, stem: str, sizes: dict[str, object], *, listed: bool = False, **more: object) -> Architecture:
    model = f"{stem}ForConditionalGeneration"
    return Architecture(name, "encoder-decoder", model, f"{stem}Config", sizes | more, two_texts, listed)


OF_T5 = {
    "d_model": HIDDEN, "d_kv": 8, "d_ff": 2 * HIDDEN, "num_layers": 2, "num_heads": HEADS, "vocab_size": VOCABULARY,
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
OF_BART = {
    **WORDS, "d_model": HIDDEN, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 2 * HIDDEN, "decoder_ffn_dim": 2 * HIDDEN,
    "max_position_embeddings": 64, "decoder_start_token_id": 1,
}  # fmt: skip

LISTED = (
    encoder("bert", "Bert", STANDARD, listed=True),
    encoder("roberta", "Roberta", STANDARD, listed=True, max_position_embeddings=66),
    encoder("deberta", "DebertaV2", STANDARD, listed=True, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    encoder("modernbert", "ModernBert", STANDARD, listed=True, local_attention=8),
    seq2seq("t5", "T5", OF_T5, listed=True),
    seq2seq("bart", "Bart", OF_BART, listed=True),
)

FURTHER = (
    encoder("electra", "Electra", STANDARD, embedding_size=HIDDEN),
    encoder(
        "distilbert", "DistilBert", {"dim": HIDDEN, "hidden_dim": 2 * HIDDEN}, n_layers=LAYERS, n_heads=HEADS,
        vocab_size=VOCABULARY, max_position_embeddings=64,
    ),
    encoder("albert", "Albert", STANDARD, embedding_size=16),
)  # fmt: skip
