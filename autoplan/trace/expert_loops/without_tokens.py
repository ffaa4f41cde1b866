"""Whether forward does nothing else for an expert that has tokens than add what it computes, nor for one without.

A loop is traced as if each expert had tokens. A counter in it, another branch or ``break`` would then be another model
wherever an expert has none. So forward is traced twice more without any sums: once where all experts have tokens, once
where none has. Both have to ask about the same experts, and to be the same graph.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from autoplan.errors import AutoplanError, TraceError
from autoplan.ir.graph import Node

Followed = Mapping[tuple, TraceError]


def check_without_tokens(followed: Followed, traced: Callable[[bool], tuple[Sequence[Node], Followed]]) -> None:
    """TraceError, one of those in ``followed``, where a loop over experts does anything else.

    traced  the nodes of forward without sums where experts have tokens, or have none, named by their order alone; and
            what it asked
    """
    if not followed:
        return
    error = next(iter(followed.values()))
    try:
        (filled, asked), (empty, asked_then) = traced(True), traced(False)
    except AutoplanError as cause:
        raise error from cause
    if filled != empty or experts_in(asked) != experts_in(asked_then):
        raise error


def experts_in(followed: Followed) -> Counter[int]:
    return Counter(expert for _, expert in followed)
