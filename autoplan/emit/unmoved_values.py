"""Values that are another under a second name: moves between the batch's states where one rank has all of them."""

from collections.abc import Iterable, Mapping

from autoplan.ir.typed_program import Compute, Statement

MOVE = "autoplan.batch_move"


def unmoved(statements: Iterable[Statement]) -> dict[str, str]:
    """Each such value's name -> that of the value it is: no line is written for it (``search.space.batch_moves``)."""
    found: dict[str, str] = {}
    for statement in statements:
        if isinstance(statement, Compute) and statement.op == MOVE and not statement.body:
            (source,) = statement.reads
            found[statement.value.name] = found.get(source, source)
    return found


def also_named(names: Mapping[str, str], same: Mapping[str, str]) -> dict[str, str]:
    """How values are written, with those that are another."""
    return {**names, **{name: names[source] for name, source in same.items()}}
