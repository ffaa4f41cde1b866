"""transformers' models of several inputs at once: images and text, documents, sound and text."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.bench.architectures.architecture import BATCH, HEADS, HIDDEN, SEQUENCE, VOCABULARY, Architecture
from tests.bench.architectures.batches import CLASSES, masked_text, tokens
from tests.bench.architectures.decoders import GROUPED, STANDARD
from tests.bench.architectures.encoders import OF_BART
from tests.bench.architectures.others import PATCHES
from tests.bench.wide.model import Brought, Made, of_transformers
from tests.support.zoo import unevenly_ignored

Batch = dict[str, torch.Tensor]
IMAGE = VOCABULARY - 1  # the token in whose place an image's features are put
SEEN = PATCHES | {"num_hidden_layers": 2}
READ = STANDARD | {"num_hidden_layers": 2}
LLAMA = {"model_type": "llama", **GROUPED, "num_hidden_layers": 2}


def pixels(generator: torch.Generator, size: int = 32) -> torch.Tensor:
    return torch.randn(BATCH, 3, size, size, generator=generator)


def pairs(generator: torch.Generator) -> Batch:
    ids = tokens(generator)
    ids[:, -1] = 2
    return {"input_ids": ids, "pixel_values": pixels(generator), "attention_mask": torch.ones_like(ids)}


def pictured(places: int) -> Callable[[torch.Generator], Batch]:
    """Text in which some tokens stand for the image's features."""

    def batch(generator: torch.Generator) -> Batch:
        ids = torch.randint(3, IMAGE - 1, (BATCH, SEQUENCE), generator=generator)
        ids = torch.cat([torch.full((BATCH, places), IMAGE), ids], 1)
        labels = ids.masked_fill(torch.arange(len(ids[0])) < places + torch.arange(BATCH)[:, None], -100)
        return {"input_ids": ids, "pixel_values": pixels(generator), "labels": labels,
        "attention_mask": torch.ones_like(ids)}

    return batch


def captioned(generator: torch.Generator) -> Batch:
    ids = tokens(generator)
    return {"pixel_values": pixels(generator), "input_ids": ids, "labels": unevenly_ignored(ids)}


def read_aloud(generator: torch.Generator) -> Batch:
    return {"pixel_values": pixels(generator), "labels": unevenly_ignored(tokens(generator))}


def boxed(generator: torch.Generator) -> Batch:
    """Words of a document with the boxes they stand in."""
    corner = torch.randint(0, 40, (BATCH, SEQUENCE, 2), generator=generator)
    return masked_text(generator) | {"bbox": torch.cat([corner, corner + 5], -1)}


def asked(generator: torch.Generator) -> Batch:
    return {"input_ids": tokens(generator), "pixel_values": pixels(generator),
            "labels": torch.rand(BATCH, CLASSES, generator=generator)}  # fmt: skip


def of(name: str, model: str, config: str, batch: Callable[[torch.Generator], Batch], **sizes: object) -> Architecture:
    return Architecture(name, "several", model, f"{config}Config", sizes, batch)


CLIP_SEEN = {"model_type": "clip_vision_model", **SEEN, "projection_dim": 32}
LLAVA = {"vision_config": CLIP_SEEN, "text_config": LLAMA, "image_token_index": IMAGE, "image_token_id": IMAGE,
         "vision_feature_layer": -1, "vision_feature_select_strategy": "default"}  # fmt: skip
Q = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 64,
     "vocab_size": VOCABULARY, "encoder_hidden_size": HIDDEN}  # fmt: skip
OPT = {"model_type": "opt", "hidden_size": HIDDEN, "word_embed_proj_dim": HIDDEN, "num_hidden_layers": 2, "ffn_dim": 64,
       "num_attention_heads": HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": 64}  # fmt: skip

ARCHITECTURES = (
    of("clip", "CLIPModel", "CLIP", pairs, text_config=READ, vision_config=SEEN, projection_dim=32),
    of("siglip", "SiglipModel", "Siglip", pairs, text_config=READ, vision_config=SEEN),
    of("chinese clip", "ChineseCLIPModel", "ChineseCLIP", pairs, text_config=READ, vision_config=SEEN,
        projection_dim=32),
    of("altclip", "AltCLIPModel", "AltCLIP", pairs, vision_config=SEEN, projection_dim=32, text_config=READ | {
        "max_position_embeddings": 66, "project_dim": 32}),
    of("blip", "BlipForConditionalGeneration", "Blip", captioned, vision_config=SEEN, projection_dim=32,
       text_config=READ | {"encoder_hidden_size": HIDDEN, "is_decoder": True}),
    of("git", "GitForCausalLM", "Git", captioned, **READ, vision_config=SEEN),
    of("llava", "LlavaForConditionalGeneration", "Llava", pictured(16), **LLAVA),
    of("vipllava", "VipLlavaForConditionalGeneration", "VipLlava", pictured(16), **{k: v for k, v in LLAVA.items()
       if "select" not in k} | {"vision_feature_layers": [-1, -2]}),
    of("paligemma", "PaliGemmaForConditionalGeneration", "PaliGemma", lambda g: (b := pictured(16)(g)) | {
        "token_type_ids": (b["labels"] != -100).long()}, vision_config={"model_type": "siglip_vision_model", **SEEN,
       "projection_dim": HIDDEN}, text_config={"model_type": "gemma", **GROUPED, "num_hidden_layers": 2, "head_dim": 8},
       image_token_index=IMAGE, image_token_id=IMAGE, projection_dim=HIDDEN, vocab_size=VOCABULARY),
    of("idefics3", "Idefics3ForConditionalGeneration", "Idefics3", lambda g: (b := pictured(4)(g)) | {
        "pixel_values": b["pixel_values"][:, None]}, vision_config=SEEN, text_config=LLAMA, image_token_id=IMAGE,
       scale_factor=2, use_cache=False),
    of("smolvlm", "SmolVLMForConditionalGeneration", "SmolVLM", lambda g: (b := pictured(4)(g)) | {
        "pixel_values": b["pixel_values"][:, None]}, vision_config=SEEN, text_config=LLAMA, image_token_id=IMAGE,
       scale_factor=2, use_cache=False),
    of("mistral3", "Mistral3ForConditionalGeneration", "Mistral3", pictured(4), image_token_index=IMAGE,
       vision_config={"model_type": "pixtral", **SEEN, "head_dim": 8}, text_config={"model_type": "mistral", **GROUPED,
       "num_hidden_layers": 2}, image_token_id=IMAGE, spatial_merge_size=2, vision_feature_layer=-1),
    of("internvl", "InternVLForConditionalGeneration", "InternVL", pictured(4), image_token_id=IMAGE,
       vision_config={"model_type": "internvl_vision", **SEEN, "image_size": [32, 32], "patch_size": [8, 8]},
       text_config=LLAMA, downsample_ratio=0.5),
    of("blip2", "Blip2ForConditionalGeneration", "Blip2", pictured(4), vision_config=SEEN, qformer_config=Q,
       text_config=OPT, num_query_tokens=4, image_token_index=IMAGE, image_token_id=IMAGE),
    of("instructblip", "InstructBlipForConditionalGeneration", "InstructBlip", lambda g: (b := pictured(4)(g)) | {
        "qformer_input_ids": b["input_ids"][:, 4:10]}, vision_config=SEEN, qformer_config=Q, text_config=OPT,
       num_query_tokens=4, image_token_index=IMAGE, image_token_id=IMAGE),
    of("kosmos2", "Kosmos2ForConditionalGeneration", "Kosmos2", lambda g: {
        "pixel_values": pixels(g), "input_ids": (ids := tokens(g)), "labels": unevenly_ignored(ids),
        "image_embeds_position_mask": (torch.arange(SEQUENCE) < 4).expand(BATCH, -1).clone()}, vision_config=SEEN,
       text_config={"vocab_size": VOCABULARY, "embed_dim": HIDDEN, "layers": 2, "ffn_dim": 64, "attention_heads": HEADS,
                    "max_position_embeddings": 64}, latent_query_num=4),
    of("vilt", "ViltForQuestionAnswering", "Vilt", asked, **READ, image_size=32, patch_size=8, num_labels=CLASSES,
       max_image_length=-1),
    of("layoutlm", "LayoutLMForMaskedLM", "LayoutLM", boxed, **READ, max_2d_position_embeddings=64),
    of("layoutlmv3", "LayoutLMv3ForTokenClassification", "LayoutLMv3", lambda g: boxed(g) | {
        "labels": torch.randint(0, CLASSES, (BATCH, SEQUENCE), generator=g), "pixel_values": pixels(g)}, **READ | {
        "max_position_embeddings": 66}, input_size=32, patch_size=8, max_2d_position_embeddings=64, coordinate_size=6,
       shape_size=4, num_labels=CLASSES, rel_pos_bins=8, max_rel_pos=16, rel_2d_pos_bins=8, max_rel_2d_pos=16),
    of("lxmert", "LxmertForQuestionAnswering", "Lxmert", lambda g: {
        "input_ids": tokens(g), "visual_feats": torch.randn(BATCH, 6, 16, generator=g),
        "visual_pos": torch.rand(BATCH, 6, 4, generator=g), "labels": torch.randint(0, CLASSES, (BATCH,), generator=g)},
       **READ, l_layers=2, x_layers=1, r_layers=1, visual_feat_dim=16, num_qa_labels=CLASSES),
    of("pix2struct", "Pix2StructForConditionalGeneration", "Pix2Struct", lambda g: {
        "flattened_patches": torch.cat([torch.randint(1, 5, (BATCH, 12, 2), generator=g).float(),
                                        torch.randn(BATCH, 12, 48, generator=g)], -1),
        "labels": unevenly_ignored(tokens(g))}, text_config={"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "d_kv": 8,
        "d_ff": 64, "num_layers": 2, "num_heads": HEADS, "decoder_start_token_id": 0, "pad_token_id": 0},
       vision_config={"hidden_size": HIDDEN, "patch_embed_hidden_size": 48, "d_ff": 64, "d_kv": 8,
       "num_hidden_layers": 2,
                      "num_attention_heads": HEADS, "seq_len": 16, "patch_size": 4}),
    of("trocr vision", "VisionEncoderDecoderModel", "VisionEncoderDecoder", read_aloud,
       encoder={"model_type": "vit", **SEEN}, decoder={"model_type": "trocr", "vocab_size": VOCABULARY,
       "d_model": HIDDEN,
       "decoder_layers": 2, "decoder_attention_heads": HEADS, "decoder_ffn_dim": 64, "max_position_embeddings": 64},
       decoder_start_token_id=1, pad_token_id=0),
    of("encoder decoder", "EncoderDecoderModel", "EncoderDecoder", lambda g: {
        "input_ids": tokens(g), "labels": unevenly_ignored(tokens(g))}, encoder={"model_type": "bert", **READ},
       decoder={"model_type": "bert", **READ, "is_decoder": True, "add_cross_attention": True},
       decoder_start_token_id=1,
       pad_token_id=0),
    of("udop", "UdopForConditionalGeneration", "Udop", lambda g: {
        "input_ids": tokens(g), "bbox": torch.rand(BATCH, SEQUENCE, 4, generator=g).sort(-1).values,
        "labels": unevenly_ignored(tokens(g)), "attention_mask": torch.ones(BATCH, SEQUENCE)}, vocab_size=VOCABULARY,
       d_model=HIDDEN, d_kv=8, d_ff=64, num_layers=2, num_heads=HEADS, decoder_start_token_id=0, image_size=32,
       patch_size=8, max_2d_position_embeddings=64),
    of("florence language", "BartForSequenceClassification", "Bart", lambda g: {
        "input_ids": torch.cat([tokens(g)[:, :-1], torch.full((BATCH, 1), 2)], 1),
        "labels": torch.randint(0, CLASSES, (BATCH,), generator=g)}, **OF_BART | {"eos_token_id": 2},
        num_labels=CLASSES),
)  # fmt: skip


class Contrasted(nn.Module):
    """A model of pairs that gives its loss where it is asked for it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(**batch, return_loss=True).loss
        return found


def contrasted(architecture: Architecture) -> Brought:
    def make() -> Made:
        return Contrasted(architecture.module()).train(), architecture.example(), None

    return Brought(architecture.name, "transformers", make)


PAIRED = ("clip", "siglip", "chinese clip", "altclip")
MODELS = tuple(contrasted(a) if a.name in PAIRED else of_transformers(a) for a in ARCHITECTURES)
