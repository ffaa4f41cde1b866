"""Models as people bring them: masks that choose rows, self-loops that a graph leaves out."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.brought import LENGTH, ROWS, VOCABULARY, WIDTH, Made, hidden, ids, mlp, model, some_labels


class Masked(nn.Module):
    """Masked language modelling that keeps the masked places alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(VOCABULARY, WIDTH), mlp(), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        logits = self.head(x + self.body(x))
        mask = labels != -100
        return F.cross_entropy(logits[mask], labels[mask])


@model
def masked() -> Made:
    return Masked(), (ids(ROWS, LENGTH), some_labels()), None


class MaskedMean(Masked):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        each = F.cross_entropy(self.head(x + self.body(x)).transpose(1, 2), labels.clamp(min=0), reduction="none")
        return each[labels != -100].mean()


@model
def masked_mean() -> Made:
    return MaskedMean(), (ids(ROWS, LENGTH), some_labels()), None


class MaskedMse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        seen = target > 0
        return F.mse_loss(self.body(x)[seen], target[seen])


@model
def masked_mse() -> Made:
    return MaskedMse(), (hidden(ROWS, LENGTH, WIDTH), hidden(ROWS, LENGTH, WIDTH, seed=2)), None


class MaskedGreatest(MaskedMse):
    """Scaled by the greatest of what is kept."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        seen = target > 0
        kept = self.body(x)[seen]
        return F.mse_loss(kept, target[seen]) / kept.max().detach().abs() + 0.1 * kept.max()


@model
def masked_greatest() -> Made:
    return MaskedGreatest(), (hidden(ROWS, LENGTH, WIDTH), hidden(ROWS, LENGTH, WIDTH, seed=2)), None


class MaskedRows(nn.Module):
    """A semi-supervised node classifier: out[train_mask]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(out=4)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(self.body(x), dim=1)[mask], y[mask])


@model
def masked_rows() -> Made:
    return MaskedRows(), (hidden(), ids(ROWS, below=4), hidden(ROWS, seed=5) > -0.3), None


class Convolved(nn.Module):
    """A graph convolution as libraries write it: edges from a node to itself are left out, loops put beside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 32), nn.Linear(32, 4)

    def spread(self, x: Tensor, edges: Tensor) -> Tensor:
        loops = torch.arange(len(x)).view(1, -1).repeat(2, 1)
        edges = torch.cat([edges[:, edges[0] != edges[1]], loops], 1)
        weight = torch.ones(edges.shape[1])
        degree = weight.new_zeros(len(x)).scatter_add_(0, edges[1].view(-1).expand_as(weight), weight)
        degree = degree.pow_(-0.5)
        brought = (degree[edges[0]] * weight * degree[edges[1]]).view(-1, 1) * x.index_select(-2, edges[0])
        return x.new_zeros(x.shape).scatter_add_(0, edges[1].view(-1, 1).expand_as(brought), brought)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.spread(self.second(self.spread(self.first(x), edges).relu()), edges)


@model
def graph_with_loops() -> Made:
    return Convolved(), (hidden(ROWS, WIDTH), ids(2, 20, below=ROWS), ids(ROWS, below=4)), F.cross_entropy


class Attended(Convolved):
    """Attention over the edges that are kept: a softmax over those that lead to one node."""

    def spread(self, x: Tensor, edges: Tensor) -> Tensor:
        edges = torch.cat([edges[:, edges[0] != edges[1]], torch.arange(len(x)).repeat(2, 1)], 1)
        score = F.leaky_relu(x.sum(-1, keepdim=True).index_select(0, edges[0]) * 0.3, 0.2)
        to = edges[1].view(-1, 1).expand_as(score)
        held = score.detach()
        most = held.new_zeros(len(x), 1).scatter_reduce_(0, to, held, "amax", include_self=False)
        raised = (score - most.index_select(0, edges[1])).exp()
        whole = raised.new_zeros(len(x), 1).scatter_add_(0, to, raised)
        brought = raised / whole.index_select(0, edges[1]) * x.index_select(0, edges[0])
        return x.new_zeros(x.shape).scatter_add_(0, edges[1].view(-1, 1).expand_as(brought), brought)


@model
def graph_with_attention() -> Made:
    return Attended(), (hidden(ROWS, WIDTH), ids(2, 20, below=ROWS), ids(ROWS, below=4)), F.cross_entropy


class Assigned(nn.Module):
    """An adapter for each language, put where its rows stand."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters, self.head = nn.ModuleList(mlp() for _ in range(2)), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, language: Tensor) -> Tensor:
        adapted = torch.zeros_like(x)
        for number, adapter in enumerate(self.adapters):
            own = language == number
            adapted[own] = adapter(x[own])
        return self.head(adapted + x)


@model
def assigned_rows() -> Made:
    return Assigned(), (hidden(), ids(ROWS, below=2), ids(ROWS, below=4)), F.cross_entropy


class Laplacian(Convolved):
    """Loops get a weight of their own, and all weights are divided by the greatest (Chebyshev filters)."""

    def spread(self, x: Tensor, edges: Tensor) -> Tensor:
        edges = edges[:, edges[0] != edges[1]]
        edges = torch.cat([edges, torch.arange(len(x)).repeat(2, 1)], 1)
        weight = torch.ones(edges.shape[1]) + x.sum(-1).index_select(0, edges[0]).abs()
        weight = 2 * weight / weight.max()
        loops = edges[0] == edges[1]
        weight[loops] -= 0.5
        brought = weight.view(-1, 1) * x.index_select(0, edges[0])
        return x.new_zeros(x.shape).scatter_add_(0, edges[1].view(-1, 1).expand_as(brought), brought)


@model
def graph_laplacian() -> Made:
    return Laplacian(), (hidden(ROWS, WIDTH), ids(2, 20, below=ROWS), ids(ROWS, below=4)), F.cross_entropy


class Spoken(nn.Module):
    """Labels without a time of their own; ``chosen``: put together by a mask, as transformers' speech models do it."""

    def __init__(self, chosen: bool) -> None:
        super().__init__()
        self.inner, self.head, self.chosen = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10), chosen

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        likely = F.log_softmax(self.head(self.inner(x).relu()), -1, dtype=torch.float32).transpose(0, 1)
        times, valid = torch.full((len(x),), x.shape[1]), labels >= 0
        if self.chosen:
            return F.ctc_loss(likely, labels.masked_select(valid), times, valid.sum(-1), blank=9, reduction="sum")
        return F.ctc_loss(likely, labels.clamp(min=0), times, valid.sum(-1), blank=9, zero_infinity=True)


def spoken(chosen: bool) -> Made:
    labels = ids(ROWS, 4, below=9)
    labels[0, 3], labels[1, 2:] = -100, -100
    if chosen:  # in the middle of a row, too
        labels[2, 0], labels[3, 1:3] = -100, -100
    return Spoken(chosen), (hidden(ROWS, 12, WIDTH), labels), None


@model
def speech() -> Made:
    return spoken(chosen=False)


@model
def speech_by_mask() -> Made:
    return spoken(chosen=True)
