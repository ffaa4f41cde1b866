"""Values that are another under a second name: moves between the batch's states where one rank has all of them.

So are reshapes of indices and scores for a mixture, which takes rows. No line is written for either.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from autoplan.ir.graph import Ref
from autoplan.ir.typed_program import Compute, LoweredBlock, Statement, TypedValue

MOVE, RESHAPE, MIXTURE = "autoplan.batch_move", "aten.reshape.default", "autoplan.experts"
CHOICES = (1, 2)
"""Where a mixture is given indices and scores, [.., k] each."""


def unmoved(statements: Iterable[Statement]) -> dict[str, str]:
    """Each such value's name -> that of the value it is: no line is written for it (``search.space.batch_moves``)."""
    found: dict[str, str] = {}
    for statement in statements:
        if isinstance(statement, Compute) and statement.op == MOVE and not statement.body:
            (source,) = statement.reads
            found[statement.value.name] = found.get(source, source)
    return found


def unmoved_in(block: LoweredBlock) -> dict[str, str]:
    """``unmoved`` of a block's body; and indices and scores, [tokens, k], reshaped as a mixture's tokens lie: it takes
    them row by row."""
    same = unmoved(block.body)
    values = {v.name: v for v in (*block.inputs, *block.externals, *(s.value for s in block.body))}
    kept = {v.name for v in block.outputs} | same.keys()
    readers: defaultdict[str, list[Statement]] = defaultdict(list)
    for statement in block.body:
        for name in statement.reads:
            readers[name].append(statement)
    for statement in block.body:
        name = statement.value.name
        if name in kept or not readers[name] or not all(is_choice(name, reader) for reader in readers[name]):
            continue
        if isinstance(statement, Compute) and is_rows(statement, values):
            same[name] = same.get(statement.reads[0], statement.reads[0])
    return same


def is_rows(statement: Compute, values: Mapping[str, TypedValue]) -> bool:
    """Whether it only gives further dims to rows, [tokens, k] -> [.., k]."""
    if statement.op != RESHAPE or statement.body or statement.divisor != 1 or statement.reads[0] not in values:
        return False
    shape = values[statement.reads[0]].local_shape
    return len(shape) == 2 and shape[1] == statement.value.local_shape[-1]


def is_choice(name: str, reader: Statement) -> bool:
    """Whether a statement is a mixture that reads a value as its indices or scores, and nowhere else."""
    if not isinstance(reader, Compute) or reader.op != MIXTURE:
        return False
    return sum(reader.args[at] == Ref(name) for at in CHOICES) == reader.reads.count(name)


def also_named(names: Mapping[str, str], same: Mapping[str, str]) -> dict[str, str]:
    """How values are written, with those that are another."""
    return {**names, **{name: names[source] for name, source in same.items()}}
