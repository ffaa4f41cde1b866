"""Named systems that use one axis to split rows, and leave parameters whole but for one kind.

    ulysses           activations split along the sequence, attention by heads: an all-to-all each of queries, keys and
                      values, and one of the result back (Jacobs et al. 2023)
    context-parallel  activations split along the sequence; attention by rows of the queries, keys and values gathered
    ring-attention    the same, but keys and values go round (Liu, Zaharia and Abbeel 2023); not where attention is
                      written out, as one with sinks is
    vocab-parallel    the table of the tokens, the output head and the loss split by vocabulary (Shoeybi et al. 2019,
                      section 3)
    expert-parallel   a mixture's experts split (Lepikhin et al. 2020), in whichever of two ways is cheaper:
    expert-all-to-all    tokens travel to the ranks that have their experts, and back
    expert-partial-sum   ranks have each other's tokens and add up what their experts give
    table-parallel    a recommender's tables on the ranks that ``autoplan.search.tables`` places them on, whole, by rows
    or by
                      columns; indices travel to them, and vectors back

The first three split along the sequence whatever has one; in the others all else is split by rows, of the batch or of
the sequence, as is cheaper: data parallel on that axis too. What is not said is left to the search.

A system lies on the tensor axis where it is named. The context's axis has one of the first three, and the experts' axis
has expert-parallel, beside whatever the tensor axis has (``axis_systems``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoplan.cost import Operator, weights_of
from autoplan.errors import ParallelismError
from autoplan.ir.graph import Block, Model, Node, TensorType
from autoplan.ir.layout import R, S, State
from autoplan.ir.mesh import CONTEXT, CONTEXTS, EXPERT, TENSOR, Mesh
from autoplan.rules.registry import AxisStrategy
from autoplan.rules.strategies import Strategy
from autoplan.search.space.tensor_axes import SYSTEMS as GRIDS
from autoplan.search.space.tensor_axes import LayoutRequirements, Role, System, product_role

SEQUENCE = 1  # the dim of an activation [batch, sequence, features]
EXPERT_BODIES = ("local_experts", "routed_experts")
EXPERTS, LOOK_UP, TABLES = "autoplan.experts", "aten.embedding.default", "autoplan.lookups"
SCORES = "aten.softmax.int"
LOSSES = ("autoplan.cross_entropy", "autoplan.weighted_cross_entropy")
Operators = Sequence[Mapping[str, Operator]]


@dataclass(frozen=True)
class RowSystem:
    """What a named system asks.

    attention  how attention is split where activations are split along the sequence: "heads", "rows", "ring"; "" where
               rows of the batch will do
    splits     the operators that are split by their parameters: "vocabulary", "experts", "tables"; "" for none
    travels    the body by which tokens meet experts; "" for any that splits them
    axis       on which it lies
    """

    name: str
    attention: str = ""
    splits: str = ""
    travels: str = ""
    axis: str = TENSOR[0]

    whole: tuple[str, ...] = ()
    gathered: str = ""

    @property
    def axes(self) -> tuple[str, ...]:
        return (self.axis,)

    @property
    def beside(self) -> bool:
        """Whether tensor axes may lie beside it: there nothing that carries a gradient is computed on all ranks, and
        few layouts are left to be searched."""
        return self.axis in (*CONTEXTS, EXPERT)

    def asked(self, ways: int) -> str:
        """How a user asks for it."""
        if self.axis in CONTEXTS:
            return f"{CONTEXT}={ways} with cp_attention={self.attention!r}"
        return f"ep={ways}" if self.axis == EXPERT else f"parallelism={self.name!r}"

    @property
    def pinned(self) -> str:
        """What a user pins the size of."""
        return CONTEXT if self.axis in CONTEXTS else self.axis

    def size(self, mesh: Mesh) -> int:
        """Of what the axis is a part of."""
        return mesh.context_size if self.axis in CONTEXTS else mesh.size(self.axis)

    def between(self, axis: str, kind: TensorType) -> tuple[State, ...]:
        """The states that an activation between blocks may have; none where any will do."""
        if self.attention:
            return (S(SEQUENCE),) if has_sequence(kind) else ()
        return tuple(S(dim) for dim in range(len(kind.shape) - 1))

    def stored(self, axis: str, kind: TensorType, product: bool) -> tuple[State, ...]:
        """As it is used, split by what no operator but those of ``splits`` takes, or whole, each rank's gradient a
        summand: these are summed up once a step."""
        if self.beside:
            return (R, S(0)) if self.splits == "experts" else (R,)
        return (R, *(S(dim) for dim in range(len(kind.shape))))

    def special(self, model: Model, operators: Operators) -> Mapping[tuple[int, str], Role]:
        """The operators that are split by their parameters, and what they are, by (block, name)."""
        found: dict[tuple[int, str], str] = {}
        for index, block in enumerate(model.blocks):
            if self.splits == "experts":
                found |= {(index, n.name): "experts" for n in block.nodes if n.op == EXPERTS}
            if self.splits == "tables":
                found |= {(index, n.name): "tables" for n in block.nodes if n.op == TABLES}
            if self.splits == "vocabulary":
                last = index == model.segments[-1].block
                found |= {(index, n): role for n, role in vocabulary(block, operators[index], table_rows(model), last)}
        return {key: (self.axis, role) for key, role in found.items()}

    def check(self, model: Model, operators: Operators, mesh: Mesh) -> None:
        """ParallelismError where the model has nothing that this system splits, or sizes don't divide."""
        ways = self.size(mesh)
        value = self.asked(ways)
        if self.attention:
            self.check_sequence(model, operators, ways)
        roles = {role for _, role in self.special(model, operators).values()}
        if self.splits == "experts" and not roles:
            raise ParallelismError(value, "the model has no mixture of experts", "use another system, such as 'zero3'")
        if self.splits == "tables" and not roles:
            cause = "the model has no tables that are looked up by rows of the batch, each once"
            raise ParallelismError(value, cause, "use another system, such as 'zero3'")
        if self.splits == "vocabulary" and not roles & {"table", "head"}:
            raise ParallelismError(value, "the model has no table of tokens", "use another system, such as 'zero3'")
        size = table_rows(model)
        if self.splits == "vocabulary" and size % ways:
            raise ParallelismError(
                value, f"a vocabulary of {size} doesn't divide by {self.axis}={ways}",
                f"pad it to {math.ceil(size / ways) * ways} (resize_token_embeddings(pad_to_multiple_of={ways})), or "
                f"pin another {self.axis}",
            )  # fmt: skip

    def check_sequence(self, model: Model, operators: Operators, ways: int) -> None:
        value = self.asked(ways)
        kinds = [v.type for block in model.blocks for v in block.inputs if has_sequence(v.type)]
        if not kinds or not any(attends(o) for own in operators for o in own.values()):
            raise ParallelismError(
                value, "the model has no attention over a sequence, [batch, sequence, features] between its blocks",
                "use another system; attention is scaled_dot_product_attention, or a softmax over [batch, heads, rows, "
                "keys]",
            )  # fmt: skip
        for size in {kind.shape[SEQUENCE] for kind in kinds}:
            if size % ways:
                raise ParallelismError(
                    value, f"a sequence of {size} doesn't divide by {self.pinned}={ways}",
                    f"give one of {math.ceil(size / ways) * ways}, or pin a {self.pinned} that divides it",
                )  # fmt: skip

    def ways(self, asked: LayoutRequirements, found: Sequence[Strategy]) -> tuple[Strategy, ...]:
        """Of an operator's strategies those of this system."""
        if asked.role[0] == self.axis or asked.role[1] == self.splits == "experts":
            return self.by_parameters(asked, found)
        if self.attention and attends(asked.operator):
            return self.of_attention(asked, found)
        held = asked.held
        left = [s for s in found if all(s.on(self.axis).inputs[i].kind in "RI" for i in held)]
        if self.attention:
            left = [s for s in left if not asked.rows or s.on(self.axis).factor != asked.rows]
        if asked.operator.rule.cost == "matmul" and held == (1,):
            left = [s for s in left if product_role(asked.operator, s.on(self.axis)) == "m"] or left
        elif held:
            last = len(asked.operator.node.type.shape) - 1
            left = [s for s in left if s.on(self.axis).output in [S(dim) for dim in range(last)]] or left
        elif self.beside and asked.operator.result_carries:
            left = [s for s in left if s.on(self.axis).output.kind == "S"] or left
        return tuple(left or found)

    def of_attention(self, asked: LayoutRequirements, found: Sequence[Strategy]) -> tuple[Strategy, ...]:
        operator = asked.operator
        heads, rows = len(operator.operands[0].shape) - 3, len(operator.operands[0].shape) - 2
        wanted = {"heads": S(heads), "rows": S(rows), "ring": S(rows)}[self.attention]

        def asks(way: AxisStrategy) -> bool:
            ring = way.body == "ring_attention"
            return way.inputs[0] == way.output == wanted and ring == (self.attention == "ring")

        left = tuple(s for s in found if asks(s.on(self.axis)))
        if not left:
            raise self.no_attention(operator, heads, self.size(asked.mesh))
        return left

    def no_attention(self, operator: Operator, heads: int, ways: int) -> ParallelismError:
        """The error where attention can't be split as asked."""
        where, value = operator.node.module or operator.node.name, self.asked(ways)
        if self.attention == "heads":
            count = operator.operands[0].shape[heads]
            fits = math.gcd(count, ways)
            remedy = f"pin {self.pinned}={fits}" if fits > 1 else "use 'context-parallel', which splits rows"
            return ParallelismError(value, f"the {count} heads of {where} don't divide by {self.pinned}={ways}", remedy)
        dropout = operator.node.args[4] if len(operator.node.args) > 4 else 0.0
        if dropout:
            cause = f"attention of {where} drops probabilities (p={dropout}), which rows on several ranks can't"
            return ParallelismError(value, cause, "set the model's attention dropout to 0, or use 'ulysses'")
        cause = f"the rows, keys or mask of attention in {where} can't be split over {self.pinned}={ways}"
        remedy = f"use 'ulysses' or 'context-parallel', or pin another {self.pinned}"
        if self.attention == "ring" and operator.node.op == SCORES:
            cause = f"attention in {where} is written out, so its keys and values can't go round"
        return ParallelismError(value, cause, remedy)

    def by_parameters(self, asked: LayoutRequirements, found: Sequence[Strategy]) -> tuple[Strategy, ...]:
        """Of an operator that this system splits by its parameters: a table by its rows, the head by its outputs, the
        loss by classes, a mixture by its experts. What lies between head and loss is free."""
        wanted = {
            "table": lambda way: way.inputs[0] == S(0),
            "head": lambda way: product_role(asked.operator, way) == "n",
            "between": lambda way: True,
            "loss": lambda way: way.body.startswith("vocab_parallel_"),
            "tables": lambda way: way.body == "placed_lookups",
            "experts": lambda way: way.body in ((self.travels,) if self.travels else EXPERT_BODIES),
        }[asked.role[1]]
        left = tuple(s for s in found if wanted(s.on(self.axis)))
        if not left:
            size, ways = asked.operator.operands[-1].shape[0], asked.mesh.size(self.axis)
            what = f"{size} experts" if asked.role[1] == "experts" else f"{asked.operator.node.op}"
            fits = math.gcd(size, ways)
            raise ParallelismError(
                self.asked(ways), f"{what} of {asked.operator.node.module or asked.operator.node.name} "
                f"can't be split over {self.axis}={ways}",
                f"pin {self.axis}={fits}" if 1 < fits < ways else "use another system",
            )  # fmt: skip
        return left


def attends(operator: Operator) -> bool:
    """Whether it is an attention, or the softmax of one that is written out: over [batch, heads, rows, keys]."""
    return operator.rule.cost == "attention" or (operator.node.op == SCORES and len(operator.operands[0].shape) == 4)


def has_sequence(kind: TensorType) -> bool:
    return len(kind.shape) == 3


def table_rows(model: Model) -> int:
    """Of the largest table that is looked up: the vocabulary; 0 where there is none."""
    sizes = [0]
    for block in model.blocks:
        types, own = block.types(), {p.name for p in block.parameters}
        looked = (n.operands[0] for n in block.nodes if n.op == LOOK_UP and n.operands[0] in own)
        sizes += [types[name].shape[0] for name in looked]
    return max(sizes)


def vocabulary(block: Block, operators: Mapping[str, Operator], rows: int, last: bool) -> Iterator[tuple[str, str]]:
    """(operator, role) of those that the vocabulary splits: look-ups in its table; in the ``last`` block the product
    that the loss' logits (or the model's result) come from, what is computed in between, and the loss."""
    types, weights = block.types(), weights_of(block)
    for node in block.nodes:
        if node.op == LOOK_UP and node.operands[0] in weights and types[node.operands[0]].shape[0] == rows:
            yield node.name, "table"
    makers = {node.name: node for node in block.nodes}
    losses = [node for node in block.nodes if node.op in LOSSES]
    ends = [node.operands[0] for node in losses] or (list(block.outputs) if last else [])
    for end in ends:
        path = list(to_head(end, makers, operators, weights, rows))
        if path and path[-1][1] == "head":
            yield from path
            yield from ((loss.name, "loss") for loss in losses if loss.operands[0] == end)


def to_head(
    name: str, makers: Mapping[str, Node], operators: Mapping[str, Operator], weights: frozenset[str], rows: int
) -> Iterator[tuple[str, str]]:
    """From logits back to the product that makes them, through what keeps their classes."""
    while name in makers and makers[name].type.shape[-1:] == (rows,):
        node = makers[name]
        if operators[name].rule.cost == "matmul" and len(node.operands) > 1 and node.operands[1] in weights:
            yield name, "head"
            return
        yield name, "between"
        if not node.operands:
            return
        name = node.operands[0]


ROW_SYSTEMS: Mapping[str, RowSystem] = {
    "ulysses": RowSystem("ulysses", attention="heads"),
    "context-parallel": RowSystem("context-parallel", attention="rows"),
    "ring-attention": RowSystem("ring-attention", attention="ring"),
    "vocab-parallel": RowSystem("vocab-parallel", splits="vocabulary"),
    "expert-parallel": RowSystem("expert-parallel", splits="experts"),
    "expert-all-to-all": RowSystem("expert-all-to-all", splits="experts", travels="routed_experts"),
    "table-parallel": RowSystem("table-parallel", splits="tables"),
    "expert-partial-sum": RowSystem("expert-partial-sum", splits="experts", travels="local_experts"),
}
LAYOUTS: Mapping[str, System] = {**GRIDS, **ROW_SYSTEMS}
"""Every system that says how tensors lie on the tensor axes, by name."""
