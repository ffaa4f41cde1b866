"""timm's classifiers of images, small: its own constructors with sizes of ours."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from unittest import mock

import torch
from torch.nn import functional as F

from tests.bench.wide.model import Brought, Made, noisy
from tests.starts.libraries import StandInFinder

ROWS, CLASSES = 8, 12
FOUR = (1, 1, 1, 1)


@cache
def timm() -> ModuleType:
    """The library, with a stand-in for torchvision where that isn't installed; nothing of it is used here."""
    before = set(sys.modules)
    with mock.patch.object(sys, "meta_path", [*sys.meta_path, StandInFinder()]):
        found = importlib.import_module("timm")
    for other in set(sys.modules) - before:
        if other.split(".")[0] == "torchvision" and isinstance(sys.modules[other].__loader__, StandInFinder):
            del sys.modules[other]
    return found


def classifier(name: str, model: str, size: int = 32, **sizes: object) -> Brought:
    def make() -> Made:
        module, _, kind = model.rpartition(".")
        if module:  # the class, where the named model's sizes are fixed
            net = getattr(importlib.import_module(f"{timm().__name__}.models.{module}"), kind)(num_classes=CLASSES,
            **sizes)
        else:
            net = timm().create_model(model, num_classes=CLASSES, **sizes)
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(ROWS, 3, size, size, generator=generator)
        return noisy(net), (images, torch.randint(0, CLASSES, (ROWS,), generator=generator)), F.cross_entropy

    return Brought(f"timm {name}", "timm", make)


VIT = {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 4}
PATCH = VIT | {"patch_size": 8}
SMALL = {"layers": FOUR, "channels": (8, 8, 16, 16)}

MIXED = {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 32}

MODELS = (
    classifier("resnet18", "resnet18", **SMALL),
    classifier("resnet50", "resnet50", layers=FOUR, channels=(4, 4, 8, 8)),
    classifier("resnext", "resnext50_32x4d", layers=FOUR, channels=(8, 8, 16, 16), cardinality=4, base_width=16),
    classifier("wide resnet", "wide_resnet50_2", **SMALL),
    classifier("resnet d", "resnet18d", **SMALL),
    classifier("seresnet", "seresnet18", **SMALL),
    classifier("ecaresnet", "ecaresnet26t", layers=FOUR, channels=(8, 8, 16, 16)),
    classifier("resnest", "resnest14d", layers=FOUR, channels=(8, 8, 16, 16)),
    classifier("res2net", "res2net50_26w_4s", layers=FOUR, channels=(8, 8, 16, 16)),
    classifier("skresnet", "skresnet18", layers=FOUR, channels=(32, 32, 32, 32)),
    classifier("resnetv2", "resnetv2_50", layers=FOUR, channels=(16, 16, 32, 32), stem_chs=16),
    classifier("convnext", "convnext_atto", depths=FOUR, dims=(8, 16, 16, 32)),
    classifier("convnextv2", "convnextv2_atto", depths=FOUR, dims=(8, 16, 16, 32)),
    classifier("densenet", "densenet121", growth_rate=8, block_config=(2, 2)),
    classifier("densenet deeper", "densenet121", growth_rate=8, block_config=(2, 4, 4, 2)),
    classifier("vgg", "vgg.VGG", cfg=[8, "M", 16, "M", 16, "M"], mlp_ratio=1 / 64),
    classifier("regnetx", "regnetx_002"),
    classifier("regnety", "regnety_002"),
    classifier("dla", "dla34", levels=(1, 1, 1, 1, 1, 1), channels=(8, 8, 8, 16, 16, 16)),
    classifier("test byobnet", "test_byobnet"),
    classifier("test convnext", "test_convnext"),
    classifier("test efficientnet", "test_efficientnet"),
    classifier("test efficientnet gn", "test_efficientnet_gn"),
    classifier("test efficientnet evos", "test_efficientnet_evos"),
    classifier("test mambaout", "test_mambaout"),
    classifier("test nfnet", "test_nfnet"),
    classifier("test resnet", "test_resnet"),
    classifier("mobilenetv2", "mobilenetv2_035"),
    classifier("mobilenetv3", "mobilenetv3_small_050"),
    classifier("mobilenetv4", "mobilenetv4_conv_small_035"),
    classifier("mnasnet", "mnasnet_small"),
    classifier("ghostnet", "ghostnet_050"),
    classifier("lcnet", "lcnet_035"),
    classifier("tinynet", "tinynet_e", 64),
    classifier("rexnet", "rexnetr_100"),
    classifier("vit", "vit_tiny_patch16_224", **PATCH),
    classifier("vit relpos", "vit_relpos_small_patch16_224", **PATCH),
    classifier("vit registers", "vit_small_patch14_reg4_dinov2", **PATCH),
    classifier("vit mapped pool", "vit_base_patch16_siglip_224", **PATCH),
    classifier("vit parallel", "vit_small_patch16_18x2_224", **PATCH),
    classifier("deit3", "deit3_small_patch16_224", **PATCH),
    classifier("deit distilled", "deit_tiny_distilled_patch16_224", **PATCH),
    classifier("beit", "beit_base_patch16_224", **PATCH),
    classifier("eva", "eva02_tiny_patch14_224", **PATCH),
    classifier("cait", "cait_xxs24_224", **PATCH),
    classifier("xcit", "xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=2, num_heads=4, patch_size=8),
    classifier("volo", "volo.VOLO", 64, img_size=64, layers=(1, 1, 1, 1), embed_dims=(16, 32, 32, 32),
               num_heads=(2, 4, 4, 4)),
    classifier("swin", "swin_tiny_patch4_window7_224", img_size=32, embed_dim=16, depths=(2, 2), num_heads=(2, 4),
               window_size=4),
    classifier("swin v2", "swinv2_tiny_window8_256", img_size=32, embed_dim=16, depths=(2, 2), num_heads=(2, 4),
               window_size=4),
    classifier("swin s3", "swin_s3_tiny_224", img_size=32, embed_dim=16, depths=(2, 2), num_heads=(2, 4),
             window_size=4),
    classifier("nest", "nest.Nest", img_size=32, patch_size=4, num_levels=2, embed_dims=(16, 32), num_heads=(2, 4),
               depths=(1, 1)),
    classifier("pvt v2", "pvt_v2_b0", depths=FOUR),
    classifier("twins svt", "twins_svt_small", depths=(1, 1, 1, 1), embed_dims=(16, 32, 32, 32), num_heads=(2, 4, 4, 4),
               img_size=64, ),
    classifier("levit", "levit.Levit", 64, img_size=64, embed_dim=(16, 32), key_dim=8, depth=(1, 1), num_heads=(2, 4)),
    classifier("efficientformer", "efficientformer_v2.EfficientFormerV2", 64, depths=FOUR, img_size=64,
               embed_dims=(8, 16, 16, 32), num_vit=1, mlp_ratios=(2, 2, 2, 2)),
    classifier("edgenext", "edgenext_xx_small", 64),
    classifier("poolformer", "metaformer.MetaFormer", depths=FOUR, dims=(16, 16, 32, 32)),
    classifier("mlp mixer", "mlp_mixer.MlpMixer", img_size=32, patch_size=8, num_blocks=2, embed_dim=32),
    classifier("convmixer", "convmixer.ConvMixer", dim=16, depth=2, kernel_size=3, patch_size=4),
    classifier("focalnet", "focalnet.FocalNet", depths=FOUR, embed_dim=8),
    classifier("mobilevit", "mobilevit_xxs", 64),
    classifier("fastvit", "fastvit_t8", 64, layers=FOUR, embed_dims=(16, 16, 32, 32)),
    classifier("hiera", "hiera_tiny_224", 64, img_size=(64, 64), embed_dim=16, num_heads=1, stages=FOUR),
    classifier("davit", "davit_tiny", 64, depths=FOUR, embed_dims=(16, 16, 32, 32), num_heads=(2, 2, 4, 4)),
    classifier("starnet", "starnet_s050", 64),
    classifier("repghost", "repghostnet_050", 64),
    classifier("mambaout", "mambaout_femto", depths=FOUR, dims=(8, 16, 16, 32)),
)  # fmt: skip
