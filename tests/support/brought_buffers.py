"""Models whose forward changes buffers: averages, codebooks, queues, counters, vectors of spectral norms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils.parametrizations import spectral_norm

from tests.support.brought import ROWS, WIDTH, Made, hidden, ids, model


class Averaged(nn.Module):
    """A layer that subtracts an average of its activations, which it has moved before; it counts how often."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        with torch.no_grad():
            self.average.lerp_(h.mean(0), 0.1)
            self.calls += 1
        return x + torch.tanh(h - self.average)


class Normed(nn.Module):
    """Batch norm by hand, its statistics put in place of the old ones."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        mean, variance = self.mean, self.variance
        if self.training:
            mean, variance = x.mean(0), x.var(0, unbiased=False)
            self.mean = 0.9 * self.mean + 0.1 * mean.detach()
            self.variance = 0.9 * self.variance + 0.1 * variance.detach()
        return (x - mean) / (variance + 1e-5).sqrt() * self.scale


class Layers(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module], count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer() for _ in range(count)])
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Codebook(nn.Module):
    """VQ-VAE's quantiser: nearest codes, moved by exponential averages of what falls to them (1711.00937, A.1)."""

    def __init__(self, codes: int = 8) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        generator = torch.Generator().manual_seed(2)
        self.register_buffer("codes", torch.randn(codes, WIDTH, generator=generator))
        self.register_buffer("size", torch.ones(codes))
        self.register_buffer("total", self.codes.clone())

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        distances = self.codes.square().sum(1) - 2 * z.detach() @ self.codes.T
        chosen = distances.argmin(1)
        quantised = F.embedding(chosen, self.codes)
        if self.training:
            with torch.no_grad():
                members = F.one_hot(chosen, len(self.codes)).to(z.dtype)
                self.size.mul_(0.9).add_(members.sum(0), alpha=0.1)
                self.total.mul_(0.9).add_(members.T @ z, alpha=0.1)
                self.codes.copy_(self.total / self.size[:, None])
        commitment = (z - quantised).square().mean()
        return (self.decoder(z + (quantised - z).detach()) - x).square().mean() + 0.25 * commitment


class Queue(nn.Module):
    """MoCo's queue of keys, written around a place that moves on (1911.05722, algorithm 1)."""

    def __init__(self, length: int = 32) -> None:
        super().__init__()
        self.queries, self.keys, self.length = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8), length
        generator = torch.Generator().manual_seed(2)
        self.register_buffer("queue", F.normalize(torch.randn(8, length, generator=generator), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        q = F.normalize(self.queries(x), dim=1)
        with torch.no_grad():
            k = F.normalize(self.keys(x), dim=1)
        alike = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1)
        loss = F.cross_entropy(alike / 0.07, torch.zeros(len(x), dtype=torch.long))
        with torch.no_grad():
            self.queue.index_copy_(1, (self.place + torch.arange(len(x))) % self.length, k.T)
            self.place.copy_((self.place + len(x)) % self.length)
        return loss


class Normaliser(nn.Module):
    """The running mean of its inputs, which no parameter reaches; it isn't saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += len(x)
        self.mean += (x.mean(0) - self.mean) * len(x) / self.count
        return self.second(self.first(x - self.mean).relu())


class History(nn.Module):
    """Written three times, whole and by parts, in regions and outside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("history", torch.zeros(4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        with torch.no_grad():
            self.history.mul_(0.5)
        z = y - self.history[0]
        with torch.no_grad():
            self.history[1] = z.mean(0)
        self.history[2:].add_(1)
        return (z + self.history.sum(0)).square().mean()


class Centred(nn.Module):
    """A centre that the first layer reads and the last one moves, as DINO's teacher has it (2104.14294, 3.1)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.head = nn.Linear(WIDTH, 4)
        self.register_buffer("centre", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.centre
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        self.centre = 0.9 * self.centre + 0.1 * x.detach().mean(0)
        return self.head(x)


def images() -> tuple[Tensor, Tensor]:
    return hidden(), ids(ROWS, below=4)


@model
def averaged_layers() -> Made:
    return Layers(Averaged), images(), F.cross_entropy


@model
def normed_by_hand() -> Made:
    return Layers(Normed), images(), F.cross_entropy


@model
def centred() -> Made:
    return Centred(), images(), F.cross_entropy


@model
def codebook() -> Made:
    return Codebook(), (hidden(),), None


@model
def queue() -> Made:
    return Queue(), (hidden(),), None


@model
def normaliser() -> Made:
    return Normaliser(), images(), F.cross_entropy


@model
def history() -> Made:
    return History(), (hidden(),), None


@model
def moving_spectral_norm() -> Made:
    return Layers(lambda: spectral_norm(nn.Linear(WIDTH, WIDTH)), 2), images(), F.cross_entropy


@model
def moving_old_spectral_norm() -> Made:
    return Layers(lambda: old_spectral_norm(nn.Linear(WIDTH, WIDTH)), 2), images(), F.cross_entropy
