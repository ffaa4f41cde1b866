"""Models of vectors and tokens that set their own initial values, after how their authors do, in our words."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# --- SIREN (Sitzmann et al. 2020): uniform values whose bounds differ by the layer


class Siren(nn.Module):
    def __init__(self, width: int = 32, depth: int = 3, omega: float = 30.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4 if i == 0 else width, width) for i in range(depth))
        self.last, self.omega = nn.Linear(width, 4), omega
        with torch.no_grad():
            for i, layer in enumerate(self.layers):
                bound = 1 / layer.in_features if i == 0 else math.sqrt(6 / width) / omega  # type: ignore[operator]
                layer.weight.uniform_(-bound, bound)  # type: ignore[operator]
            self.last.weight.uniform_(-math.sqrt(6 / width) / omega, math.sqrt(6 / width) / omega)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(self.omega * layer(x))
        return self.last(x)


# --- LoRA (Hu et al. 2021): frozen weights, factors of which one begins at zero


class LoRALinear(nn.Module):
    def __init__(self, into: int, out: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(into, out)
        self.base.weight.requires_grad_(False)
        self.lora_a, self.lora_b = nn.Parameter(torch.empty(rank, into)), nn.Parameter(torch.zeros(out, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.lora_a), self.lora_b)


class LoRAModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = LoRALinear(16, 32), LoRALinear(32, 12)
        nn.init.orthogonal_(self.up.base.weight)
        self.down.base.weight.data = self.down.base.weight.data / self.down.base.weight.data.norm(dim=1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


# --- random Fourier features (Tancik et al. 2020): a random buffer that is never trained


class Fourier(nn.Module):
    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(16, 16) * 2.0)
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 12))
        for layer in self.body:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.uniform_(layer.bias, -0.1, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        angles = x @ self.frequencies
        return self.body(torch.cat([angles.sin(), angles.cos()], dim=-1))


# --- DeepNorm (Wang et al. 2022): gains by the depth, for values and outputs alone


class DeepBlock(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.alpha = (2 * depth) ** 0.25
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, 4, d // 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        x = self.norm1(self.alpha * x + y)
        return self.norm2(self.alpha * x + self.down(F.gelu(self.up(x))))


class DeepNorm(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(DeepBlock(width, depth) for _ in range(depth))
        self.head = nn.Linear(width, 64)
        beta = (8 * depth) ** -0.25
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scaled = any(part in name for part in (".v.", ".o.", ".up.", ".down."))
                nn.init.xavier_normal_(parameter, gain=beta if scaled else 1.0)
            elif "norm" not in name:
                parameter.data.zero_()
        self.head.weight.data = self.embed.weight.data.clone() * 0.5

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


# --- a state-space layer's steps (Gu and Dao 2023): log of integers, the inverse softplus of random steps


class StateSpace(nn.Module):
    def __init__(self, width: int = 16, states: int = 4) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, width), nn.Linear(width, 12)
        self.a_log = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        steps = torch.exp(torch.rand(width) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)).clamp(min=1e-4)
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.d = nn.Parameter(torch.ones(width))
        bound = width**-0.5
        nn.init.uniform_(self.into.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        decay = torch.exp(-F.softplus(self.dt_bias).unsqueeze(-1) * torch.exp(self.a_log)).sum(-1)
        return self.out(F.silu(h * decay + self.d * h))
