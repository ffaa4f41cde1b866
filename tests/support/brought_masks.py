"""Models as people bring them: masks that choose rows, self-loops that a graph leaves out."""

from __future__ import annotations

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
