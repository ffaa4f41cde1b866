"""transformers' models of images and films: classifiers, segmentation, depth, masked images, detection."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.bench.architectures import vision as zoo
from tests.bench.architectures.architecture import BATCH, HEADS, HIDDEN, Architecture
from tests.bench.architectures.batches import CLASSES, images
from tests.bench.architectures.others import PATCHES, vision
from tests.bench.wide.model import Brought, Made, of_transformers

TINY = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
TWO = PATCHES | {"num_hidden_layers": 2}
WINDOWS = zoo.WINDOWS
Batch = dict[str, Tensor]


def films(generator: torch.Generator) -> Batch:
    classes = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return {"pixel_values": torch.randn(BATCH, 4, 3, 32, 32, generator=generator), "labels": classes}


def maps(generator: torch.Generator) -> Batch:
    """A class for each pixel, some of them ignored."""
    labels = torch.randint(0, CLASSES, (BATCH, 32, 32), generator=generator)
    labels[::3, :5] = 255
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32, generator=generator), "labels": labels}


def larger(generator: torch.Generator) -> Batch:
    return images(generator, 64)


def bare(generator: torch.Generator) -> Batch:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32, generator=generator)}


def hidden_patches(generator: torch.Generator) -> Batch:
    kept = torch.rand(BATCH, 16, generator=generator) > 0.5
    return bare(generator) | {"bool_masked_pos": kept}


def of(name: str, model: str, config: str, batch: Callable[[torch.Generator], Batch], **sizes: object) -> Architecture:
    return Architecture(name, "vision", model, f"{config}Config", {"num_labels": CLASSES} | sizes, batch)


class Depth(nn.Module):
    """A network of depth with its trainers' loss, which the model itself hasn't."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixel_values: Tensor) -> Tensor:
        found = self.net(pixel_values).predicted_depth
        return F.smooth_l1_loss(found, pixel_values.mean(1).expand_as(found) if found.shape[-1] == 32 else
                                torch.ones_like(found))  # fmt: skip


def depth(architecture: Architecture) -> Brought:
    def make() -> Made:
        return Depth(architecture.module()).train(), (architecture.example()["pixel_values"],), None

    return Brought(architecture.name, "transformers", make)


class Detection(nn.Module):
    """Logits and boxes held to targets that are matched beforehand, as a detector with a fixed assignment trains."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixel_values: Tensor, classes: Tensor, boxes: Tensor) -> Tensor:
        found = self.net(pixel_values)
        n = found.logits.shape[1]
        return F.cross_entropy(found.logits.transpose(1, 2), classes[:, :n]) + F.l1_loss(found.pred_boxes, boxes[:, :n])


def detection(architecture: Architecture) -> Brought:
    def make() -> Made:
        generator = torch.Generator().manual_seed(5)
        classes = torch.randint(0, CLASSES, (BATCH, 32), generator=generator)
        pixels = torch.randn(BATCH, 3, 64, 64, generator=generator)
        return Detection(architecture.module()).train(), (pixels, classes, torch.rand(BATCH, 32, 4,
        generator=generator)), None

    return Brought(architecture.name, "transformers", make)


BACKBONE = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
            "out_features": ["stage4"], "layer_type": "basic"}  # fmt: skip
DETR = {
    "d_model": HIDDEN, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 6,
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": BACKBONE,
    "auxiliary_loss": False,
}  # fmt: skip

CLASSIFIERS = (
    *zoo.FURTHER,
    vision("dinov2 registers", "Dinov2WithRegisters", **PATCHES),
    vision("data2vec vision", "Data2VecVision", use_relative_position_bias=True, **PATCHES),
    vision("vit msn", "ViTMSN", **PATCHES),
    vision("ijepa", "IJepa", **PATCHES),
    vision("bit", "Bit", embedding_size=8, num_groups=4, **TINY),
    vision("convnextv2", "ConvNextV2", num_stages=2, patch_size=4, image_size=32, **zoo.STAGES),
    vision("efficientnet", "EfficientNet", image_size=32, width_coefficient=0.25, depth_coefficient=0.1,
        hidden_dim=320),
    vision("focalnet", "FocalNet", image_size=32, embed_dim=8, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3,
        3]),
    vision("hgnetv2", "HGNetV2", embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1],
           stem_channels=[3, 8, 8], stage_in_channels=[8, 16, 16, 32], stage_mid_channels=[8, 8, 8, 8],
           stage_out_channels=[16, 16, 32, 32], stage_num_blocks=[1, 1, 1, 1], stage_numb_of_layers=[2, 2, 2, 2]),
    vision("hiera", "Hiera", image_size=[32, 32], embed_dim=16, depths=[1, 1], num_heads=[1, 2], patch_size=[7, 7],
           patch_stride=[4, 4], patch_padding=[3, 3], mlp_ratio=2.0, query_stride=[2, 2], masked_unit_size=[4, 4],
           masked_unit_attention=[True, False], num_query_pool=1),
    vision("mobilenet_v1", "MobileNetV1", image_size=32, depth_multiplier=0.25),
    vision("mobilevit", "MobileViT", image_size=32, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
           num_attention_heads=4),
    of("mobilevitv2", "MobileViTV2ForImageClassification", "MobileViTV2", larger, image_size=64, width_multiplier=0.25),
    vision("poolformer", "PoolFormer", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1]),
    vision("pvt", "Pvt", image_size=32, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2,
        2, 4],
           sequence_reduction_ratios=[1, 1, 1, 1]),
    vision("pvt_v2", "PvtV2", image_size=32, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1],
           num_attention_heads=[1, 2, 2, 4], sr_ratios=[4, 2, 1, 1]),
    vision("swiftformer", "SwiftFormer", depths=[1, 1, 1, 1], embed_dims=[8, 16, 16, 32], image_size=64),
    vision("swinv2", "Swinv2", **WINDOWS),
    vision("donut swin", "DonutSwin", **WINDOWS),
    vision("textnet", "TextNet", stem_out_channels=8, hidden_sizes=[8, 8, 16, 16, 32], conv_layer_kernel_sizes=[[[3,
        3]]] * 4,
           conv_layer_strides=[[1], [2], [2], [2]], image_size=[32, 32]),
    of("clip image", "CLIPForImageClassification", "CLIP", images, vision_config=TWO, projection_dim=32),
    of("siglip image", "SiglipForImageClassification", "Siglip", images, vision_config=TWO),
    of("perceiver image", "PerceiverForImageClassificationLearned", "Perceiver", images, num_latents=8,
        d_latents=HIDDEN,
       d_model=HIDDEN, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=HEADS, image_size=32,
       num_cross_attention_heads=HEADS),
    of("imagegpt", "ImageGPTForImageClassification", "ImageGPT", lambda g: {
        "input_ids": torch.randint(0, 32, (BATCH, 16), generator=g), "labels": torch.randint(0, CLASSES, (BATCH,),
        generator=g),
    }, vocab_size=33, n_positions=16, n_embd=HIDDEN, n_layer=2, n_head=HEADS),
    of("videomae", "VideoMAEForVideoClassification", "VideoMAE", films, num_frames=4, tubelet_size=2, **TWO),
    of("timesformer", "TimesformerForVideoClassification", "Timesformer", films, num_frames=4, **TWO),
    of("vivit", "VivitForVideoClassification", "Vivit", films, num_frames=4, tubelet_size=[2, 8, 8],
       **{k: v for k, v in TWO.items() if k != "patch_size"}),
    of("vit masked", "ViTForMaskedImageModeling", "ViT", hidden_patches, encoder_stride=8, **TWO),
    of("deit masked", "DeiTForMaskedImageModeling", "DeiT", hidden_patches, encoder_stride=8, **TWO),
    of("vit mae", "ViTMAEForPreTraining", "ViTMAE", bare, **TWO, decoder_num_attention_heads=HEADS,
        decoder_hidden_size=32,
       decoder_num_hidden_layers=2, decoder_intermediate_size=64),
    of("beit segmentation", "BeitForSemanticSegmentation", "Beit", maps, **PATCHES, use_auxiliary_head=False,
       out_indices=[1, 2, 3, 4], pool_scales=[1, 2], use_relative_position_bias=True),
    of("segformer segmentation", "SegformerForSemanticSegmentation", "Segformer", maps, num_encoder_blocks=2,
       depths=[2, 2], sr_ratios=[4, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2],
       num_attention_heads=[2, HEADS], mlp_ratios=[2, 2], decoder_hidden_size=32),
    of("mobilenet_v2 segmentation", "MobileNetV2ForSemanticSegmentation", "MobileNetV2", maps, image_size=32,
       depth_multiplier=0.25),
    of("dpt segmentation", "DPTForSemanticSegmentation", "DPT", maps, **PATCHES, backbone_out_indices=[0, 1, 2, 3],
       neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16, is_hybrid=False, use_auxiliary_head=True,
       reassemble_factors=[4, 2, 1, 0.5]),
    of("upernet", "UperNetForSemanticSegmentation", "UperNet", maps, hidden_size=16, pool_scales=[1, 2],
       use_auxiliary_head=False, backbone_config={"model_type": "convnext", "hidden_sizes": [8, 8, 16, 16],
       "depths": [1, 1, 1, 1], "out_features": ["stage1", "stage2", "stage3", "stage4"], "image_size": 32}),
)  # fmt: skip
DEPTHS = (
    of("dpt depth", "DPTForDepthEstimation", "DPT", bare, **PATCHES, backbone_out_indices=[0, 1, 2, 3],
       neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16, is_hybrid=False, reassemble_factors=[4, 2, 1, 0.5]),
    of("glpn depth", "GLPNForDepthEstimation", "GLPN", bare, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 1],
       hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
       decoder_hidden_size=16),
    of("depth anything", "DepthAnythingForDepthEstimation", "DepthAnything", bare, patch_size=8,
        reassemble_hidden_size=32,
       neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16, head_hidden_size=8, backbone_config={
           "model_type": "dinov2", **PATCHES, "out_features": ["stage1", "stage2", "stage3", "stage4"],
           "reshape_hidden_states": False, "apply_layernorm": True}),
)  # fmt: skip
DETECTORS = (
    of("detr", "DetrForObjectDetection", "Detr", bare, **DETR),
    of("table transformer", "TableTransformerForObjectDetection", "TableTransformer", bare, **DETR),
    of("conditional detr", "ConditionalDetrForObjectDetection", "ConditionalDetr", bare, **DETR),
    of("dab detr", "DabDetrForObjectDetection", "DabDetr", bare, **{k: v for k, v in DETR.items() if k != "d_model"},
       hidden_size=HIDDEN),
    of("deformable detr", "DeformableDetrForObjectDetection", "DeformableDetr", bare, **DETR | {
        "backbone_config": BACKBONE | {"out_features": ["stage2", "stage3", "stage4"]}}, num_feature_levels=3,
       encoder_n_points=2, decoder_n_points=2),
    of("yolos", "YolosForObjectDetection", "Yolos", bare, **TWO | {"image_size": [64, 64]}, num_detection_tokens=6),
)  # fmt: skip
MODELS = (*map(of_transformers, CLASSIFIERS), *map(depth, DEPTHS), *map(detection, DETECTORS))
