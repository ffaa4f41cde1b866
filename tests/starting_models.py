"""Eleven models that set their own initial values, each with a batch: what training of them must start from.

Written after how their authors initialise them, in our words, but for the two of libraries: timm's ViT and diffusers'
UNet. Sizes divide by four.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import math
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 8
Batch = Mapping[str, Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True)
class Made:
    """A model's factory, the batch of one step, and its loss, None where the model returns it."""

    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss_fn: Callable[..., Tensor] | None = None


# --- nanoGPT (Karpathy 2022, github.com/karpathy/nanoGPT)


@dataclass
class GPTConfig:
    block_size: int = 16
    vocab_size: int = 64
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 32
    dropout: float = 0.0
    bias: bool = False


class LayerNorm(nn.Module):
    """torch's, with a bias only if wanted."""

    def __init__(self, ndim: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout, self.resid_dropout = nn.Dropout(config.dropout), nn.Dropout(config.dropout)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (y.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c)))


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1, self.attn = LayerNorm(config.n_embd, config.bias), CausalSelfAttention(config)
        self.ln_2, self.mlp = LayerNorm(config.n_embd, config.bias), MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size, config.n_embd),
            drop=nn.Dropout(config.dropout),
            h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            ln_f=LayerNorm(config.n_embd, config.bias),
        ))  # fmt: skip
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * config.n_layer))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        parts: Any = self.transformer
        x = parts.drop(parts.wte(idx) + parts.wpe(pos))
        for block in parts.h:
            x = block(x)
        x = parts.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def tokens() -> Batch:
    return {"idx": torch.randint(64, (ROWS, 16)), "targets": torch.randint(64, (ROWS, 16))}


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


# --- libraries


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


def stand_in(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (nn.Module,), {"__getattr__": lambda self, key: key})


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
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    )  # fmt: skip


# --- batches and losses


def images(size: int) -> Batch:
    return torch.randn(ROWS, 4, size, size), torch.randint(12, (ROWS,))


def vectors() -> Batch:
    return torch.randn(ROWS, 16), torch.randint(12, (ROWS,))


def each_token(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def denoised(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(output.sample, target)


def second(output: tuple[Tensor, Tensor]) -> Tensor:
    """nanoGPT's own loss."""
    return output[1]


MODELS: Mapping[str, Made] = {
    "nanogpt": Made(lambda: GPT(GPTConfig()), tokens, second),
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
    ),
}  # fmt: skip
