"""Models as people bring them: tensors of their own, recurrent layers, norms of weights, adapters, frozen parts, own
backwards."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils.parametrizations import spectral_norm

from tests.support.brought import LENGTH, ROWS, VOCABULARY, WIDTH, Made, hidden, ids, mlp, model, some_labels


class Table(nn.Module):
    """Rotary positions by complex numbers, in a plain attribute, as Llama's first code kept them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        angles = torch.outer(torch.arange(LENGTH), 1.0 / 10 ** torch.arange(0, WIDTH // 2).div(8))
        self.turns = torch.polar(torch.ones_like(angles), angles)
        self.scale = hidden(WIDTH, seed=9)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(self.inner(x).unflatten(-1, (-1, 2))) * self.turns
        return self.head((torch.view_as_real(turned).flatten(-2) * self.scale).mean(1))


@model
def plain_tensors() -> Made:
    return Table(), (hidden(ROWS, LENGTH, WIDTH), ids(ROWS, below=4)), F.cross_entropy


class Listed(nn.Module):
    """Tensors in a list and in a dict, which no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(out=4)
        self.shifts, self.named = [hidden(WIDTH, seed=3), hidden(WIDTH, seed=4)], {"mean": hidden(WIDTH, seed=5)}

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * self.shifts[0] + self.shifts[1] - self.named["mean"])


@model
def listed_tensors() -> Made:
    return Listed(), (hidden(), ids(ROWS, below=4)), F.cross_entropy


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: object) -> None:
        super().__init__()
        self.body = kind(WIDTH, WIDTH, batch_first=True, **options)
        self.head = nn.Linear(WIDTH * (2 if options.get("bidirectional") else 1), 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


@model
def gru() -> Made:
    return Recurrent(nn.GRU), (hidden(ROWS, LENGTH, WIDTH), ids(ROWS, below=4)), F.cross_entropy


@model
def rnn() -> Made:
    return Recurrent(nn.RNN, num_layers=2), (hidden(ROWS, LENGTH, WIDTH), ids(ROWS, below=4)), F.cross_entropy


@model
def lstm() -> Made:
    return Recurrent(nn.LSTM, bidirectional=True), (hidden(ROWS, LENGTH, WIDTH), ids(ROWS, below=4)), F.cross_entropy


@model
def old_weight_norm() -> Made:
    net = mlp(out=4)
    net[0] = nn.utils.weight_norm(net[0])
    return net, (hidden(), ids(ROWS, below=4)), F.cross_entropy


@model
def new_weight_norm() -> Made:
    net = mlp(out=4)
    net[0] = nn.utils.parametrizations.weight_norm(net[0])
    return net, (hidden(), ids(ROWS, below=4)), F.cross_entropy


def weighted_each(logits: Tensor, target: Tensor) -> Tensor:
    weight = torch.tensor([0.5, 1.0, 2.0, 1.5], dtype=logits.dtype)
    return F.cross_entropy(logits, target, weight=weight, reduction="none").mean()


@model
def weighted_none() -> Made:
    return mlp(out=4), (hidden(), ids(ROWS, below=4)), weighted_each


class Pictured(nn.Module):
    """Image features put where the image tokens stand, by masked_scatter over the batch (LLaVA, PaliGemma)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.vision = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.body, self.head = mlp(), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, picture: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        mask = (tokens == 0)[..., None].expand_as(x)
        x = x.masked_scatter(mask, self.vision(picture).flatten(0, 1))
        logits = self.head(x + self.body(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@model
def pictured() -> Made:
    tokens = ids(ROWS, LENGTH - 2).clamp(min=1)
    tokens = torch.cat([torch.zeros(ROWS, 2, dtype=torch.long), tokens], 1)
    return Pictured(), (tokens, hidden(ROWS, 2, WIDTH), some_labels()), None


class Asserted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(out=4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        torch._check(lengths.max().item() <= WIDTH)
        assert x.shape[0] == lengths.shape[0]
        return self.body(x * (torch.arange(WIDTH) < lengths[:, None]))


@model
def asserted() -> Made:
    return Asserted(), (hidden(), ids(ROWS, below=WIDTH), ids(ROWS, below=4)), F.cross_entropy


class Encoder(nn.Module):
    """torch's tutorial: nn.TransformerEncoder with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, 0.0, batch_first=True)
        self.embed, self.body = nn.Embedding(VOCABULARY, WIDTH), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.body(self.embed(tokens), mask)).transpose(1, 2)


@model
def torch_encoder() -> Made:
    return Encoder(), (ids(ROWS, LENGTH), ids(ROWS, LENGTH, seed=2)), F.cross_entropy


class Padded(Encoder):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embed(tokens), src_key_padding_mask=tokens == 0)).mean(1)


@model
def torch_encoder_padded() -> Made:
    return Padded(), (ids(ROWS, LENGTH).clamp(min=1), ids(ROWS, below=4)), F.cross_entropy


class Lora(nn.Module):
    """A frozen linear with an adapter beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * 0.5


@model
def lora() -> Made:
    net = nn.Sequential(*(mlp() for _ in range(3)), nn.Linear(WIDTH, 4)).requires_grad_(False)
    for part in list(net)[:3]:
        part[0], part[2] = Lora(part[0]), Lora(part[2])
    return net, (hidden(), ids(ROWS, below=4)), F.cross_entropy


class Distilled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = mlp(out=4).requires_grad_(False).eval(), mlp(out=4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            taught = self.teacher(x).softmax(-1)
        logits = self.student(x)
        return F.cross_entropy(logits, y) + F.kl_div(logits.log_softmax(-1), taught, reduction="batchmean")


@model
def distilled() -> Made:
    return Distilled(), (hidden(), ids(ROWS, below=4)), None


class Prompted(nn.Module):
    """Learned tokens in front of a frozen encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Encoder().requires_grad_(False)
        self.prompt = nn.Parameter(hidden(3, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        prompt = self.prompt.expand(len(tokens), -1, -1)
        return self.base.head(self.base.body(torch.cat([prompt, self.base.embed(tokens)], 1)))[:, 3:].transpose(1, 2)


@model
def prompted() -> Made:
    return Prompted(), (ids(ROWS, LENGTH), ids(ROWS, LENGTH, seed=2)), F.cross_entropy


class Rewritten(nn.Module):
    """Views changed in place: halves of a table, a permuted product, a slice of what is corrected."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(LENGTH, WIDTH, dtype=x.dtype)
        places = torch.arange(LENGTH, dtype=x.dtype)[:, None] / 10 ** torch.arange(WIDTH // 2)
        table[:, : WIDTH // 2] = places.sin()
        table[:, WIDTH // 2 :] = places.cos()
        x = self.body(x + table[None])
        turned = torch.matmul(x, x.transpose(1, 2)).permute(2, 0, 1)
        turned += 0.5
        corrected = turned.permute(1, 2, 0) @ x
        corrected[:, 1:] += x[:, :1]
        return self.head(corrected.mean(1))


@model
def views_in_place() -> Made:
    return Rewritten(), (hidden(ROWS, LENGTH, WIDTH), ids(ROWS, below=4)), F.cross_entropy


class Shares(nn.Module):
    """Frozen projections that every layer holds, scaled by vectors of its own (VeRA)."""

    def __init__(self, inside: Tensor, outside: Tensor) -> None:
        super().__init__()
        self.register_buffer("inside", inside)
        self.register_buffer("outside", outside)
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.one, self.other = nn.Parameter(hidden(4)), nn.Parameter(hidden(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(x, self.inside) * self.one
        return self.base(x).relu() + F.linear(low, self.outside) * self.other


@model
def shared_buffers() -> Made:
    inside, outside = hidden(4, WIDTH, seed=7), hidden(WIDTH, 4, seed=8)
    layers = (Shares(inside, outside) for _ in range(3))
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4)), (hidden(), ids(ROWS, below=4)), F.cross_entropy


class Checking(nn.Module):
    """Checks of labels, a clamp where numbers overflowed, and layers that are dropped with a probability of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(mlp() for _ in range(2))
        self.head, self.dropped = nn.Linear(WIDTH, 4), 0.0

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        if labels is not None and labels.max() >= self.head.out_features:
            raise ValueError("labels beyond the classes")
        assert not (labels < 0).any(), "labels below zero"
        for layer in self.layers:
            if random.uniform(0, 1) < self.dropped or torch.rand([]) < self.dropped:
                continue
            x = layer(x)
            if torch.isinf(x).any() or not torch.isfinite(x).all():
                x = x.clamp(-1e4, 1e4)
        return F.cross_entropy(self.head(x), labels)


@model
def checking() -> Made:
    return Checking(), (hidden(), ids(ROWS, below=4)), None


class Turned(nn.Module):
    """A frozen weight read by .data, turned by a reflection that is trained (Householder adapters)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.body.weight.requires_grad_(False)
        self.along = nn.Parameter(hidden(WIDTH, 1, seed=6))

    def forward(self, x: Tensor) -> Tensor:
        self.head = self.head.to(torch.get_default_dtype())
        along = self.along / self.along.norm()
        reflected = torch.eye(WIDTH, dtype=along.dtype) - 2 * along @ along.t()
        return self.head(F.linear(x.to(self.body.weight.data.dtype), self.body.weight.data @ reflected, self.body.bias))


@model
def turned() -> Made:
    return Turned(), (hidden(), ids(ROWS, below=4)), F.cross_entropy


class Reversed(Function):
    """Gradients of a domain's classifier, turned round (Ganin and Lempitsky 2015)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.neg() * ctx.scale, None


class Quantized(Function):
    """Rounded to codes; gradients pass straight through within bounds, and are added up in place. Two results."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        codes = (x / step).round().clamp(-8, 7)
        ctx.save_for_backward(codes, step)
        ctx.mark_non_differentiable(codes)
        return codes * step, codes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        codes, step = ctx.saved_tensors
        passed = torch.zeros_like(gradient)
        passed.add_(gradient * ((codes > -8) & (codes < 7)))
        return passed, (gradient * codes).sum().view_as(step) / codes.numel() ** 0.5


class OwnBackwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.step, self.head, self.domain = nn.Parameter(torch.tensor([0.05])), nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for layer in self.layers:
            x, codes = Quantized.apply(layer(x).tanh(), self.step)
        domain = F.cross_entropy(self.domain(Reversed.apply(x, 0.5)), labels % 2)
        return F.cross_entropy(self.head(x), labels) + domain + 0 * codes.abs().mean()


@model
def own_backwards() -> Made:
    return OwnBackwards(), (hidden(), ids(ROWS, below=4)), None


@model
def frozen_spectral_norm() -> Made:
    """Its power iterations rest, as eval mode has them; ``moving_spectral_norm`` has those that go on."""
    body = nn.Sequential(old_spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.GELU(), spectral_norm(nn.Linear(WIDTH, 4)))
    body[0].eval()
    body[2].parametrizations.weight.eval()  # type: ignore[union-attr]
    return body, (hidden(), ids(ROWS, below=4)), F.cross_entropy


class Judged(nn.Module):
    """A judge without gradients says which features count, as DeepSeek's indexer says which keys."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.judge = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x.tanh()
        with torch.no_grad():
            chosen = self.judge(y).topk(WIDTH // 2).indices
        return x + self.inner(y) * torch.zeros_like(x).scatter(1, chosen, 1.0)


@model
def judged() -> Made:
    layers = nn.Sequential(*(Judged() for _ in range(4)), nn.Linear(WIDTH, 4))
    return layers, (hidden(), ids(ROWS, below=4)), F.cross_entropy
