"""Loops over a sequence, rolled up again: states that follow from those before as one operator, and what is computed
from each of them alike as one computation over all.

A state-space model's loop is exported as its steps, some ten operators for each place of the sequence. What it makes
of them is ``state[t] = factor[t] · state[t - 1] + added[t]``, the operator ``autoplan.recurrence``, and a result for
each place, put together at the end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autoplan.ir.graph import Node, Ref
from autoplan.trace.blocks import renamed
from autoplan.trace.builder import Builder
from autoplan.trace.passes.vectorize import Vectorizer

Part = tuple[str, int, int]  # what is selected from, dim, index


@dataclass(frozen=True)
class Step:
    """One step of a recurrence: the state at a place of ``dim`` from the one before."""

    factor: str
    added: str
    dim: int
    at: int
    before: str

    @property
    def series(self) -> tuple[str, str, int]:
        return self.factor, self.added, self.dim


def rolled(builder: Builder, nodes: Iterable[Node], output: str) -> tuple[tuple[Node, ...], str]:
    """The nodes with their loops rolled up, and the output's name among them. What nothing reads any more is still
    there."""
    nodes, firsts = recurrences(builder, tuple(nodes))
    by_name = {node.name: node for node in nodes} | firsts
    names: dict[str, str] = {}
    kept: list[Node] = []
    for node in nodes:
        node = renamed(node, names)
        made = Vectorizer(builder, by_name).of(node) if node.op == "aten.cat.default" else None
        by_name[node.name] = firsts.get(node.name, node)
        if made is None:
            kept.append(node)
        else:
            new, names[node.name] = made
            by_name |= {one.name: one for one in new}
            kept += new
    return tuple(kept), names.get(output, output)


def recurrences(builder: Builder, nodes: tuple[Node, ...]) -> tuple[tuple[Node, ...], dict[str, Node]]:
    """Every step of a recurrence as a part of an operator that makes all of its states; and, by name, what is added
    first as the first of these states, which it is where a loop begins with it."""
    by_name = {node.name: node for node in nodes}
    steps = {node.name: step for node in nodes if (step := step_of(node, by_name)) is not None}
    replaced: dict[str, tuple[Node, ...]] = {}
    firsts: dict[str, Node] = {}
    for name, step in steps.items():
        chain = chain_to(name, step, steps, by_name)
        if not chain:
            continue
        first, kind = by_name[chain[0]], builder.types[step.added]
        whole = Node(
            builder.fresh("states"), "autoplan.recurrence", (Ref(step.factor), Ref(step.added), step.dim), (), kind,
            first.module,
        )  # fmt: skip
        builder.types[whole.name] = kind
        for one in chain:
            args = (Ref(whole.name), step.dim, steps[one].at)
            replaced[one] = (Node(one, "aten.select.int", args, (), by_name[one].type, by_name[one].module),)
        replaced[chain[0]] = (whole, *replaced[chain[0]])
        if steps[chain[0]].at == 1:
            begin = by_name[steps[chain[0]].before]
            firsts[begin.name] = replace(begin, args=(Ref(whole.name), step.dim, 0))
    return tuple(new for node in nodes for new in replaced.get(node.name, (node,))), firsts


def step_of(node: Node, by_name: Mapping[str, Node]) -> Step | None:
    """``factor[t] * before + added[t]`` in any order, all of one type."""
    if node.op != "aten.add.Tensor" or len(node.operands) != 2 or len(node.args) != 2:
        return None
    for product, plain in (node.operands, node.operands[::-1]):
        scaled, added = by_name.get(product), part_of(plain, node, by_name)
        if scaled is None or added is None or scaled.op != "aten.mul.Tensor" or len(scaled.operands) != 2:
            continue
        for scale, before in (scaled.operands, scaled.operands[::-1]):
            factor = part_of(scale, node, by_name)
            if factor is not None and factor[1:] == added[1:] and same_series(factor, added, by_name):
                return Step(factor[0], added[0], *added[1:], before)
    return None


def part_of(name: str, like: Node, by_name: Mapping[str, Node]) -> Part | None:
    """What a value is selected from, where it is of another's type."""
    node = by_name.get(name)
    if node is None or node.op != "aten.select.int" or node.type != like.type:
        return None
    dim, index = node.args[1:]
    assert isinstance(dim, int) and isinstance(index, int)
    return node.operands[0], dim, index


def same_series(factor: Part, added: Part, by_name: Mapping[str, Node]) -> bool:
    """Whether both are made by nodes, and of one type."""
    one, other = by_name.get(factor[0]), by_name.get(added[0])
    return one is not None and other is not None and one.type == other.type


def chain_to(name: str, last: Step, steps: Mapping[str, Step], by_name: Mapping[str, Node]) -> tuple[str, ...]:
    """The steps from the first place of the series to its last one, which ``name`` is; none where they aren't all
    there or begin with something else than zeros."""
    if last.at + 1 != by_name[last.added].type.shape[last.dim]:
        return ()
    chain, step = [name], last
    while step.at > 0:
        before = steps.get(step.before)
        if before is None or before.series != step.series or before.at != step.at - 1:
            return tuple(reversed(chain)) if begins_after(step, by_name) else ()
        chain.append(step.before)
        step = before
    first = by_name.get(step.before)
    zero = first is not None and first.op == "aten.full.default" and first.args[1] == 0
    return tuple(reversed(chain)) if zero else ()


def begins_after(step: Step, by_name: Mapping[str, Node]) -> bool:
    """Whether a step is the second, and the state before it is what is added first."""
    before = by_name.get(step.before)
    first = part_of(step.before, before, by_name) if before is not None else None
    return step.at == 1 and first == (step.added, step.dim, 0)
