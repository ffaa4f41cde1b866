"""Look-ups in all tables of a model at once (``autoplan.search.tables``)."""

from __future__ import annotations

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import S
from autoplan.rules.registry import AxisStrategy, Rule, rule

POOLING = 3  # of a table's arguments (``autoplan.ir.tables.Table``)


@rule("autoplan.lookups")
def lookups(
    flat: TensorType, indices: tuple[TensorType, ...], scales: tuple[TensorType, ...], tables: tuple, boxes: tuple
) -> Rule:
    """flat [n], indices [b] or [b, l] of each table, scales [b, l] -> [b, c].

    Rows of the batch split freely. With the tables split as well, indices travel to the ranks that have their tables
    and vectors come back.
    """
    given = (*indices, *scales)
    bags = ["b" if len(kind.shape) == 1 else f"b l{i}" for i, kind in enumerate(given)]
    placed = AxisStrategy(
        (S(0), *(S(0) for _ in given)), S(0), body="placed_lookups", communicates=True, single=True
    )
    adds_up = all(table[POOLING] != "max" for table in tables)
    whole = ("n", "c", *(f"l{i}" for i, kind in enumerate(given) if len(kind.shape) > 1))
    return Rule(
        f"{', '.join(['n', *bags])} -> b c", whole=whole, linear=((0,),) if adds_up else (), extra=(placed,),
        cost="lookups", saved=tuple(range(1, 1 + len(given))),
    )  # fmt: skip
