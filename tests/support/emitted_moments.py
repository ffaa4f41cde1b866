"""What a compiled block holds while it runs, read off its emitted statements: each storage from one kernel to another.

Written without the walk of ``search.block_cost.live_compiled``: a storage here is an interval of kernels, and a moment
the sum of the intervals that it lies in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.cost import Operator
from autoplan.cost.prices import COPYING, HALF
from autoplan.ir.graph import DTYPE_BYTES, walk_refs
from autoplan.ir.typed_program import Compute, LoweredBlock, Move, Statement, TypedValue

ALWAYS = 1 << 30


def local_bytes(value: TypedValue) -> int:
    return math.prod(value.local_shape) * DTYPE_BYTES[value.type.dtype]


def operands(statement: Compute) -> list[str]:
    """Names of the tensors that an emitted operator reads, in order."""
    arguments = (*statement.args, *(value for _, value in statement.kwargs))
    return list(dict.fromkeys(ref.name for argument in arguments for ref in walk_refs(argument)))


@dataclass
class Moments:
    """``kept`` until the backward, ``working`` beside it at most."""

    kept: int
    working: int


def moments_of(block: LoweredBlock, operators: Mapping[str, Operator], carries: set[str], training: bool) -> Moments:
    """``carries``: the values that have a gradient, moved ones among them."""
    return _Block(block, operators, carries, training).moments()


class _Block:
    def __init__(
        self, block: LoweredBlock, operators: Mapping[str, Operator], carries: set[str], training: bool
    ) -> None:
        self.block, self.operators, self.carries, self.training = block, operators, carries, training
        given = (*block.inputs, *block.externals, *block.parameters, *block.buffers)
        values = (*given, *(s.value for s in block.body))
        self.sizes = {v.name: local_bytes(v) for v in values}
        self.half = {v.name for v in values if v.type.dtype in HALF}
        self.parameters = {v.name for v in block.parameters}
        self.root = {v.name: v.name for v in given}
        for statement in block.body:
            name = statement.value.name
            self.root[name] = self.root[self.reads(statement)[0]] if self.stays(statement) else name
        self.units = self.in_kernels()
        self.made = {s.value.name: place for place, unit in enumerate(self.units) for s in unit}
        self.outputs = {self.root[v.name] for v in block.outputs}
        self.gathered = self.gathered_parameters()

    def reads(self, statement: Statement) -> list[str]:
        return [statement.source] if isinstance(statement, Move) else operands(statement)

    def stays(self, statement: Statement) -> bool:
        """Whether it leaves its operand where it is: a view of it, or the same under another layout."""
        if isinstance(statement, Move):
            return not any(step.forward or step.op in COPYING for step in statement.collectives)
        return self.operators[statement.value.name].rule.cost == "free" and bool(self.reads(statement))

    def in_kernels(self) -> list[list[Statement]]:
        kernels: dict[str, list[Statement]] = {}
        for statement in self.block.body:
            name = statement.value.name
            if self.root[name] == name:
                key = name if isinstance(statement, Move) else f"kernel {self.operators[name].kernel}"
                kernels[key] = [*kernels.pop(key, []), statement]
        return list(kernels.values())

    def gathered_parameters(self) -> set[str]:
        found, stored = set(), {name: name for name in self.parameters}
        for statement in self.block.body:
            if isinstance(statement, Move) and statement.source in stored:
                own = stored[statement.value.name] = stored[statement.source]
                if self.sizes[statement.value.name] > self.sizes[own]:
                    found.add(self.root[statement.value.name])
        return found

    def saved(self, unit: Sequence[Statement]) -> set[str]:
        found = {self.root[name] for s in unit for name in self.reads(s)} & self.gathered
        for statement in unit:
            if isinstance(statement, Compute):
                places = self.operators[statement.value.name].keeps
                names = [statement.value.name if p == "out" else self.reads(statement)[int(p)] for p in places]
                found |= {self.root[name] for name in names}
        return found

    def beside(self, unit: Sequence[Statement]) -> float:
        if not self.training:
            return 0.0
        computed = [s for s in unit if isinstance(s, Compute)]
        return sum(self.operators[s.value.name].beside * math.prod(s.value.local_shape) for s in computed)

    def moments(self) -> Moments:
        count = len(self.units)
        saved = [self.saved(unit) if self.training else set() for unit in self.units]
        beside = [self.beside(unit) for unit in self.units]
        kept = set().union(*saved, self.gathered if self.training else set())
        total = sum(self.sizes[name] for name in kept) + sum(beside)
        entered = sum(self.sizes[v.name] for v in self.block.inputs if v.name in kept)
        moved = {self.root[s.source] for s in self.block.body if isinstance(s, Move)}
        stored = {n for n in self.made if n in moved or n not in self.operators or self.operators[n].writes}
        last: dict[str, int] = {}
        for place, unit in enumerate(self.units):
            last |= {self.root[name]: place for s in unit for name in self.reads(s)}
        ends = {n: ALWAYS if n in kept | self.outputs else last.get(n, self.made[n]) for n in stored}
        forward = [
            sum(self.sizes[n] for n in stored if self.made[n] <= at <= ends[n]) + sum(beside[: at + 1])
            - self.overlap(at, [n for n in stored if self.made[n] < at == ends[n]],
                           [n for n in stored if self.made[n] == at])
            for at in range(count)
        ]
        ahead = max(forward, default=0) - (total - entered)
        if not self.training:
            return Moments(0, round(max(forward, default=0)))
        first = {
            name: min(at for at in range(count) if name in saved[at]) for name in kept if any(name in s for s in saved)
        }
        gradients = self.gradients(stored)
        back = [
            sum(self.sizes[n] for n in kept if first.get(n, -1) <= at) + sum(beside[: at + 1])
            + sum(self.sizes[n] for n, born, died in gradients if died <= at <= born)
            + (self.widened(self.units[at]) if at < count else 0)
            - (self.written_over(at, [n for n in kept if first.get(n, -1) == at], gradients) if at < count else 0)
            for at in range(count + 1)
        ]  # fmt: skip
        return Moments(round(total), round(max(0, ahead, max(back) - total)))

    def widened(self, unit: Sequence[Statement]) -> int:
        """Bytes of a table's gradient in float32, in which it is added up."""
        lookups = [s for s in unit if isinstance(s, Compute) and s.op == "aten.embedding.default"]
        tables = [self.reads(s)[0] for s in lookups]
        return sum(2 * self.sizes[name] for name in tables if name in self.half & self.carries)

    def written_over(self, at: int, gone: Sequence[str], gradients: Sequence[tuple[str, int, int]]) -> int:
        """Bytes that a kernel's backward writes where something ends: no input of the block, no parameter, no gradient
        of a result."""
        given = {v.name for v in (*self.block.inputs, *self.block.parameters)} | self.outputs
        ended = [n for n in gone if n not in given]
        ended += [n for n, _, died in gradients if died == at and n not in self.outputs | self.parameters]
        return self.overlap(at, ended, [n for n, born, _ in gradients if born == at])

    def overlap(self, at: int, ended: Sequence[str], made: Sequence[str]) -> int:
        """Bytes of what a kernel that goes element by element makes, as far as something as large ends there."""
        unit = self.units[at]
        if not all(isinstance(s, Compute) and self.operators[s.value.name].rule.cost == "memory" for s in unit):
            return 0
        gone, new = ([self.sizes[n] for n in names] for names in (ended, made))
        return sum(size * min(new.count(size), gone.count(size)) for size in set(new))

    def gradients(self, stored: set[str]) -> list[tuple[str, int, int]]:
        """(storage, the kernel whose backward makes its gradient first, the kernel whose backward reads it): those of
        parameters stay until the backward's end."""
        count = len(self.units)
        born = {name: count for name in self.outputs if name in self.carries}
        for place in reversed(range(count)):
            made = {s.value.name for s in self.units[place]}
            if not made & stored & born.keys():
                continue
            reads = {self.root[name] for s in self.units[place] for name in self.reads(s)} - made
            for name in (n for n in reads if n in self.carries and (n in stored or n not in self.made)):
                born.setdefault(name, place)
        return [(name, place, self.made.get(name, -1)) for name, place in born.items()]
