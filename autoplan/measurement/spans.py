"""Sets of spans of time: their union, what lies in one alone, how long they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[float, float]
"""(start, end), the start no later than the end."""


def union(spans: Iterable[Span]) -> list[Span]:
    """The same moments as spans in order that don't touch."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif end > start:
            found.append((start, end))
    return found


def minus(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What of the spans lies in none of the others; both are as ``union`` leaves them."""
    found, at = [], 0
    for start, end in spans:
        while at < len(others) and others[at][1] <= start:
            at += 1
        next_one = at
        while next_one < len(others) and others[next_one][0] < end:
            if others[next_one][0] > start:
                found.append((start, others[next_one][0]))
            start = max(start, others[next_one][1])
            next_one += 1
        if start < end:
            found.append((start, end))
    return found


def within(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What of the spans lies in the others, too; both are as ``union`` leaves them."""
    return minus(spans, minus(spans, others))


def length(spans: Iterable[Span]) -> float:
    """Of spans that don't overlap."""
    return sum(end - start for start, end in spans)
