"""transformers' models of sound, and of series: classifiers, transcribers, forecasts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.bench.architectures import speech
from tests.bench.architectures.architecture import BATCH, HEADS, HIDDEN, VOCABULARY, Architecture
from tests.bench.architectures.batches import CLASSES, tokens
from tests.bench.architectures.encoders import OF_BART
from tests.bench.architectures.speech import BANDS, FRAMES, OF_SOUND, WHISPER, spoken
from tests.bench.wide.model import of_transformers
from tests.support.zoo import ignored_row, unevenly_ignored

Batch = dict[str, torch.Tensor]


def transcribed(generator: torch.Generator) -> Batch:
    """Few letters for each row: CTC needs more frames than those."""
    return {
        "input_values": torch.randn(BATCH, 400, generator=generator),
        "labels": torch.randint(3, 16, (BATCH, 5), generator=generator),
    }


def bands(generator: torch.Generator) -> Batch:
    classes = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return {"input_values": torch.randn(BATCH, FRAMES, 16, generator=generator), "labels": ignored_row(classes)}


def features(generator: torch.Generator) -> Batch:
    classes = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return {"input_features": torch.randn(BATCH, FRAMES, 16, generator=generator), "labels": ignored_row(classes)}


def whispered(generator: torch.Generator) -> Batch:
    classes = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return {"input_features": torch.randn(BATCH, BANDS, FRAMES, generator=generator), "labels": ignored_row(classes)}


def frames(generator: torch.Generator) -> Batch:
    found = torch.randn(BATCH, FRAMES, BANDS, generator=generator)
    return {"input_features": found, "labels": unevenly_ignored(tokens(generator))}


def waves(generator: torch.Generator) -> Batch:
    return {"input_values": torch.randn(BATCH, 2000, generator=generator),
        "labels": unevenly_ignored(tokens(generator))}


def series(generator: torch.Generator) -> Batch:
    past, future = torch.randn(BATCH, 32, 3, generator=generator), torch.randn(BATCH, 8, 3, generator=generator)
    return {"past_values": past, "future_values": future}


def of(name: str, model: str, config: str, sizes: dict, batch: Callable[[torch.Generator], Batch]) -> Architecture:
    return Architecture(name, "speech", model, f"{config}Config", sizes, batch)


CTC = OF_SOUND | {"vocab_size": 16, "pad_token_id": 0, "ctc_loss_reduction": "mean"}
CONFORMER = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 64}
PATCHED = {"context_length": 32, "patch_length": 8, "num_input_channels": 3, "d_model": 16, "prediction_length": 8}

ARCHITECTURES = (
    *speech.FURTHER,
    spoken("hubert", "Hubert"),
    spoken("unispeech", "UniSpeech", num_codevectors_per_group=8, codevector_dim=16),
    spoken("unispeech sat", "UniSpeechSat", num_codevectors_per_group=8, codevector_dim=16),
    spoken("wavlm", "WavLM", num_buckets=8, max_bucket_distance=16),
    spoken("data2vec audio", "Data2VecAudio", num_conv_pos_embeddings=2, conv_pos_kernel_size=5),
    spoken("wav2vec2 conformer", "Wav2Vec2Conformer"),
    spoken("sew", "SEW", squeeze_factor=2),
    spoken("sew-d", "SEWD", squeeze_factor=2, max_position_embeddings=32, position_buckets=8),
    of("wav2vec2 bert", "Wav2Vec2BertForSequenceClassification", "Wav2Vec2Bert", CONFORMER | {
        "feature_projection_input_dim": 16, "num_labels": CLASSES, "classifier_proj_size": 16,
        "apply_spec_augment": False,
    }, features),
    of("wav2vec2 ctc", "Wav2Vec2ForCTC", "Wav2Vec2", CTC, transcribed),
    of("hubert ctc", "HubertForCTC", "Hubert", CTC, transcribed),
    of("wavlm ctc", "WavLMForCTC", "WavLM", CTC | {"num_buckets": 8, "max_bucket_distance": 16}, transcribed),
    of("audio spectrogram", "ASTForAudioClassification", "AST", CONFORMER | {
        "patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": FRAMES, "num_mel_bins": 16,
        "num_labels": CLASSES,
    }, bands),
    of("whisper classifier", "WhisperForAudioClassification", "Whisper", WHISPER | {"num_labels": CLASSES,
       "classifier_proj_size": 16}, whispered),
    of("speech to text", "Speech2TextForConditionalGeneration", "Speech2Text", OF_BART | {
        "input_feat_per_channel": BANDS, "input_channels": 1, "max_source_positions": 64, "max_target_positions": 64,
        "conv_channels": 16, "num_conv_layers": 2, "conv_kernel_sizes": [3, 3]}, frames),
    of("moonshine", "MoonshineForConditionalGeneration", "Moonshine", {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 64, "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": HEADS, "decoder_num_attention_heads": HEADS,
        "pad_token_id": 0, "decoder_start_token_id": 1}, waves),
    of("musicgen text", "MusicgenMelodyForCausalLM", "MusicgenMelodyDecoder", {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "ffn_dim": 64, "num_codebooks": 2, "max_position_embeddings": 64, "pad_token_id": 0},
       lambda g: {"input_ids": torch.randint(0, VOCABULARY, (2 * BATCH, 16), generator=g),
                  "labels": torch.randint(3, VOCABULARY, (BATCH, 16, 2), generator=g)}),
    of("patchtst", "PatchTSTForPrediction", "PatchTST", PATCHED | {
        "patch_stride": 8, "num_hidden_layers": 2, "num_attention_heads": HEADS, "ffn_dim": 32, "loss": "mse",
        "distribution_output": "normal"}, series),
    of("patchtsmixer", "PatchTSMixerForPrediction", "PatchTSMixer", PATCHED | {
        "patch_stride": 8, "num_layers": 2, "loss": "mse"}, series),
    of("time series transformer", "TimeSeriesTransformerForPrediction", "TimeSeriesTransformer", {
        "prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2], "d_model": 16, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32, "num_time_features": 1, "scaling": "std"},
       lambda g: {"past_values": torch.randn(BATCH, 18, generator=g), "past_time_features": torch.randn(BATCH, 18, 1,
       generator=g),
                  "past_observed_mask": torch.ones(BATCH, 18), "future_values": torch.randn(BATCH, 8, generator=g),
                  "future_time_features": torch.randn(BATCH, 8, 1, generator=g)}),
    of("autoformer", "AutoformerForPrediction", "Autoformer", {
        "prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2], "d_model": 16, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32, "num_time_features": 1, "scaling": "std", "label_length": 4, "moving_average": 5},
       lambda g: {"past_values": torch.randn(BATCH, 18, generator=g), "past_time_features": torch.randn(BATCH, 18, 1,
       generator=g),
                  "past_observed_mask": torch.ones(BATCH, 18), "future_values": torch.randn(BATCH, 8, generator=g),
                  "future_time_features": torch.randn(BATCH, 8, 1, generator=g)}),
    of("informer", "InformerForPrediction", "Informer", {
        "prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2], "d_model": 16, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32, "num_time_features": 1, "scaling": "std", "attention_type": "full"},
       lambda g: {"past_values": torch.randn(BATCH, 18, generator=g), "past_time_features": torch.randn(BATCH, 18, 1,
       generator=g),
                  "past_observed_mask": torch.ones(BATCH, 18), "future_values": torch.randn(BATCH, 8, generator=g),
                  "future_time_features": torch.randn(BATCH, 8, 1, generator=g)}),
)  # fmt: skip
MODELS = tuple(map(of_transformers, ARCHITECTURES))
