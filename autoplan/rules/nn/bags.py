"""Bags of a table's rows."""

from __future__ import annotations

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import P, R, S
from autoplan.rules.registry import AxisStrategy, Rule, letters, rule


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
