"""Models as people bring them: losses that couple rows, masks that choose, random numbers, states, adapters.

Each is a maker of a module, its batch of eight rows, and a loss function. Nothing here is written for the planner.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS, LENGTH, WIDTH, VOCABULARY = 8, 6, 16, 32
Loss = Callable[..., Tensor] | None
Made = tuple[nn.Module, tuple[Tensor, ...], Loss]
MODELS: dict[str, Callable[[], Made]] = {}


def model(make: Callable[[], Made]) -> Callable[[], Made]:
    MODELS[make.__name__] = make
    return make


def mlp(width: int = WIDTH, out: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, out))


def hidden(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*(shape or (ROWS, WIDTH)), generator=torch.Generator().manual_seed(seed))


def ids(*shape: int, below: int = VOCABULARY, seed: int = 1) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


class Two(nn.Module):
    """Two towers with a learned scale, as CLIP has them."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = mlp(), mlp()
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.bias = nn.Parameter(torch.tensor(-1.0))

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)


class Clip(Two):
    def forward(self, image: Tensor, text: Tensor) -> Tensor:  # type: ignore[override]
        one, other = super().forward(image, text)
        logits = self.scale.exp() * one @ other.t()
        labels = torch.arange(len(logits))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


class SigLip(Two):
    def forward(self, image: Tensor, text: Tensor) -> Tensor:  # type: ignore[override]
        one, other = super().forward(image, text)
        logits = one @ other.t() * self.scale.exp() + self.bias
        signs = 2 * torch.eye(len(logits)) - 1
        return -F.logsigmoid(signs * logits).sum() / len(logits)


class SimClr(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp()

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        z = F.normalize(self.encoder(torch.cat([one, other])), dim=-1)
        similar = (z @ z.t() / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
        targets = (torch.arange(len(z)) + len(one)) % len(z)
        return F.cross_entropy(similar, targets)


@model
def clip() -> Made:
    return Clip(), (hidden(seed=1), hidden(seed=2)), None


@model
def siglip() -> Made:
    return SigLip(), (hidden(seed=1), hidden(seed=2)), None


@model
def simclr() -> Made:
    return SimClr(), (hidden(seed=1), hidden(seed=2)), None


def dice_loss(logits: Tensor, target: Tensor) -> Tensor:
    p = logits.sigmoid()
    return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)


@model
def dice() -> Made:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    return net, (hidden(ROWS, 3, 8, 8), (hidden(ROWS, 1, 8, 8, seed=2) > 0).float()), dice_loss


class Gnn(nn.Module):
    """Messages summed at their targets: x[source] put by index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 32), nn.Linear(32, 4)

    def spread(self, x: Tensor, edges: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]) + x

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.spread(self.second(self.spread(self.first(x), edges).relu()), edges)


@model
def gnn() -> Made:
    return Gnn(), (hidden(ROWS, WIDTH), ids(2, 20, below=ROWS), ids(ROWS, below=4)), F.cross_entropy


class Barlow(nn.Module):
    """Barlow Twins: the correlation of two views over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp()

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        a, b = self.encoder(one), self.encoder(other)
        a, b = (a - a.mean(0)) / a.std(0), (b - b.mean(0)) / b.std(0)
        c = a.t() @ b / len(one)
        off = c.pow(2).sum() - c.diagonal().pow(2).sum()
        return (1 - c.diagonal()).pow(2).sum() + 0.005 * off


@model
def barlow() -> Made:
    return Barlow(), (hidden(seed=1), hidden(seed=2)), None


def some_labels() -> Tensor:
    return ids(ROWS, LENGTH, seed=3).masked_fill(hidden(ROWS, LENGTH, seed=4) > 0.3, -100)


class Ddpm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2 * WIDTH, WIDTH)
        self.register_buffer("alphas", torch.linspace(0.99, 0.01, 100))
        self.time = nn.Embedding(100, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.randint(0, 100, (x.shape[0],))
        noise = torch.randn(x.shape)
        a = self.alphas[t][:, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        return F.mse_loss(self.net(torch.cat([noisy, self.time(t)], -1)), noise)


@model
def ddpm() -> Made:
    return Ddpm(), (hidden(),), None


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = mlp(out=8), mlp(4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mean, log = self.encode(x).chunk(2, -1)
        z = mean + torch.randn(mean.size()) * (0.5 * log).exp()
        divergence = -0.5 * (1 + log - mean**2 - log.exp()).sum()
        return F.mse_loss(self.decode(z), x, reduction="sum") + divergence


@model
def vae() -> Made:
    return Vae(), (hidden(),), None


class Mae(nn.Module):
    """Patches shuffled by rand and argsort, a quarter of them kept."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = mlp(), mlp()
        self.mask = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        order = torch.rand(b, n).argsort(1)
        back, kept = order.argsort(1), order[:, : n // 2]
        seen = self.encode(x.gather(1, kept[..., None].expand(-1, -1, d)))
        whole = torch.cat([seen, self.mask.expand(b, n - n // 2, d)], 1)
        whole = whole.gather(1, back[..., None].expand(-1, -1, d))
        hide = torch.ones(b, n)
        hide[:, : n // 2] = 0
        hide = hide.gather(1, back)
        return (((self.decode(whole) - x) ** 2).mean(-1) * hide).sum() / hide.sum()


@model
def mae() -> Made:
    return Mae(), (hidden(ROWS, LENGTH, WIDTH),), None


class Depth(nn.Module):
    """Stochastic depth as BEiT writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(mlp() for _ in range(2))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            keep = 0.8 + torch.rand((x.shape[0], 1), dtype=x.dtype, device=x.device)
            x = x + layer(x) / 0.8 * keep.floor()
        return self.head(x)


@model
def depth() -> Made:
    return Depth(), (hidden(), ids(ROWS, below=4)), F.cross_entropy


class Permuted(nn.Module):
    """Mixup: each row beside another one of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(out=4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        other = torch.randperm(x.shape[0])
        logits = self.body(0.7 * x + 0.3 * x[other])
        return 0.7 * F.cross_entropy(logits, y) + 0.3 * F.cross_entropy(logits, y[other])


@model
def mixup() -> Made:
    return Permuted(), (hidden(), ids(ROWS, below=4)), None


class FixedNoise(nn.Module):
    """Noise that all rows share, by randn and rand with several signatures."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(out=4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.1 * torch.randn(WIDTH) + x.new_empty(x.shape).normal_() + torch.normal(0.0, 1.0, x.shape)
        x = x + torch.randint(5, (x.shape[0], 1)) + torch.randint_like(x, 0, 3) * torch.rand(1)
        return self.body(x * torch.empty(x.shape[0], 1).bernoulli_(0.7) + torch.empty_like(x).uniform_(-1, 1))


@model
def noise() -> Made:
    return FixedNoise(), (hidden(), ids(ROWS, below=4)), F.cross_entropy
