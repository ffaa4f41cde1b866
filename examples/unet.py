"""A U-Net (Ronneberger et al. 2015, arXiv:1505.04597): what the way down computes is read again on the way up.

    autoplan plan --model examples/unet.py:make_model --cluster-spec "1x8 a100-sxm-80gb" --batch 64

Padded convolutions, so that pictures keep their size, and group norm in place of none, so that rows stay independent.
A cut of the pipeline is crossed by every skip connection that is still open, and so are the stages between.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

PIXELS, CLASSES = 256, 2


class Double(nn.Module):
    """Two 3x3 convolutions, each with group norm and relu."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(groups, outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(groups, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class Up(nn.Module):
    """Twice the size by a transposed convolution, or by interpolation and a convolution; then the skip beside it."""

    def __init__(self, inputs: int, outputs: int, groups: int, upsample: str) -> None:
        super().__init__()
        self.mode = upsample
        transposed = upsample == "transposed"
        self.rise = (
            nn.ConvTranspose2d(inputs, outputs, 2, stride=2) if transposed else nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.blend = Double(2 * outputs, outputs, groups)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        if self.mode != "transposed":
            x = F.interpolate(x, scale_factor=2, mode=self.mode)
        return self.blend(torch.cat((skip, self.rise(x)), dim=1))


class UNet(nn.Module):
    def __init__(self, width: int, levels: int, classes: int, groups: int, upsample: str) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(Double(i, o, groups) for i, o in zip((3, *widths), widths[:-1], strict=False))
        self.bottom = Double(widths[-2], widths[-1], groups)
        self.up = nn.ModuleList(
            Up(i, o, groups, upsample) for i, o in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up in self.up:
            x = up(x, skips.pop())
        return self.head(x)


def make_model(
    width: int = 64, levels: int = 4, classes: int = CLASSES, groups: int = 32, upsample: str = "transposed"
) -> nn.Module:
    """The model; ``upsample`` is "transposed", "nearest" or "bilinear"."""
    return UNet(width, levels, classes, groups, upsample)


def example_inputs(batch: int = 32, pixels: int = PIXELS) -> tuple[torch.Tensor, ...]:
    """One step's tensors: pictures [batch, 3, pixels, pixels] and the class of each pixel [batch, pixels, pixels]."""
    return torch.empty(batch, 3, pixels, pixels, device="meta"), torch.empty(
        batch, pixels, pixels, dtype=torch.int64, device="meta"
    )


def loss_fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target)
