"""All experts at once: rows in the order of their experts, one product for all of them.

Products are torch's grouped ones where these serve, and nothing waits for the device: counts stay there. Else, as in
float64, one expert's product follows another's. Choices that name no expert stand last. Where it is known how many do
name one, the others have no rows; else theirs lie behind the last group, where a grouped product writes nothing, and
what is read of them is masked. Sums over a token's choices are taken in the order of the choices, so that two runs give
the same bits.

The backward reads the first products, what the activation made of them, what the experts gave, and where each row came
from. These are kept (``Inside.kept``); or the activation is computed again; or the first products come of the tokens
again, too, and the scores' gradients of the activation, so that what the experts gave isn't needed (``Inside.of``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from autoplan.ops.experts.activation import Made, Through
from autoplan.ops.experts.few_sizes import counted, filled_up, has_values, rounds

ALIGNMENT_BYTES = 16  # of a row, which the grouped product asks for


def serves(hidden: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether the grouped product takes these: no float64, rows of whole 16 bytes, some tokens."""
    narrow = hidden.dtype in (torch.bfloat16, torch.float16, torch.float32)
    same = all(weight.dtype == hidden.dtype for weight in weights)
    sizes = (size for weight in weights for size in weight.shape[1:])
    aligned = all(size * hidden.element_size() % ALIGNMENT_BYTES == 0 for size in sizes)
    return hidden.shape[0] > 0 and narrow and same and aligned


@dataclass(frozen=True)
class Weights:
    """Of the experts at hand, as the operator has them.

    first, biases  of the products before the activation: [experts, f, h] each, [experts, h, f] if ``transposed``;
                   [experts, f] each, or none. Without first products the rows take their place
    down           [experts, o, f], or [experts, f, o]
    """

    first: Sequence[Tensor]
    down: Tensor
    biases: Sequence[Tensor]
    transposed: bool

    @property
    def experts(self) -> int:
        return self.down.shape[0]

    def turned(self, weight: Tensor) -> Tensor:
        """[experts, in, out]"""
        return weight if self.transposed else weight.transpose(1, 2)

    def back(self, weight: Tensor) -> Tensor:
        """[experts, out, in]"""
        return weight.transpose(1, 2) if self.transposed else weight


@dataclass(frozen=True)
class Routed:
    """Where each row of the experts' order comes from.

    order     the choice, counted over all tokens, that stands in each row, or their number in one that only fills up
              (``few_sizes``); ``tokens``: whose it is
    expert    of each row; the number of experts, or more, where there is none; where all rows have one, those without
              rows follow
    ends      int32 [experts]: behind the last row of each
    complete  whether every row has an expert
    serves    whether grouped products do
    rounded   whether rows fill up
    """

    order: Tensor
    tokens: Tensor
    expert: Tensor
    ends: Tensor
    complete: bool
    serves: bool
    rounded: bool = False

    @staticmethod
    def of(
        index: Tensor, experts: int, serves: bool, count: int | None = None, at_most: bool = False,
        rounded: bool = False,
    ) -> Routed:  # fmt: skip
        """index [tokens, choices]; ``count``: how many of the choices name an expert, where that is known, or how many
        do ``at_most``."""
        named = count == index.numel() and not at_most
        known = index if named else index & torch.iinfo(index.dtype).max  # what is negative becomes large
        expert, order = torch.sort(known.reshape(-1), stable=True)
        ends = torch.searchsorted(expert, torch.arange(experts, device=index.device), right=True, out_int32=True)
        if rounded:
            rows, fill, ends = filled_up(ends)
            order = order.index_select(0, rows)
            tokens = order // index.shape[-1]
            return Routed(order.index_fill_(0, fill, index.numel()), tokens, order, ends, True, serves, True)
        if count is not None and not named:
            order = order[:count]
            expert = expert[:count] if at_most else expert
        complete = count is not None and not at_most
        return Routed(order, order // index.shape[-1], expert, ends, complete, serves)

    def masked(self, rows: Tensor) -> Tensor:
        """Zeros in place of rows without an expert, in the same memory."""
        return rows if self.complete else rows.masked_fill_((self.expert >= self.ends.numel()).unsqueeze(-1), 0)

    def score(self, scores: Tensor) -> Tensor:
        """[rows, 1], of each row's choice; zero where it only fills up."""
        given = F.pad(scores.reshape(-1), (0, 1)) if self.rounded else scores
        return given.take(self.order).unsqueeze(1)

    def back(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """Rows of one number in the order of the choices, [tokens, choices]; zeros where a choice has none.

        shape  of the choices: (tokens, choices)
        """
        choices = shape[0] * shape[1]
        if self.rounded:
            apart = rows.new_zeros(choices + 1, rows.shape[-1])  # the last one is of what only fills up
            return apart.index_copy_(0, self.order, rows)[:choices].view(shape)
        apart = (rows.new_empty if rows.shape[0] == choices else rows.new_zeros)(choices, rows.shape[-1])
        return apart.index_copy_(0, self.order, rows).view(shape)

    def totals(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """The sums over each token's choices, [tokens, width], in their order, so that two runs give the same bits; of
        two any order does. A token may have one of its choices here, of many: rows aren't put where others would be.

        shape  as of ``back``
        """
        if shape[1] <= 2:
            return rows.new_zeros(shape[0], rows.shape[1]).index_add_(0, self.tokens, rows)
        order, places = torch.sort(self.order)
        starts = torch.searchsorted(order // shape[1], torch.arange(shape[0], device=rows.device))
        return F.embedding_bag(places, rows, starts, mode="sum")

    def parts(self, rows: Tensor) -> list[Tensor]:
        """Each expert's rows, and last those of none."""
        return [rows[start:end] for start, end in pairwise([0, *self.ends.tolist(), rows.shape[0]])]

    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        """[rows, in] by [experts, in, out]."""
        if self.serves:
            return F.grouped_mm(rows, weight, offs=self.ends)
        *each, rest = self.parts(rows)
        products = [part @ of for part, of in zip(each, weight.unbind(), strict=True)]
        return torch.cat([*products, rest.new_zeros(rest.shape[0], weight.shape[2])])

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """leftᵀ · right over each expert's rows: [experts, left's width, right's]."""
        if self.serves:
            return F.grouped_mm(left.t(), right, offs=self.ends)
        pairs = zip(self.parts(left)[:-1], self.parts(right)[:-1], strict=True)
        return torch.stack([one.t() @ other for one, other in pairs])

    def biased(self, rows: Tensor, bias: Tensor) -> Tensor:
        if self.rounded:
            places = torch.arange(rows.shape[0], dtype=torch.int32)
            return rows + bias[torch.searchsorted(self.ends, places, right=True)]
        return rows + bias[self.expert[: rows.shape[0]].clamp(max=bias.shape[0] - 1)]

    def summed(self, rows: Tensor) -> Tensor:
        """The sum of each expert's rows, [experts, width]."""
        ones = rows.new_ones(rows.shape[0], ALIGNMENT_BYTES // rows.element_size())
        return self.outer(ones, rows)[:, 0]


@dataclass(frozen=True)
class Inside:
    """What the forward has found, and the backward reads.

    score     [rows, 1], of each row's choice
    products  [rows, f] each, before the activation
    given     [rows, o]: what the experts gave, before the scores; None where it isn't known
    made      what the activation's gradient reads beside the products; nothing where it is computed again
    """

    routed: Routed
    score: Tensor
    products: list[Tensor]
    given: Tensor | None = None
    made: Sequence[Tensor] = ()

    @staticmethod
    def of(
        hidden: Tensor, index: Tensor, scores: Tensor, weights: Weights, count: int | None = None,
        at_most: bool = False,
    ) -> Inside:  # fmt: skip
        """``count``, ``at_most``: as of ``Routed.of``."""
        fits = serves(hidden, [*weights.first, weights.down])
        routed = Routed.of(index, weights.experts, fits, count, at_most, fits and rounds(hidden) and has_values(hidden))
        rows = hidden.index_select(0, routed.tokens)
        products = [routed.product(rows, weights.turned(weight)) for weight in weights.first] or [rows]
        if weights.biases:
            products = [routed.biased(p, b) for p, b in zip(products, weights.biases, strict=True)]
        return Inside(routed, routed.score(scores), products)

    @property
    def kept(self) -> list[Tensor]:
        """Tensors of which ``again`` makes the same."""
        routed = self.routed
        whose = [] if routed.complete else [routed.expert]
        given = [] if self.given is None else [self.given]
        return [routed.ends, routed.order, routed.tokens, self.score, *given, *self.products, *whose, *self.made]

    @staticmethod
    def again(kept: Sequence[Tensor], hidden: Tensor, weights: Weights) -> Inside:
        ends, order, tokens, score, given, *rest = kept
        count = max(1, len(weights.first))
        products, rest = rest[:count], rest[count:]
        whose, made = [x for x in rest if x.ndim == 1], [x for x in rest if x.ndim > 1]
        fits = serves(hidden, [*weights.first, weights.down])
        rounded = fits and rounds(hidden) and has_values(hidden)
        routed = Routed(order, tokens, whose[0] if whose else order, ends, not whose, fits, rounded)
        return Inside(routed, score, products, given, made)


def kept_like(
    rows: int | torch.SymInt, hidden: Tensor, index: Tensor, scores: Tensor, weights: Weights, function: Made,
    complete: bool,
) -> list[Tensor]:  # fmt: skip
    """Tensors of the shapes of ``Inside.kept``, for a compiler; ``rows`` of choices, before they are rounded up."""
    if serves(hidden, [*weights.first, weights.down]) and rounds(hidden):
        rows, complete = counted(rows), True
    order, tokens = (index.new_empty(rows, dtype=torch.int64) for _ in range(2))
    widths = [weights.turned(weight).shape[2] for weight in (weights.down, *weights.first)]
    widths += [] if weights.first else [hidden.shape[1]]
    given, *products = (hidden.new_empty(rows, width) for width in widths)
    return [
        index.new_empty(weights.experts, dtype=torch.int32), order, tokens, scores.new_empty(rows, 1),
        given, *products, *([] if complete else [index.new_empty(rows)]), *function(products)[1],
    ]  # fmt: skip


def forward(inside: Inside, weights: Weights, function: Made, shape: Sequence[int]) -> tuple[Tensor, Inside]:
    """[tokens, o] in the wider of the dtypes of tokens and scores; ``Inside`` with what the experts gave.

    shape  as of ``Routed.back``
    """
    routed = inside.routed
    inner, made = function(inside.products)
    given = routed.product(inner, weights.turned(weights.down))
    del inner  # unless it is kept its memory is free for what follows
    result = routed.totals(routed.masked(given * inside.score), shape)
    return result, replace(inside, given=given, made=made)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


@dataclass(frozen=True)
class WeightGradients:
    """What weights' gradients come of, once those of rows are known.

    rows, scored  [rows, h] tokens, [rows, o] the result's gradients by their scores
    inner         [rows, f] the activation; ``d_products``: gradients of the first products
    """

    routed: Routed
    weights: Weights
    rows: Tensor
    scored: Tensor
    inner: Tensor
    d_products: Sequence[Tensor]

    def gradients(self) -> list[Tensor]:
        """Of down, each of first, each of biases."""
        outer, transposed = self.routed.outer, self.weights.transposed
        d_down = outer(self.inner, self.scored) if transposed else outer(self.scored, self.inner)
        d_parts = self.d_products if self.weights.first else ()
        d_first = [outer(self.rows, part) if transposed else outer(part, self.rows) for part in d_parts]
        d_biases = [self.routed.summed(part) for part, _ in zip(self.d_products, self.weights.biases, strict=False)]
        return [d_down, *d_first, *d_biases]


def gradient_of_tokens(
    routed: Routed, weights: Weights, d_products: Sequence[Tensor], shape: Sequence[int]
) -> Tensor:
    """[tokens, h], of the gradients of the first products, of which two stand at a time; where there are none, of those
    of the rows."""
    if not weights.first:
        return routed.totals(routed.masked(d_products[0]), shape)
    pairs = zip(d_products, weights.first, strict=True)
    products = (routed.product(part, weights.back(weight)) for part, weight in pairs)
    return routed.totals(routed.masked(reduce(Tensor.add_, products)), shape)


def backward_of_rows(
    gradient: Tensor, hidden: Tensor, inside: Inside, weights: Weights, through: Through, shape: Sequence[int]
) -> tuple[Tensor, Tensor, WeightGradients]:
    """Gradients of hidden and of scores, which others may wait for, and what gives those of weights.

    through  (products, gradient of the activation, what it made) -> the activation, gradients of the products
    shape    as of ``Routed.back``

    With y = down · a and s the score: d s = <d result, y> = <downᵀ · d result, a>.
    """
    routed, score = inside.routed, cast(inside.score, hidden.dtype)
    rows, outer = (x.index_select(0, routed.tokens) for x in (hidden, gradient))
    scored = outer * score
    if inside.given is not None:
        made = inside.made
        inner, d_products = through(inside.products, routed.product(scored, weights.back(weights.down)), made)
        d_score = (outer * inside.given).sum(-1, keepdim=True)
    else:
        back = routed.product(outer, weights.back(weights.down))
        inner, d_products = through(inside.products, back * score, ())
        d_score = (back * inner).sum(-1, keepdim=True)
    d_scores = routed.back(routed.masked(d_score), shape)
    d_hidden = gradient_of_tokens(routed, weights, d_products, shape)
    further = WeightGradients(routed, weights, rows, scored, inner, d_products)
    return d_hidden, cast(d_scores, inside.score.dtype), further
