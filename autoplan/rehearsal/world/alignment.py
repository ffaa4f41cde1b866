"""Where two sequences of calls first differ, and how: by what one edit makes the rest agree again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from autoplan.rehearsal.records import Call

Edit = Literal["missing", "extra", "changed", "swapped"]
Key = Callable[[Call], Hashable]
WINDOW = 64
"""Calls compared after an edit, to judge it: more than a layer has."""


@dataclass(frozen=True)
class Difference:
    """The first difference of a sequence from a norm.

    edit  missing: norm[there] is left out; extra: own[here] is not in the norm; changed: own[here] stands for
          norm[there]; swapped: so do own[here] and own[here + 1], in the other order
    """

    edit: Edit
    here: int
    there: int


def common_prefix(own: Sequence[Call], norm: Sequence[Call], key: Key) -> int:
    length = min(len(own), len(norm))
    return next((i for i in range(length) if key(own[i]) != key(norm[i])), length)


def first_difference(own: Sequence[Call], norm: Sequence[Call], needed: Key, told: Key) -> Difference | None:
    """None where there is none.

    needed  what has to be equal
    told    what is equal where both ranks run the same code, and tells like calls apart: the line, the microbatch
    """

    def both(call: Call) -> Hashable:
        return needed(call), told(call)

    late, early = common_prefix(own, norm, needed), common_prefix(own, norm, both)
    if late == len(own) == len(norm):
        return None
    # One of many like calls is missing: only their lines tell which. They tell nothing where the code differs anyway.
    found = _judged(own, norm, early, needed, told)
    if found.edit == "changed" and needed(own[early]) == needed(norm[early]):
        found = _judged(own, norm, late, needed, told)
    return found


def reordered(own: Sequence[Call], norm: Sequence[Call], told: Key) -> Difference | None:
    """Two sequences that agree in what is needed, of the same lines in another order: each sum mixes two tensors."""
    at = common_prefix(own, norm, told)
    if at == len(own) or sorted(map(str, map(told, own))) != sorted(map(str, map(told, norm))):
        return None
    return Difference("swapped", at, at)


def _judged(own: Sequence[Call], norm: Sequence[Call], at: int, needed: Key, told: Key) -> Difference:
    edits: list[tuple[float, Edit]] = []
    if at < len(own) and at < len(norm):
        edits.append((_agreement(own, norm, at + 1, at + 1, needed, told), "changed"))
    if at + 1 < len(own) and at + 1 < len(norm):
        crossed = needed(own[at]) == needed(norm[at + 1]) and needed(own[at + 1]) == needed(norm[at])
        if crossed and needed(own[at]) != needed(norm[at]):
            edits.append((_agreement(own, norm, at + 2, at + 2, needed, told), "swapped"))
    if at < len(norm):
        edits.append((_agreement(own, norm, at, at + 1, needed, told), "missing"))
    if at < len(own):
        edits.append((_agreement(own, norm, at + 1, at, needed, told), "extra"))
    best = max(agreement for agreement, _ in edits)
    order: tuple[Edit, ...] = ("swapped", "missing", "extra", "changed")
    return Difference(min((edit for a, edit in edits if a == best), key=order.index), at, at)


def _agreement(own: Sequence[Call], norm: Sequence[Call], i: int, j: int, needed: Key, told: Key) -> float:
    """How much of what follows agrees, 0 to 1."""
    length = min(WINDOW, max(len(own) - i, len(norm) - j))
    if length <= 0:
        return 1.0
    agreed = 0
    for one, other in zip(own[i : i + length], norm[j : j + length], strict=False):
        agreed += 0 if needed(one) != needed(other) else 3 if told(one) == told(other) else 1
    return agreed / (3 * length)
