"""timm's ViT and diffusers' UNet."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from typing import Any
from unittest import mock

from torch import nn


class StandInFinder:
    """Answers for torchvision, which timm imports for images from disks, where it isn't installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = lambda name: stand_in(name)  # type: ignore[method-assign]


class AnyName(type):
    """A class that has an attribute of every name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


def stand_in(name: str) -> type:
    """A class that nothing is an instance of."""
    if name.startswith("_"):
        raise AttributeError(name)
    return AnyName(name, (), {})


def timm_vit() -> nn.Module:
    """timm's own ViT; torchvision has no build for every torch, and nothing of it is used here."""
    return timm_models().VisionTransformer(
        img_size=16, patch_size=4, in_chans=4, num_classes=12, embed_dim=32, depth=2, num_heads=4, mlp_ratio=2.0,
        init_values=1e-5, weight_init="jax",
    )  # fmt: skip


def timm_models() -> Any:
    name = "timm.models.vision_transformer"
    if name in sys.modules:
        return sys.modules[name]
    before = set(sys.modules)
    with mock.patch.object(sys, "meta_path", [StandInFinder(), *sys.meta_path]):
        found = importlib.import_module(name)
    for other in set(sys.modules) - before:
        if other.split(".")[0] == "torchvision":
            del sys.modules[other]  # nobody else shall take it for the library
    return found


def diffusers_unet() -> nn.Module:
    models = importlib.import_module("diffusers.models.unets.unet_2d")
    return models.UNet2DModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4, attention_head_dim=8,
    )  # fmt: skip
