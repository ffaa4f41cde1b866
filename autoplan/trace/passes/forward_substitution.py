"""Loops that invert a triangular matrix row by row, as the one operator that does: a triangular solve.

Chunks of a delta rule need ``(I - A)⁻¹`` of a strictly lower triangular A. Where a loop assigns its rows,

    for i in range(1, n):
        a[..., i, :i] = a[..., i, :i] + (a[..., i, :i, None] * a[..., :i, :i]).sum(-2)

each step is exported as some fifteen operators. A row is what it was and its product with the rows above, which are
done: ``T = A + A T``. So what the last step leaves is T of ``(I - A) T = A``, a triangular solve with ones on the
diagonal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from autoplan.ir.graph import Node, Ref, walk_refs
from autoplan.trace.builder import Builder, overload, torch_argument

SOLVED = ("float32", "float64")  # dtypes that torch solves in
JOIN, SELECT, SLICE, UNSQUEEZE = "aten.cat.default", "aten.select.int", "aten.slice.Tensor", "aten.unsqueeze.default"

Rows = tuple[int, int]


@dataclass(frozen=True)
class Region:
    """Rows and columns of the matrices that ``whole`` holds in its last two dims."""

    whole: str
    rows: Rows
    columns: Rows


@dataclass(frozen=True)
class Step:
    """A matrix with one row done: the matrix before, and the parts of it that were read, each with the rows that it has
    to be of."""

    row: int
    before: str
    read: tuple[Region, ...]


def triangular_solves(builder: Builder, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes, where each such loop's result is made by a solve. What only its steps read is still there."""
    by_name = {node.name: node for node in nodes}
    loops = Loops(by_name)
    replaced: dict[str, tuple[Node, ...]] = {}
    for node in nodes:
        first = loops.begun_by(node)
        if first is not None:
            matrix = builder.fresh("unit_lower")
            builder.types[matrix] = node.type
            replaced[node.name] = (
                Node(matrix, "aten.neg.default", (Ref(first),), (), node.type, node.module),
                Node(
                    node.name, "aten.linalg_solve_triangular.default", (Ref(matrix), Ref(first)),
                    (("upper", False), ("left", True), ("unitriangular", True)), node.type, node.module,
                ),
            )  # fmt: skip
    return tuple(new for node in nodes for new in replaced.get(node.name, (node,)))


class Loops:
    """Finds loops among nodes.

    steps  by the name of a matrix with one row done
    """

    def __init__(self, by_name: Mapping[str, Node]) -> None:
        self.by_name = by_name
        self.steps = {name: step for name, node in by_name.items() if (step := self.step_of(node)) is not None}

    def begun_by(self, last: Node) -> str | None:
        """The matrix that a loop begins with, where this node is what its last step leaves; None else."""
        step, size = self.steps.get(last.name), last.type.shape[-1:]
        if step is None or (step.row + 1,) != size or last.type.dtype not in SOLVED:
            return None
        chain = [step]
        while chain[-1].row > 1:
            before = self.steps.get(chain[-1].before)
            if before is None or before.row != chain[-1].row - 1:
                return None
            chain.append(before)
        first = chain[-1].before
        same = {first, *(each.before for each in chain)}  # from a step's row on all are as the first
        right = all(part.whole == each.before or (part.whole in same and part.rows[0] >= each.row)
                    for each in chain for part in each.read)  # fmt: skip
        return first if right and self.strictly_lower(self.by_name.get(first)) else None

    def step_of(self, node: Node) -> Step | None:
        """``cat(rows above, the new row, rows below)``."""
        size, rank = node.type.shape[-1:], len(node.type.shape)
        if node.op != JOIN or rank < 2 or node.type.shape[-2:-1] != size or node.args[1:] != (rank - 2,):
            return None
        above, *others = (self.region(name) for name in node.operands)
        row = above.rows[1]
        lengths = [part.rows[1] - part.rows[0] for part in others]
        if row < 1 or lengths != ([1, size[0] - row - 1] if row + 1 < size[0] else [1]):
            return None
        parts = self.new_row(node.operands[1], row, rank)
        if parts is None:
            return None
        wanted = [(0, row), (row, row + 1), (0, row), (row, row + 1), (row + 1, size[0])]
        columns = [(0, size[0]), (0, row), (0, row), (row, size[0]), (0, size[0])]
        read = (above, *parts, *others[1:])
        fits = all(part.rows == r and part.columns == c for part, r, c in zip(read, wanted, columns, strict=False))
        return Step(row, above.whole, read) if fits else None

    def new_row(self, name: str, row: int, rank: int) -> tuple[Region, Region, Region] | None:
        """What a row is made of: itself up to the diagonal, the rows above, and itself from the diagonal on."""
        joined = self.made(name, UNSQUEEZE, rank - 2)
        parts = joined and self.made(joined.operands[0], JOIN, rank - 2)
        if not parts or len(parts.operands) != 2:
            return None
        done, rest = parts.operands
        added = self.by_name.get(done)
        for plain, total in pairs(added, "aten.add.Tensor"):
            summed = self.by_name.get(total)
            if summed is None or summed.op != "aten.sum.dim_IntList" or summed.kwargs:
                continue
            if summed.args[1:] not in (((rank - 2,),), ((rank - 2,), False)):
                continue
            for scale, above in pairs(self.by_name.get(summed.operands[0]), "aten.mul.Tensor"):
                column = self.made(scale, UNSQUEEZE, rank - 1)
                if column is not None and self.region(column.operands[0]) == self.region(plain):
                    return self.region(plain), self.region(above), self.region(rest)
        return None

    def made(self, name: str, op: str, dim: int) -> Node | None:
        """The node that made a value, where it is this operator along this dim."""
        node = self.by_name.get(name)
        return node if node is not None and node.op == op and node.args[1:] == (dim,) else None

    def region(self, name: str) -> Region:
        """Of which matrix's rows and columns a value is; a selected row has lost its dim."""
        node = self.by_name.get(name)
        if node is not None and node.op == SELECT:
            _, dim, index = node.args
            outer, rank = self.region(node.operands[0]), self.rank(node.operands[0])
            if dim == rank - 2 and isinstance(index, int) and self.rank(outer.whole) == rank:
                start = outer.rows[0] + index
                return Region(outer.whole, (start, start + 1), outer.columns)
        if node is not None and node.op == SLICE and len(node.args) == 4:
            _, dim, first, last = node.args
            outer, rank = self.region(node.operands[0]), self.rank(node.operands[0])
            assert isinstance(first, int) and isinstance(last, int)
            if dim == rank - 1:
                start = outer.columns[0]
                return Region(outer.whole, outer.rows, (start + first, start + last))
            if dim == rank - 2 and self.rank(outer.whole) == rank:
                start = outer.rows[0]
                return Region(outer.whole, (start + first, start + last), outer.columns)
        shape = self.by_name[name].type.shape if name in self.by_name else ()
        rows, columns = (1, 1, *shape)[-2:]
        return Region(name, (0, rows), (0, columns))

    def rank(self, name: str) -> int:
        return len(self.by_name[name].type.shape) if name in self.by_name else 0

    def strictly_lower(self, node: Node | None) -> bool:
        """Whether a matrix has zeros on its diagonal and above: it was cut there, or a constant mask put them there."""
        while node is not None and node.op == "aten.neg.default":
            node = self.by_name.get(node.operands[0])
        if node is not None and node.op == "aten.tril.default":
            diagonal = node.args[1] if len(node.args) > 1 else 0
            return isinstance(diagonal, int) and diagonal < 0
        if node is not None and node.op == "aten.masked_fill.Scalar":
            return node.args[2] == 0 and self.covers_upper(node.operands[1], True, node.type.shape)
        if node is None or node.op != "aten.where.self" or len(node.operands) != 3:
            return False
        mask, *kept = node.operands
        zero = [is_zero(self.by_name.get(name)) for name in kept]
        ways = zip(zero, (True, False), strict=True)
        return any(made and self.covers_upper(mask, value, node.type.shape) for made, value in ways)

    def covers_upper(self, name: str, value: bool, shape: Sequence[int]) -> bool:
        """Whether a mask is a constant that has this value on the diagonal and above it."""
        mask = self.by_name.get(name)
        found = None if mask is None else self.constant(mask)
        if found is None or found.dim() < 2:
            return False
        upper = torch.ones(tuple(shape[-2:]), dtype=torch.bool).triu()
        return bool(((found == value).expand(*found.shape[:-2], *shape[-2:]) | ~upper).all())

    def constant(self, node: Node) -> torch.Tensor | None:
        """The value of what is computed of no input; None where it is of one."""
        wanted, found = [node.name], dict[str, torch.Tensor]()
        while wanted:
            one = self.by_name.get(wanted[-1])
            if one is None:
                return None
            missing = [name for name in one.operands if name not in found]
            if missing:
                wanted += missing
                continue
            wanted.pop()
            if not one.op.startswith("aten."):
                return None
            function = overload(one.op)
            makes = not tuple(walk_refs((one.args, one.kwargs)))
            on = {"device": "cpu"} if makes and any(a.name == "device" for a in function._schema.arguments) else {}
            args = [torch_argument(argument, lambda ref: found[ref.name]) for argument in one.args]
            named = {key: torch_argument(value, lambda ref: found[ref.name]) for key, value in one.kwargs}
            found[one.name] = function(*args, **named, **on)
        return found[node.name]


def pairs(node: Node | None, op: str) -> tuple[tuple[str, str], ...]:
    """The two operands of a sum or a product in either order; none where it is another operator, or has options."""
    if node is None or node.op != op or len(node.args) != 2 or len(node.operands) != 2 or node.kwargs:
        return ()
    one, other = node.operands
    return (one, other), (other, one)


def is_zero(node: Node | None) -> bool:
    return node is not None and node.op == "aten.full.default" and node.args[1] == 0
