"""Models of sound: convolutions over samples below an encoder, and an encoder-decoder over spectra."""

from __future__ import annotations

import torch

from tests.bench.architectures.architecture import BATCH, HEADS, HIDDEN, LAYERS, Architecture
from tests.bench.architectures.batches import CLASSES, tokens
from tests.bench.architectures.encoders import OF_BART
from tests.support.zoo import ignored_row, unevenly_ignored

SAMPLES, BANDS, FRAMES = 200, 8, 32
OF_SOUND = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 2 * HIDDEN,
    "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": HEADS, "apply_spec_augment": False,
    "classifier_proj_size": 16, "num_labels": CLASSES,
}  # fmt: skip


def sound(generator: torch.Generator) -> dict[str, torch.Tensor]:
    classes = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return {"input_values": torch.randn(BATCH, SAMPLES, generator=generator), "labels": ignored_row(classes)}


def spectra(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The decoder's inputs are made from the labels."""
    features = torch.randn(BATCH, BANDS, FRAMES, generator=generator)
    return {"input_features": features, "labels": unevenly_ignored(tokens(generator))}


def spoken(name: str, stem: str, **more: object) -> Architecture:
    """A classifier of sound."""
    sizes = OF_SOUND | more
    return Architecture(name, "speech", f"{stem}ForSequenceClassification", f"{stem}Config", sizes, sound)


WHISPER = OF_BART | {
    "num_mel_bins": BANDS, "max_source_positions": FRAMES // 2, "max_target_positions": 64, "suppress_tokens": None,
    "begin_suppress_tokens": None,
}  # fmt: skip
FURTHER = (
    Architecture("whisper", "speech", "WhisperForConditionalGeneration", "WhisperConfig", WHISPER, spectra),
    spoken("wav2vec2", "Wav2Vec2"),
)
