"""Further models of images: attention over windows and over everything, convolutions, both at once."""

from __future__ import annotations

from tests.bench.architectures.architecture import HEADS, Architecture
from tests.bench.architectures.others import PATCHES, vision

CHANNELS = [16, 32]
STAGES = {"hidden_sizes": CHANNELS, "depths": [2, 2]}
WINDOWS = {
    "image_size": 32, "patch_size": 4, "embed_dim": CHANNELS[0], "depths": [2, 2], "num_heads": [2, HEADS],
    "window_size": 4,
}  # fmt: skip

FURTHER: tuple[Architecture, ...] = (
    vision("deit", "DeiT", **PATCHES),
    vision("beit", "Beit", use_relative_position_bias=True, **PATCHES),
    vision("swin", "Swin", **WINDOWS),
    vision(
        "segformer", "Segformer", num_encoder_blocks=2, depths=[2, 2], sr_ratios=[4, 1], hidden_sizes=CHANNELS,
        patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, HEADS], mlp_ratios=[2, 2],
    ),
    vision("convnext", "ConvNext", num_stages=2, patch_size=4, image_size=32, **STAGES),
    vision("regnet", "RegNet", embedding_size=16, hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1], groups_width=8),
    vision("mobilenet_v2", "MobileNetV2", image_size=32, depth_multiplier=0.25),
)  # fmt: skip
