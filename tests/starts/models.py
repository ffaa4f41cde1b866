"""Eleven models that set their own initial values, each with a batch: what training of them must start from.

Sizes divide by four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.starts.images import ConvNeXt, DiT, ZeroResNet
from tests.starts.libraries import diffusers_unet, timm_vit
from tests.starts.nanogpt import GPT, GPTConfig
from tests.starts.vectors import DeepNorm, Fourier, LoRAModel, Siren, StateSpace

ROWS = 8
Batch = Mapping[str, Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True)
class Made:
    """A model's factory, the batch of one step, and its loss, None where the model returns (logits, loss).

    bound  of the losses' relative difference from one device, in float64
    """

    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss_fn: Callable[..., Tensor] | None = None
    bound: float = 1e-10


def tokens() -> Batch:
    return {"idx": torch.randint(64, (ROWS, 16)), "targets": torch.randint(64, (ROWS, 16))}


def images(size: int) -> Batch:
    return torch.randn(ROWS, 4, size, size), torch.randint(12, (ROWS,))


def vectors() -> Batch:
    return torch.randn(ROWS, 16), torch.randint(12, (ROWS,))


def each_token(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def denoised(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(output.sample, target)


MODELS: Mapping[str, Made] = {
    "nanogpt": Made(lambda: GPT(GPTConfig()), tokens),
    "dit": Made(DiT, lambda: (torch.randn(ROWS, 4, 8, 8), torch.randint(8, (ROWS,)), torch.randn(ROWS, 16, 16)),
                F.mse_loss),
    "convnext": Made(ConvNeXt, lambda: images(8), F.cross_entropy),
    "siren": Made(Siren, lambda: (torch.randn(ROWS, 4), torch.randn(ROWS, 4)), F.mse_loss),
    "zero-resnet": Made(ZeroResNet, lambda: images(8), F.cross_entropy),
    "lora": Made(LoRAModel, vectors, F.cross_entropy),
    "fourier": Made(Fourier, vectors, F.cross_entropy),
    "deepnorm": Made(DeepNorm, lambda: (torch.randint(64, (ROWS, 8)), torch.randint(64, (ROWS, 8))), each_token),
    "state-space": Made(StateSpace, vectors, F.cross_entropy),
    "timm-vit": Made(timm_vit, lambda: images(16), F.cross_entropy),
    "diffusers-unet": Made(
        diffusers_unet,
        lambda: {"sample": torch.randn(ROWS, 4, 8, 8), "timestep": torch.randint(1000, (ROWS,)),
                 "target": torch.randn(ROWS, 4, 8, 8)},
        denoised,
        bound=1e-7,  # the module computes its sines of the timestep in float32 whatever its dtype
    ),
}  # fmt: skip
