"""Rows of tables: look-ups, bags of rows, and look-ups in tables of a model at once (``autoplan.search.tables``)."""

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import P, R, S
from autoplan.rules.registry import AxisStrategy, Rule, letters, rule


@rule("aten.embedding.default")
def embedding(weight: TensorType, ids: TensorType, padding_idx: int = -1) -> Rule:
    """weight [v, h], ids [..] -> [.., h]; the row ``padding_idx``, where there is one, gets no gradient.

    With the vocabulary split each rank looks up the ids that it has and gives zeros for the others: a partial sum.
    """
    dims = letters(ids)
    result = f"{dims} h" if ids.shape else "h"
    split = AxisStrategy((S(0), R), P, body="vocab_parallel_embedding")
    return Rule(f"v h, {dims} -> {result}", whole="v", linear=((0,),), extra=(split,), saved=(1,))


@rule("autoplan.embedding_bag")
def embedding_bag(
    weight: TensorType, indices: TensorType, scales: TensorType | None = None, mode: str = "sum",
    padding_idx: int = -1,
) -> Rule:  # fmt: skip
    """weight [v, h], indices [.., l], scales [.., l] -> [.., h]: rows pooled by ``mode``.

    Parts of a bag's indices give partial sums; so do parts of the table, from which what others have is left out. A
    mean counts a bag's indices whole, a maximum compares them whole.
    """
    lead = letters(len(indices.shape) - 1).replace("[]", "")
    bags = f"{lead} l"
    operands = ["v h", bags, *([bags] if scales is not None else [])]
    sums, given = mode in ("sum", "mean"), len(operands) - 1
    split = AxisStrategy((S(0), *(R for _ in range(given))), P, body="vocab_parallel_embedding_bag")
    return Rule(
        f"{', '.join(operands)} -> {lead} h",
        whole="v" if mode == "sum" else ("v", "l"),
        linear=((0,), (2,))[:given] if sums else (),
        extra=(split,) if sums else (),
        saved=(1,) if scales is None else (0, 1, 2),
    )


@rule("autoplan.ragged_bag")
def ragged_bag(
    weight: TensorType, indices: TensorType, offsets: TensorType, scales: TensorType | None = None, mode: str = "sum",
    padding_idx: int = -1,
) -> Rule:  # fmt: skip
    """weight [v, h], indices [n], offsets [b], scales [n] -> [b, h]. Bags are whole: where one ends the next says."""
    operands = ["v h", "n", "b", *(["n"] if scales is not None else [])]
    sums, given = mode in ("sum", "mean"), len(operands) - 1
    split = AxisStrategy((S(0), *(R for _ in range(given))), P, body="vocab_parallel_ragged_bag")
    return Rule(
        f"{', '.join(operands)} -> b h",
        whole=("v", "n", "b"),
        linear=((0,), (3,))[: given - 1] if sums else (),
        extra=(split,) if sums else (),
        saved=(1, 2) if scales is None else (0, 1, 2, 3),
    )


POOLING = 3  # of a table's arguments (``autoplan.ir.tables.Table``)


@rule("autoplan.lookups")
def lookups(
    flat: TensorType, indices: tuple[TensorType, ...], scales: tuple[TensorType, ...], tables: tuple, boxes: tuple,
    sparse: bool = False, cached: tuple = (),
) -> Rule:  # fmt: skip
    """flat [n], indices [b] or [b, l] of each table, scales [b, l] -> [b, c].

    Rows of the batch split freely. With the tables split as well, indices travel to the ranks that have their tables
    and vectors come back. ``sparse``: gradients are of looked-up rows alone. ``cached``: the tables lie off the
    device (``ir.tables.Cached``).
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
