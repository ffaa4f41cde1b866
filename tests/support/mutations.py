"""Faults put into the calls of one rank: each gives the changed calls, and the call that tells where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autoplan.rehearsal.records import Call, Span

Calls = list[Call]
Pick = Callable[[list[int]], int]
"""One of some places, of which there may be none."""
Fault = Callable[[Sequence[Span], Calls, Pick], tuple[Calls, Call]]
NEW = 1_000_000


def indices(calls: Calls, *kinds: str) -> list[int]:
    return [i for i, call in enumerate(calls) if call.kind in kinds]


def drop(*kinds: str) -> Fault:
    def dropped(spans: Sequence[Span], calls: Calls, pick: Pick) -> tuple[Calls, Call]:
        at = pick(indices(calls, *kinds))
        return calls[:at] + calls[at + 1 :], calls[at]

    return dropped


def double(spans: Sequence[Span], calls: Calls, pick: Pick) -> tuple[Calls, Call]:
    """Waited for where the first one is."""
    at = pick(indices(calls, "collective"))
    twice = [*calls[: at + 1], replace(calls[at], number=NEW), *calls[at + 1 :]]
    waiting = [replace(c, of=(*c.of, NEW)) if c.kind == "wait" and calls[at].number in c.of else c for c in twice]
    return waiting, calls[at]


def other_span(spans: Sequence[Span], calls: Calls, pick: Pick) -> tuple[Calls, Call]:
    at = pick([i for i in indices(calls, "collective") if set(spans) - {calls[i].span}])
    other = next(span for span in spans if span != calls[at].span)
    return [*calls[:at], replace(calls[at], span=other), *calls[at + 1 :]], calls[at]


def other(field: str, *kinds: str) -> Fault:
    def changed(spans: Sequence[Span], calls: Calls, pick: Pick) -> tuple[Calls, Call]:
        at = pick(indices(calls, *kinds))
        value = calls[at].bytes + 2 if field == "bytes" else "float64" if calls[at].dtype != "float64" else "float32"
        return [*calls[:at], replace(calls[at], **{field: value}), *calls[at + 1 :]], calls[at]  # type: ignore[arg-type]

    return changed


def swap(spans: Sequence[Span], calls: Calls, pick: Pick) -> tuple[Calls, Call]:
    """Two neighbours on one communicator, of other sizes or lines; each keeps its place's waits."""
    pairs, last = {}, {}
    for at in indices(calls, "collective"):
        key = (calls[at].span, calls[at].group)
        before = last.get(key)
        if before is not None and told(calls[before]) != told(calls[at]):
            pairs[before] = at
        last[key] = at
    at = pick(list(pairs))
    one, two = calls[at], calls[pairs[at]]
    swapped = list(calls)
    swapped[at], swapped[pairs[at]] = replace(two, number=one.number), replace(one, number=two.number)
    return swapped, two


def told(call: Call) -> tuple[str, str]:
    return call.line, call.during


FAULTS: Mapping[str, Fault] = {
    "dropped collective": drop("collective"),
    "doubled collective": double,
    "other axis": other_span,
    "other bytes": other("bytes", "collective", "send", "receive"),
    "other dtype": other("dtype", "collective", "send", "receive"),
    "swapped collectives": swap,
    "send without receive": drop("receive"),
    "receive without send": drop("send"),
    "missing wait": drop("wait"),
}
