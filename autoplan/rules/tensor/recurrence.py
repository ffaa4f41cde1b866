"""A linear recurrence: its dim is whole, every other splits."""

from __future__ import annotations

from autoplan.ir.graph import TensorType
from autoplan.rules.registry import Rule, letters, rule


@rule("autoplan.recurrence")
def recurrence(factor: TensorType, added: TensorType, dim: int) -> Rule:
    """state[t] = factor[t] · state[t - 1] + added[t] along ``dim``: linear in what is added."""
    terms = letters(added)
    return Rule(f"{terms}, {terms} -> {terms}", whole=f"d{dim}", linear=((1,),), saved=(0, "out"))
