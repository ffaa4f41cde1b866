"""ResNet-50 (He et al. 2016, arXiv:1512.03385, table 1), with the stride on the bottleneck's 3x3 convolution.

    autoplan plan --model examples/resnet.py:make_model --cluster-spec "1x8 a100-sxm-80gb" --batch 2048

Batch norm takes its statistics from the whole batch. Ranks exchange theirs; microbatches can't, so plans have one.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

PIXELS, CLASSES = 224, 1000


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, around it the identity or a projection where shapes differ."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.reduce, self.norm1 = conv(inputs, width, 1), nn.BatchNorm2d(width)
        self.spatial, self.norm2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.expand, self.norm3 = conv(width, outputs, 1), nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.reduce(x)))
        y = F.relu(self.norm2(self.spatial(y)))
        y = self.norm3(self.expand(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    def __init__(self, width: int, depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem, self.norm = conv(3, width, 7, stride=2), nn.BatchNorm2d(width)
        self.stages = nn.ModuleList()
        inputs = width
        for level, depth in enumerate(depths):
            narrow, outputs = width << level, 4 * width << level
            strides = [1 if level == 0 else 2, *(1,) * (depth - 1)]
            self.stages.append(
                nn.Sequential(
                    *(Bottleneck(inputs if i == 0 else outputs, narrow, outputs, s) for i, s in enumerate(strides))
                )
            )
            inputs = outputs
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, stride=2, padding=1)
        for stage in self.stages:
            x = stage(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def make_model(width: int = 64, depths: tuple[int, ...] = (3, 4, 6, 3), classes: int = CLASSES) -> nn.Module:
    """The model; ``width`` of the stem, ``depths`` of the four stages."""
    return ResNet(width, depths, classes)


def example_inputs(batch: int = 256, pixels: int = PIXELS, classes: int = CLASSES) -> tuple[torch.Tensor, ...]:
    """One step's tensors: pictures [batch, 3, pixels, pixels] and their classes [batch]."""
    return torch.empty(batch, 3, pixels, pixels, device="meta"), torch.empty(
        batch, dtype=torch.int64, device="meta"
    )


def loss_fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target)
