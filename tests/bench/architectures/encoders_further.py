"""Further encoders of text, and encoder-decoders."""

from __future__ import annotations

from tests.bench.architectures.architecture import HEADS, HIDDEN, LAYERS, VOCABULARY, Architecture
from tests.bench.architectures.batches import text
from tests.bench.architectures.decoders import STANDARD
from tests.bench.architectures.encoders import OF_BART, OF_T5, encoder, seq2seq

LONGER = {**STANDARD, "max_position_embeddings": 66}
XLNET = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "d_inner": 2 * HIDDEN}

FURTHER: tuple[Architecture, ...] = (
    encoder("mpnet", "MPNet", LONGER),
    encoder("xlm_roberta", "XLMRoberta", LONGER),
    Architecture("xlnet", "encoder", "XLNetLMHeadModel", "XLNetConfig", XLNET, text),
    seq2seq("mt5", "MT5", OF_T5),
    seq2seq("pegasus", "Pegasus", OF_BART),
    seq2seq("mbart", "MBart", OF_BART),
    seq2seq("m2m100", "M2M100", OF_BART, encoder_layerdrop=0.0, decoder_layerdrop=0.0),
)
