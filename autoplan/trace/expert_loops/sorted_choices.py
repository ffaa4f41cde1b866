"""Experts whose rows are sorted by expert, cut, multiplied and joined, instead of a loop that adds them up:

    counts = torch.zeros(tokens, experts).scatter(1, index, 1).sum(0).tolist()
    order = index.flatten().sort().indices
    rows = torch.cat([F.linear(part, weight[e]) for e, part in enumerate(x[order // k].split(counts))])
    y.index_add(0, order // k, rows * scores.flatten()[order, None])        or, by choices: (0, order, rows)

What comes of a row is put where the row is from, so the order doesn't matter: here rows stay in the order of the
choices, [tokens · k], and each is multiplied by its own expert's matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from autoplan.ops.experts import FUNCTIONS
from autoplan.trace.expert_loops.expert_index import unshaped
from autoplan.trace.expert_loops.expert_parts import ADDED, Product, Reader, activation
from autoplan.trace.expert_loops.forward_calls import (
    CASTS,
    MULTIPLIED,
    Call,
    Unlike,
    calls_in,
    mapped,
    out_of_place,
    result_of,
    stripped,
)
from autoplan.trace.expert_loops.loop_numbers import Share
from autoplan.trace.expert_loops.read_mixture import apart, stacked, text_between
from autoplan.trace.mixtures import added_up, each_choice

PART, JOINED = "part of an expert", "each by its expert"
DIVIDING = frozenset({"div", "divide", "floordiv", "floor_divide"})
MAKING = frozenset({"zeros", "new_zeros", "zeros_like", "scatter", "unbind"}) | DIVIDING
"""Calls that are remembered beside those of loops."""
ROW_BY_ROW = CASTS | MULTIPLIED | ADDED | (FUNCTIONS - {"slice"}) | {"contiguous", "clone", "dropout"}
CHUNKED = frozenset({"chunk", "split"})


@dataclass(frozen=True)
class Place:
    """Where rows in the order of experts are from: ``index`` [tokens, k] are the choices that were sorted.

    by_token  their tokens, else their choices
    """

    index: Call | Tensor
    by_token: bool

    @property
    def tensor(self) -> Tensor:
        return result_of(self.index)


def share_of(entry: Any) -> Share | None:
    """Of an entry of a sum, by experts, over which of them each token chose, as ``tolist`` takes them: how many the
    expert got. None for any other."""
    if not isinstance(entry, Call) or entry.name != "part" or entry.args[0].name != "unbind":
        return None
    counted, expert = entry.args[0].args[0], entry.args[1]
    if not isinstance(counted, Call) or counted.name != "sum" or len(counted.args) + len(counted.kwargs) != 2:
        return None
    of, over = unshaped(counted.args[0]), (*counted.args[1:], *counted.kwargs.values())[0]
    if not isinstance(of, Call) or of.name != "scatter" or of.kwargs or len(of.args) != 4:
        return None
    zeros, dim, index, value = of.args
    made = isinstance(zeros, Call) and zeros.name in MAKING and zeros.tensor.ndim == 2
    if not made or over not in (0, (0,), [0]) or dim % 2 != 1 or value != 1 or not isinstance(index, Call):
        return None
    return Share(index, expert)


def place_of(value: Any) -> Place | None:
    """Of the order in which sorted choices are, or its quotient by their number; None for any other."""
    if not isinstance(value, Call):
        return None
    if value.name in DIVIDING:
        by_choice = place_of(value.args[0])
        rounds = value.name not in ("div", "divide") or value.kwargs.get("rounding_mode") in ("trunc", "floor")
        if by_choice is None or by_choice.by_token or not rounds or by_choice.tensor.ndim != 2:
            return None
        return Place(by_choice.index, True) if value.args[1] == by_choice.tensor.shape[1] else None
    of = value.args[0] if value.name == "part" and value.args[1] == 1 else value
    if not isinstance(of, Call) or of.name != ("sort" if of is not value else "argsort"):
        return None
    descends = of.kwargs.get("descending", of.args[2] if len(of.args) > 2 else False)
    sorted_by = unshaped(of.args[0])
    flat = result_of(of.args[0])
    return None if descends or flat.ndim != 1 or not isinstance(sorted_by, Call) else Place(sorted_by, False)


def cut_by(sizes: Sequence[Any], dim: int, rows: Any) -> Place | None:
    """How rows lie that are cut into each expert's; None where it isn't so."""
    place = place_in(rows)
    ordered = [isinstance(one, Share) and one.expert == n for n, one in enumerate(sizes)]
    if dim != 0 or not all(ordered) or place is None:
        return None
    return place if all(result_of(one.index) is place.tensor for one in sizes) else None


def place_in(rows: Any) -> Place | None:
    """By which place rows were taken that a value is computed of, row by row."""
    if not isinstance(rows, Call):
        return None
    taken = taken_at(rows)
    if taken is not None:
        return taken[1]
    below = calls_in((rows.args, rows.kwargs)) if rows.chosen else ()
    return next((place for call in below if (place := place_in(call)) is not None), None)


def taken_at(call: Call) -> tuple[Tensor, Place] | None:
    """Of ``x[order]``: x, and the place."""
    index = call.args[1] if call.name == "getitem" else call.args[2] if call.name == "index_select" else None
    if call.name == "index_select" and call.args[1] != 0:
        return None
    place = place_of(index)
    return None if place is None else (result_of(call.args[0]), place)


def joined(parts: Sequence[Any]) -> tuple[Any, Tensor] | None:
    """Of what experts' products with their parts give, in their order: the rows that were cut, and the experts'
    matrices, [experts, out, in]. None for anything else."""
    calls = [one for one in parts if isinstance(one, Call) and one.name == "linear" and len(one.args) == 2]
    cut = [call.args[0] for call in calls]
    if len(calls) != len(parts) or not all(isinstance(one, Call) and one.name == PART for one in cut):
        return None
    if len({id(one.args[0]) for one in cut}) > 1 or [one.args[1] for one in cut] != list(range(len(cut))):
        return None
    return (cut[0].args[0], stacked([call.args[1] for call in calls])) if len(cut) == cut[0].args[2] else None


def put_back(place: Place, rows: Call) -> Tensor:
    """What is added where rows are from, [tokens, o], or [tokens · k, o] by choices. Unlike where it isn't computed of
    the rows one by one."""
    if place.by_token:
        try:
            return mixture_of(place, rows)
        except Unlike:
            pass
    natural = InOrder(place).of(rows)
    if not place.by_token:
        return natural
    tokens, choices = place.tensor.shape
    return natural.view(tokens, choices, natural.shape[1]).sum(1)


class SortedReader(Reader):
    """Takes rows apart as ``Reader`` does those of one expert."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def product(self, value: Any) -> tuple[Any, Product] | None:
        value = stripped(value)
        if not isinstance(value, Call) or value.name != JOINED:
            return None
        return value.args[0], Product(value.args[1], None, False)

    def source(self, rows: Any) -> tuple[Call | Tensor, tuple]:
        call = stripped(rows)
        taken = taken_at(call) if isinstance(call, Call) else None
        if taken is None or not taken[1].by_token or taken[1].tensor is not self.place.tensor:
            raise Unlike("an expert's rows aren't tokens that were sorted by it")
        return taken[0], ()


def mixture_of(place: Place, rows: Call) -> Tensor:
    """``autoplan::experts`` of all of them. Unlike where there is more, or less, between tokens and their sum."""
    scores, value = list[Tensor](), stripped(rows)
    while isinstance(value, Call) and value.name in MULTIPLIED:
        one, other = value.args[:2]
        if not isinstance(other, Call) or other.tensor.shape[1:] != (1,):
            raise Unlike("what multiplies an expert's result isn't one number for each row")
        scores.append(InOrder(place).of(other))
        value = stripped(one)
    reader = SortedReader(place)
    down = reader.product(value)
    if down is None:
        raise Unlike("an expert ends with more than a product")
    reader.key(down[0])
    if not reader.first or len(reader.hidden) != 1:
        raise Unlike("an expert's first products aren't all of the rows of one tensor")
    (hidden, _), products = next(iter(reader.hidden.values())), [product for _, product in reader.first.values()]
    first, last = [result_of(product.weight) for product in products], result_of(down[1].weight)
    function = activation(down[0], [call for call, _ in reader.first.values()])
    text, halves = text_between(function, len(first), first[0].shape[1] // last.shape[2])
    first = [half for weight in first for half in apart(weight, halves, 1)]
    ones = [] if scores else [rows.tensor.new_ones(rows.tensor.shape[0], 1)]
    score = reduce(torch.mul, (*scores, *ones)).reshape(place.tensor.shape)
    return added_up(result_of(hidden), place.tensor, score, first, last, [], None, text, False)


class InOrder:
    """Rows as they lie in the order of the choices, computed by what computed them in that of experts."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.known: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            raise Unlike("rows that were sorted by experts meet a tensor that wasn't")
        if not isinstance(value, Call):
            return value
        if id(value) not in self.known:
            self.known[id(value)] = self.computed(value)
        return self.known[id(value)]

    def computed(self, call: Call) -> Any:
        taken = taken_at(call)
        index = self.place.tensor
        if taken is not None:
            of, place = taken
            if place.tensor is not index:
                raise Unlike("rows are sorted by different choices")
            if not place.by_token:
                return of
            tokens, choices = index.shape
            spread = of.unsqueeze(1).expand(tokens, choices, *of.shape[1:])
            return spread.reshape(tokens * choices, *of.shape[1:])
        if call.name == JOINED:
            return each_choice(self.of(call.args[0]), index.reshape(-1), call.args[1])
        if call.name == "part":
            return self.of(call.args[0])[call.args[1]]
        if call.name == "getitem" and is_whole(call.args[1]):
            return self.of(call.args[0])[call.args[1]]
        last = call.kwargs.get("dim", call.args[2] if len(call.args) > 2 else 0) if call.name in CHUNKED else None
        if call.name not in ROW_BY_ROW and (last is None or last % call.args[0].tensor.ndim == 0):
            raise Unlike(f"{call.name} of rows that were sorted by experts isn't read")
        kwargs = {key: self.of(each) for key, each in call.kwargs.items() if key != "inplace"}
        return out_of_place(call.function)(*mapped(call.args, self.of), **kwargs)


def is_whole(index: Any) -> bool:
    """Whether an index leaves the rows as they are."""
    return isinstance(index, tuple) and index[:1] == (slice(None),) and all(one is None for one in index[1:])
