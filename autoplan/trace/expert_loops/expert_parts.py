"""What one expert of a loop adds to the sum: its products, what runs between them, and its scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from autoplan.trace.expert_loops.expert_index import Selection
from autoplan.trace.expert_loops.forward_calls import (
    DROPPING,
    MULTIPLIED,
    SHAPED,
    TURNED,
    Call,
    Unlike,
    calls_in,
    mapped,
    out_of_place,
    result_of,
    stripped,
    undropped,
)

PRODUCTS = frozenset({"linear", "matmul", "mm", "rmatmul"})
ADDED = frozenset({"add", "radd", "iadd"})


@dataclass(frozen=True)
class Product:
    """rows · weight + bias; ``turned``: whether the weight is [in, out]."""

    weight: Call | Tensor
    bias: Call | Tensor | None
    turned: bool


@dataclass(frozen=True)
class Part:
    """What one expert adds.

    selection  of the tokens that it gets
    hidden     of which tensor the rows are, by which places
    scores     (of which tensor, by what it is indexed); none where it is all ones
    factor     a number that multiplies them
    first      before the activation; none for an expert that gives its rows back
    down       behind it
    function   the activation, of the first products
    key        equal for experts that compute alike
    drops      the parts that dropouts drop: between the products, and of what the expert gives
    """

    selection: Selection
    hidden: tuple[Call | Tensor, tuple]
    scores: tuple[tuple[Call | Tensor, tuple], ...]
    factor: float
    first: tuple[Product, ...] = ()
    down: Product | None = None
    function: Callable[..., Tensor] | None = None
    key: object = None
    drops: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())


def part_of(rows: Any, selection: Selection) -> Part:
    """Reads what is added at a selection's places. Unlike where it is no expert's."""
    given: list[float] = []
    scores, factor, value = [], 1.0, stripped(rows, given)
    while isinstance(value, Call) and value.name in MULTIPLIED and value.chosen:
        one, other = value.args[:2]
        if not of_rows(one):
            one, other = other, one
        if of_rows(other):
            break  # both follow from the rows: it is a gate
        if isinstance(other, (int, float)):
            factor *= other
        else:
            scores.append(indexed(other, "what multiplies an expert's result"))
        value = stripped(one, given)
    found = Reader()
    down = found.product(value)
    if down is None and given:
        raise Unlike("an expert drops some of its own tokens, which it gives back")
    if down is None:
        return Part(selection, indexed(value, "what an expert computes"), tuple(scores), factor)
    between, product = down
    between, inner = undropped(between)
    key = found.key(between)
    if not found.first or len(found.hidden) != 1:
        raise Unlike("an expert's first products aren't all of the rows of one tensor")
    first = tuple(found.first.values())
    return Part(
        selection, next(iter(found.hidden.values())), tuple(scores), factor, tuple(p for _, p in first), product,
        activation(between, [call for call, _ in first]), (key, inner, tuple(given)), (inner, tuple(given)),
    )  # fmt: skip


def of_rows(value: Any) -> bool:
    """Whether a product, or the rows of more dims than scores have, is in a value."""
    if not isinstance(value, Call) or not value.chosen:
        return False
    if value.name in PRODUCTS:
        return True
    if value.name == "getitem":
        return value.tensor.ndim > 1 and value.tensor.shape[-1] > 1
    return any(map(of_rows, calls_in(value.args)))


def indexed(value: Any, what: str) -> tuple[Call | Tensor, tuple]:
    """Of which tensor these are rows, by what it is indexed."""
    call = stripped(value)
    if isinstance(call, Call) and call.chosen and not getattr(call.args[0], "chosen", False):
        if call.name == "getitem":
            return call.args[0], call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
        if call.name == "index_select" and call.args[1] == 0:
            return call.args[0], (call.args[2],)
    raise Unlike(f"{what} isn't rows of a tensor by the places that torch.where gave")


class Reader:
    """Takes an expert apart, from its result to its rows.

    first   its first products with their calls, by the call's id, in their order
    hidden  of what their rows are, by that call's id
    """

    def __init__(self) -> None:
        self.first: dict[int, tuple[Call, Product]] = {}
        self.hidden: dict[int, tuple[Call | Tensor, tuple]] = {}

    def source(self, rows: Any) -> tuple[Call | Tensor, tuple]:
        """Of which tensor a first product's rows are, and by which places."""
        return indexed(rows, "what an expert's first product reads")

    def product(self, value: Any) -> tuple[Any, Product] | None:
        """What a product reads, and the product; None where a value is none."""
        value = stripped(value)
        if isinstance(value, Call) and value.name in ADDED and value.chosen:
            below = self.product(value.args[0])
            bias = value.args[1]
            if below is None or below[1].bias is not None or getattr(bias, "chosen", False):
                return None
            return below[0], Product(below[1].weight, bias, below[1].turned)
        if not isinstance(value, Call) or value.name not in PRODUCTS or not value.chosen:
            return None
        rows, weight = value.args[:2]
        bias = value.args[2] if len(value.args) > 2 else value.kwargs.get("bias")
        if not getattr(rows, "chosen", False) or result_of(weight).ndim != 2:
            raise Unlike("an expert's product isn't of its rows by a matrix")
        turned = value.name != "linear"
        while isinstance(weight, Call) and weight.name in TURNED:
            weight, turned = weight.args[0], not turned
        return rows, Product(weight, bias, turned)

    def key(self, value: Any) -> object:
        """What a value computes of the first products, which are entered."""
        if not isinstance(value, Call):
            if isinstance(value, Tensor):
                raise Unlike("an activation reads a tensor beside the products")
            return tuple(map(self.key, value)) if isinstance(value, (tuple, list)) else repr(value)
        if not value.chosen:
            raise Unlike("an activation reads a tensor beside the products")
        made = self.product(value)
        if made is not None:
            if id(value) not in self.first:
                rows, product = made
                self.hidden[id(stripped(rows))] = self.source(rows)
                self.first[id(value)] = value, product
            return "product", list(self.first).index(id(value))
        if value.name in DROPPING | SHAPED:
            below = stripped(value)
            if isinstance(below, Call):
                return self.key(below)
        return (
            value.name, tuple(map(self.key, value.args)), tuple((k, self.key(v)) for k, v in value.kwargs.items())
        )


def activation(value: Any, products: list[Call]) -> Callable[..., Tensor]:
    """What is computed of the products, as a function of tensors in their place."""

    def function(*given: Tensor) -> Tensor:
        known: dict[int, Any] = {id(call): tensor for call, tensor in zip(products, given, strict=True)}

        def of(one: Any) -> Any:
            if not isinstance(one, Call):
                return one
            if id(one) not in known:
                if one.name in DROPPING | SHAPED:
                    known[id(one)] = of(one.args[0])
                else:
                    kwargs = {key: of(each) for key, each in one.kwargs.items() if key != "inplace"}
                    known[id(one)] = out_of_place(one.function)(*mapped(one.args, of), **kwargs)
            return known[id(one)]

        return of(value)

    return function


