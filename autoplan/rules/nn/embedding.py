"""Table look-ups."""

from __future__ import annotations

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
