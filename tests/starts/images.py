"""Models of images that set their own initial values, after how their authors do, in our words."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# --- DiT (Peebles and Xie 2022): adaLN-zero, sines and cosines as fixed positions


class DiTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.modulate(c).unsqueeze(1).chunk(6, dim=-1)
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x) * (1 + scale) + shift).chunk(3, dim=-1)
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + gate * self.proj(y)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2, classes: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, stride=2)
        self.classes = nn.Embedding(classes, width)
        self.positions = nn.Parameter(torch.zeros(1, 16, width), requires_grad=False)
        self.blocks = nn.ModuleList(DiTBlock(width, 4) for _ in range(depth))
        self.last = nn.Linear(width, 16)
        self.initialize_weights()

    def initialize_weights(self) -> None:
        def basic(module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.constant_(module.bias, 0)

        self.apply(basic)
        self.positions.data.copy_(sines(16, self.positions.shape[-1]).unsqueeze(0))
        weight = self.patch.weight.data
        nn.init.xavier_uniform_(weight.view([weight.shape[0], -1]))
        nn.init.constant_(self.patch.bias, 0)  # type: ignore[arg-type]
        nn.init.normal_(self.classes.weight, std=0.02)
        for block in self.blocks:
            nn.init.constant_(block.modulate[-1].weight, 0)  # type: ignore[index,union-attr]
            nn.init.constant_(block.modulate[-1].bias, 0)  # type: ignore[index,union-attr]
        nn.init.normal_(self.last.weight, std=1e-3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            h = block(h, self.classes(y))
        return self.last(h)


def sines(places: int, width: int) -> Tensor:
    angles = torch.outer(torch.arange(places).float(), 10000.0 ** -(torch.arange(width // 2).float() / (width // 2)))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


# --- ConvNeXt (Liu et al. 2022): truncated normals, a layer scale of 1e-6


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.pwconv2(self.act(self.pwconv1(y)))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 16, 2, stride=2)
        self.stages = nn.Sequential(ConvNeXtBlock(16), ConvNeXtBlock(16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 12)
        self.apply(self._init_weights)
        self.head.weight.data.mul_(0.5)
        self.head.bias.data.mul_(0.5)

    def _init_weights(self, m: nn.Module) -> None:
        if isinstance(m, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            nn.init.constant_(m.bias, 0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stages(self.stem(x)).mean([-2, -1])))


# --- a ResNet whose residual branches begin at zero (Goyal et al. 2017)


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class ZeroResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(4, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks, self.fc = nn.Sequential(ResidualBlock(16), ResidualBlock(16)), nn.Linear(16, 12)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if isinstance(module, ResidualBlock):
                nn.init.zeros_(module.bn2.weight)
        nn.init.normal_(self.fc.weight, 0, 0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.bn(self.stem(x)))).mean((2, 3)))
