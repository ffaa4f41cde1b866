"""Experts that are written as products of all tokens, most of them zeros, computed of the tokens that chose them.

    choice[t, j]  one of the greatest of logits[t]          weight[t, e]  f(logits[t, e]) where e was chosen, else 0
    y[e, t] = activation(first[e] · (weight[t, e] · x[t])) · down[e]      result[t] = Σ_e y[e, t]

Llama 4 is written so: the scores of what wasn't chosen are -inf, and their sigmoid is 0. Where the activation of zeros
is zero, an expert gives zero for a token that didn't choose it, and no gradient of it is any other than zero. So the
result is that of ``autoplan.experts``, where each choice is a token of its own, whose weight is in it already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from autoplan.ir.graph import Argument, Node, Parameter, Ref, TensorType, Typed
from autoplan.ops.experts.activation import FUNCTIONS, activation_function
from autoplan.ops.experts.mixture import names_of
from autoplan.trace.blocks import renamed
from autoplan.trace.builder import Builder

SUM, PRODUCT, TIMES = "aten.sum.dim_IntList", "aten.matmul.default", "aten.mul.Tensor"
RESHAPE, CAST, EXPAND, TURN = "aten.reshape.default", "aten.to.dtype", "aten.expand.default", "aten.transpose.int"
SCATTER, FULL, TOP = "aten.scatter.src", "aten.full.default", "autoplan.top_indices"
OF_SCORES = {"aten.sigmoid.default": torch.sigmoid, "aten.exp.default": torch.exp, "aten.relu.default": torch.relu}
"""What may make weights of scores; of what wasn't chosen it has to make 0."""


@dataclass(frozen=True)
class Choices:
    """Which experts take a token, and how much of it they take.

    index     [tokens, k]; ``scores``: theirs, of which ``functions`` make weights, one after another
    """

    index: str
    scores: str
    functions: tuple[Node, ...]


@dataclass(frozen=True)
class Dense:
    """A sum over experts, what it is of, and the modules' weights: ``first`` in the order of ``names_of``."""

    hidden: str
    choices: Choices
    first: tuple[str, ...]
    down: str
    activation: str


def routed(
    builder: Builder, nodes: Sequence[Node], output: str, parameters: Iterable[Parameter]
) -> tuple[tuple[Node, ...], str]:
    """The nodes with such sums as ``autoplan.experts``, and the output's name among them. What nothing reads any more
    is still there."""
    weights = frozenset(builder.enter(p.name, p.type).name for p in parameters)  # pieces are new to it
    finder = Finder(nodes, output, builder.types, weights)
    names: dict[str, str] = {}
    kept: list[Node] = []
    for node in nodes:
        found = finder.dense(node)
        if found is None:
            kept.append(renamed(node, names))
            continue
        made = Builder(Typed(name, kind) for name, kind in builder.types.items())
        made.module = node.module
        names[node.name] = written(made, found).name
        builder.types.update(made.types)
        kept += [renamed(new, names) for new in made.nodes.values()]
    return tuple(kept), names.get(output, output)


class Finder:
    """Finds such sums by how they are computed; their products may have no other reader."""

    def __init__(
        self, nodes: Sequence[Node], output: str, types: Mapping[str, TensorType], parameters: frozenset[str]
    ) -> None:  # fmt: skip
        self.nodes, self.types, self.parameters = {node.name: node for node in nodes}, types, parameters
        self.readers = Counter(name for node in nodes for name in set(node.operands)) + Counter([output])

    def made_by(self, value: Argument | str, op: str) -> Node | None:
        name = value.name if isinstance(value, Ref) else value
        node = self.nodes.get(name) if isinstance(name, str) else None
        return node if node is not None and node.op == op else None

    def behind(self, value: Argument, *ops: str) -> str:
        """What a value is, before these operators."""
        assert isinstance(value, Ref)
        node = self.nodes.get(value.name)
        while node is not None and node.op in ops:
            value = Ref(node.operands[0])
            node = self.nodes.get(value.name)
        return value.name

    def dense(self, total: Node) -> Dense | None:
        """What a sum over the first dim is, of products with a weight of each expert."""
        if total.op != SUM or total.args[1:] not in (((0,),), ((0,), False)) or total.kwargs:
            return None
        last = self.product(total.args[0])
        if last is None:
            return None
        expression = Expression(self)
        text = expression.text(last.args[0])
        if text is None or not 1 <= len(expression.products) <= 2:
            return None
        entered = {product.operands[0] for product in expression.products}
        products = sorted(expression.products, key=list(self.nodes.values()).index)
        names = names_of(products)
        activation = text.format(*(names[products.index(product)] for product in expression.products))
        if len(entered) != 1 or not zero_of_zeros(activation, names):
            return None
        found = self.scaled(entered.pop())
        first = tuple(product.operands[1] for product in products)
        return None if found is None else Dense(*found, first, last.operands[1], activation)

    def product(self, value: Argument) -> Node | None:
        """[e, t, in] by a parameter [e, in, out], which one other value reads."""
        node = self.made_by(value, PRODUCT)
        if node is None or len(node.operands) != 2 or self.readers[node.name] != 1 or len(node.type.shape) != 3:
            return None
        return node if self.weighs(node.operands[1]) else None

    def weighs(self, name: str) -> bool:
        """Whether it is a parameter of each expert, [e, in, out]."""
        return name in self.parameters and len(self.shape(name)) == 3

    def scaled(self, name: str) -> tuple[str, Choices] | None:
        """Tokens [.., h] and their choices, of which each expert's rows are made: [e, t, h]."""
        shape, times = self.shape(name), self.made_by(self.behind(Ref(name), RESHAPE), TIMES)
        if times is None or len(times.operands) != 2 or len(shape) != 3:
            return None
        for tokens, weights in (times.operands, times.operands[::-1]):
            hidden, choices = self.tokens(tokens, shape), self.weights(weights, shape)
            if hidden is not None and choices is not None:
                return hidden, choices
        return None

    def tokens(self, name: str, shape: Sequence[int]) -> str | None:
        """The tokens that a value [e, t, h], whatever its shape, repeats for each expert; with the dims that they had
        before they were put into a row."""
        spread = self.made_by(self.behind(Ref(name), RESHAPE), EXPAND)
        if spread is None or spread.type.shape != tuple(shape):
            return None
        before = spread.operands[0]
        hidden = self.behind(Ref(before), RESHAPE, "aten.unsqueeze.default")
        fits = self.shape(before) == (1, *shape[1:]) and self.shape(hidden)[-1:] == (shape[2],)
        return hidden if fits and len(self.shape(hidden)) > 1 else None

    def weights(self, name: str, shape: Sequence[int]) -> Choices | None:
        """The choices whose weights a value has for each expert and token: [e, t], whatever its shape."""
        experts, tokens, _ = shape
        turned = self.made_by(self.behind(Ref(name), RESHAPE, CAST, "aten.unsqueeze.default"), TURN)
        if turned is None or turned.type.shape != (experts, tokens) or set(turned.args[1:]) not in ({0, 1}, {-1, -2}):
            return None
        functions, value = list[Node](), turned.operands[0]
        while (node := self.nodes.get(value)) is not None and node.op in (*OF_SCORES, CAST):
            functions.insert(0, node)
            value = node.operands[0]
        scattered = self.made_by(value, SCATTER)
        if scattered is None or scattered.args[1] not in (1, -1) or len(scattered.operands) != 3:
            return None
        onto, index, scores = scattered.operands
        filled, top = self.made_by(onto, FULL), self.made_by(index, TOP)
        if filled is None or top is None or top.args[2] not in (1, -1) or top.type.shape != self.shape(scores):
            return None
        fill = filled.args[1]
        rest = torch.tensor(fill if isinstance(fill, (bool, int, float)) else 1.0, dtype=torch.float64)
        for function in functions:
            rest = OF_SCORES[function.op](rest) if function.op in OF_SCORES else rest
        among = self.shape(top.operands[0]) == (tokens, experts)
        return Choices(index, scores, tuple(functions)) if among and rest == 0 else None

    def shape(self, name: str) -> tuple[int, ...]:
        return self.types[name].shape


class Expression:
    """The text of an activation over first products, which stand in it as {0}, {1}, in the order of ``products``."""

    def __init__(self, finder: Finder) -> None:
        self.finder = finder
        self.products: list[Node] = []

    def text(self, value: Argument) -> str | None:
        if not isinstance(value, Ref):
            return repr(value) if value is None or isinstance(value, (bool, int, float)) else None
        node = self.finder.nodes.get(value.name)
        if node is None:
            return None
        if node.op == PRODUCT:
            return self.product(node)
        name = node.op.split(".")[1]
        if name not in FUNCTIONS or name == "slice" or not node.op.startswith("aten."):
            return None
        parts = [self.text(argument) for argument in node.args]
        named = [(key, text_of_keyword(argument)) for key, argument in node.kwargs]
        if None in parts or any(text is None for _, text in named):
            return None
        return f"{name}({', '.join([*map(str, parts), *(f'{key}={text}' for key, text in named)])})"

    def product(self, node: Node) -> str | None:
        if node not in self.products:
            if len(node.operands) != 2 or not self.finder.weighs(node.operands[1]) or len(node.type.shape) != 3:
                return None
            self.products.append(node)
        return f"{{{self.products.index(node)}}}"


def text_of_keyword(value: Argument) -> str | None:
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else None


def zero_of_zeros(activation: str, names: Sequence[str]) -> bool:
    zeros = [torch.zeros((), dtype=torch.float64) for _ in names]
    return bool(activation_function(activation, tuple(names))(*zeros) == 0)


def written(b: Builder, found: Dense) -> Ref:
    """The sum, [tokens, o]. The choices of a token lie one after another, as tokens of a row of the batch."""
    hidden, index, weight = Ref(found.hidden), Ref(found.choices.index), Ref(found.choices.scores)
    for function in found.choices.functions:
        weight = b.emit(function.op, weight, *function.args[1:], kwargs=function.kwargs)
    weight = b.cast(weight, b.type(hidden).dtype)
    (*lead, width), choices = b.shape(hidden), b.shape(index)[-1]
    rows = (*lead[:-1], lead[-1] * choices)
    if choices == 1:
        scaled = b.emit(TIMES, hidden, b.reshape(weight, (*lead, 1)))
    else:
        apart = b.reshape(hidden, (*lead, 1, width))
        each = b.emit(TIMES, apart, b.reshape(weight, (*lead, choices, 1)))
        scaled = b.reshape(each, (*rows, width))
    ones = b.full((*rows, 1), 1, b.type(hidden).dtype)
    result = b.emit(
        "autoplan.experts", scaled, b.reshape(index, (*rows, 1)), ones, tuple(map(Ref, found.first)), Ref(found.down),
        (), found.activation, True, True,
        type=TensorType((*rows, b.shape(Ref(found.down))[2]), b.type(scaled).dtype), hint="experts",
    )  # fmt: skip
    if choices > 1:
        apart = b.reshape(result, (*lead, choices, b.shape(result)[-1]))
        result = b.emit(SUM, apart, (len(lead),), False)
    return b.reshape(result, (prod(lead), b.shape(result)[-1]))
