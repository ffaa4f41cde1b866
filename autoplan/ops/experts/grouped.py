"""All experts at once: rows in the order of their experts, products by torch's grouped matrix product.

Nothing waits for the device: counts stay there. Choices that name no expert stand last. Where it is known how many
do name one, the others have no rows; else theirs lie behind the last group, where a grouped product writes nothing, and
what is read of them is masked. Sums over a token's choices are taken in the order of the choices, so that two runs give
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from autoplan.ops.experts.activation import Through

ALIGNMENT_BYTES = 16  # of a row, which the grouped product asks for


def serves(hidden: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether the grouped product takes these: no float64, rows of whole 16 bytes, some tokens."""
    narrow = hidden.dtype in (torch.bfloat16, torch.float16, torch.float32)
    same = all(weight.dtype == hidden.dtype for weight in weights)
    sizes = (size for weight in weights for size in weight.shape[1:])
    aligned = all(size * hidden.element_size() % ALIGNMENT_BYTES == 0 for size in sizes)
    return hidden.shape[0] > 0 and narrow and same and aligned


@dataclass(frozen=True)
class Routed:
    """Where each row of the experts' order comes from.

    order    the choice, counted over all tokens, that stands in each row; ``tokens``: whose it is
    expert   of each row; the number of experts, or more, where there is none
    nobody   [rows, 1]: whether there is none; None where every row has one
    ends     int32 [experts]: behind the last row of each
    shape    of the indices: tokens, choices of each
    """

    order: Tensor
    tokens: Tensor
    expert: Tensor
    nobody: Tensor | None
    ends: Tensor
    shape: torch.Size

    @staticmethod
    def of(index: Tensor, experts: int, count: int | None = None) -> Routed:
        """``count``: how many of the choices name an expert, where that is known."""
        named = count == index.numel()
        known = index if named else torch.where(index < 0, experts, index)
        expert, order = torch.sort(known.view(-1), stable=True)
        if count is not None:
            expert, order = expert[:count], order[:count]
        ends = torch.searchsorted(expert, torch.arange(experts, device=index.device), right=True, out_int32=True)
        nobody = (expert >= experts).unsqueeze(-1) if count is None else None
        return Routed(order, order // index.shape[-1], expert, nobody, ends, index.shape)

    def masked(self, rows: Tensor) -> Tensor:
        """Zeros in place of rows without an expert, in the same memory."""
        return rows if self.nobody is None else rows.masked_fill_(self.nobody, 0)

    def back(self, rows: Tensor) -> Tensor:
        """Rows in the order of the choices, [tokens, choices, width]; zeros where a choice has none."""
        choices = self.shape.numel()
        apart = (rows.new_empty if rows.shape[0] == choices else rows.new_zeros)(choices, rows.shape[-1])
        return apart.index_copy_(0, self.order, rows).view(*self.shape, rows.shape[-1])

    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        """[rows, in] by [experts, in, out]."""
        return F.grouped_mm(rows, weight, offs=self.ends)

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """leftᵀ · right over each expert's rows: [experts, left's width, right's]."""
        return F.grouped_mm(left.t(), right, offs=self.ends)

    def biased(self, rows: Tensor, bias: Tensor) -> Tensor:
        return rows + bias[self.expert.clamp(max=bias.shape[0] - 1)]

    def summed(self, rows: Tensor) -> Tensor:
        """The sum of each expert's rows, [experts, width]."""
        ones = rows.new_ones(rows.shape[0], ALIGNMENT_BYTES // rows.element_size())
        return self.outer(ones, rows)[:, 0]


def turned(weight: Tensor, transposed: bool) -> Tensor:
    """[experts, in, out]"""
    return weight if transposed else weight.transpose(1, 2)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


def forward(
    hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor, biases: Sequence[Tensor],
    function: Callable[..., Tensor], transposed: bool, count: int | None = None,
) -> Tensor:  # fmt: skip
    """The result in the wider of the dtypes of tokens and scores. ``count``: as of ``Routed.of``."""
    routed = Routed.of(index, down.shape[0], count)
    inner = function(*first_products(routed, hidden.index_select(0, routed.tokens), first, biases, transposed))
    rows = routed.masked(routed.product(inner, turned(down, transposed)))
    return (routed.back(rows) * scores.unsqueeze(-1)).sum(1)


def first_products(
    routed: Routed, rows: Tensor, first: Sequence[Tensor], biases: Sequence[Tensor], transposed: bool
) -> list[Tensor]:
    products = [routed.product(rows, turned(weight, transposed)) for weight in first]
    return [routed.biased(p, b) for p, b in zip(products, biases, strict=True)] if biases else products


def backward(
    gradient: Tensor, hidden: Tensor, index: Tensor, scores: Tensor, first: Sequence[Tensor], down: Tensor,
    biases: Sequence[Tensor], through: Through, transposed: bool, count: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of hidden, scores, down, each of first, each of biases.

    through  (products, gradient of the activation) -> the activation, gradients of the products
    """
    routed = Routed.of(index, down.shape[0], count)
    rows, outer = (x.index_select(0, routed.tokens) for x in (hidden, gradient))
    score = cast(scores.reshape(-1, 1).index_select(0, routed.order), hidden.dtype)
    products = first_products(routed, rows, first, biases, transposed)
    back = routed.product(outer, turned(down, not transposed))
    inner, d_products = through(products, back * score)
    d_scores = routed.back(routed.masked((back * inner).sum(-1, keepdim=True))).squeeze(-1)
    scored = outer * score
    down_sides = (inner, scored) if transposed else (scored, inner)
    d_first = [routed.outer(rows, part) if transposed else routed.outer(part, rows) for part in d_products]
    d_rows, *others = (
        routed.product(part, turned(weight, not transposed)) for part, weight in zip(d_products, first, strict=True)
    )
    for other in others:
        d_rows = d_rows.add_(other)
    d_hidden = routed.back(routed.masked(d_rows)).sum(1)
    d_biases = [routed.summed(part) for part, _ in zip(d_products, biases, strict=False)]
    return [d_hidden, cast(d_scores, scores.dtype), routed.outer(*down_sides), *d_first, *d_biases]
