"""Checks that the calls a plan prices on a rank are those that the rank issued, and lists the differences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autoplan.rehearsal.pricing.calls import WIRE, priced_calls, unpriced_calls
from autoplan.rehearsal.pricing.parameter_calls import WHOLE
from autoplan.rehearsal.pricing.priced_call import PricedCall
from autoplan.rehearsal.pricing.priced_plan import PlanPrices
from autoplan.rehearsal.records import Call, RankTrace, Span

CROSSING = ("collective", "send", "receive")

Kind = tuple[str, Span]
Key = tuple[str, Span, int]


@dataclass(frozen=True)
class Difference:
    """Calls in one account that the other lacks.

    issued  whether the program issued them, and the plan has no price for them; else the plan has it, and they aren't
            issued
    where   of what is issued the lines, of what is priced its place in the plan
    axes    of the group
    bytes   of one, as ``PricedCall.bytes``
    """

    issued: bool
    where: str
    kind: str
    axes: str
    bytes: int
    count: int

    def __str__(self) -> str:
        said = "issued and not priced" if self.issued else "priced and not issued"
        return f"{said}: {self.count} x {self.kind} over {self.axes} of {self.bytes:,} bytes, {self.where}"


@dataclass(frozen=True)
class Balance:
    """One rank's account of one step.

    rank         of the trace
    priced       calls that the plan prices, and the program issued, with their bytes
    left_out     those of a few bytes that are issued as they should be, and that no plan prices
    differences  all others
    seconds      of each call of the trace that is priced, by its number
    """

    rank: int
    priced: tuple[PricedCall, ...]
    left_out: tuple[PricedCall, ...]
    differences: tuple[Difference, ...]
    seconds: dict[int, float] = field(default_factory=dict, repr=False)

    @property
    def holds(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        calls, size = sum(c.count for c in self.priced), sum(c.count * c.bytes for c in self.priced)
        beside, small = sum(c.count for c in self.left_out), sum(c.count * c.bytes for c in self.left_out)
        head = f"rank {self.rank}: {calls:,} calls priced and issued, {size:,} bytes"
        return "\n".join([f"{head}; not priced: {beside} calls, {small:,} bytes", *map(str, self.differences)])


def balance(plan: PlanPrices, trace: RankTrace) -> Balance:
    """Compares the account of a rank's trace with the plan's."""
    share = plan.share(trace)
    ledger = _Ledger(plan, trace)
    wanted = merged(priced_calls(share))
    whole, summed = ([c for c in wanted if (c.parts or c.unsized) == how] for how in (False, True))
    priced = [ledger.take(call) for call in whole if not call.rounding]
    left_out = [ledger.take(call) for call in merged(unpriced_calls(share))]
    for group in dict.fromkeys((call.kind, call.span) for call in whole if call.rounding):
        priced += ledger.take_rounded([c for c in whole if c.rounding and (c.kind, c.span) == group])
    priced += [ledger.take_sum(call) for call in summed]
    ledger.name_rest()
    return Balance(
        trace.rank, tuple(c for c in priced if c.count), tuple(c for c in left_out if c.count),
        tuple(ledger.differences), ledger.seconds,
    )  # fmt: skip


def merged(calls: Sequence[PricedCall]) -> list[PricedCall]:
    """Calls that nothing in a trace tells apart as one; those that are compared by their bytes, of one group, too.

    Those around an update stay apart: they come after all others of a step, and share in the update's seconds."""
    found: dict[tuple, list[PricedCall]] = defaultdict(list)
    for call in calls:
        size = -1 if call.parts or call.unsized else call.bytes + call.padding
        found[call.kind, call.span, size, call.parts, call.unsized, call.where == WHOLE].append(call)
    return [together(alike) for alike in found.values()]


def together(alike: Sequence[PricedCall]) -> PricedCall:
    first, where = alike[0], ", ".join(dict.fromkeys(call.where for call in alike))
    seconds = sum(call.count * call.seconds for call in alike)
    if first.parts:
        total, padding = sum(c.count * c.bytes for c in alike), sum(c.count * c.padding for c in alike)
        return replace(first, where=where, bytes=total, count=1, seconds=seconds, padding=padding)
    count = sum(call.count for call in alike)
    return replace(first, where=where, count=count, seconds=seconds / count)


class _Ledger:
    """A trace's calls that are still to be found in the plan."""

    def __init__(self, plan: PlanPrices, trace: RankTrace) -> None:
        self.plan = plan
        self.open: dict[Key, list[Call]] = defaultdict(list)
        for call in trace.calls:
            if call.kind in CROSSING and call.span:
                self.open[key_of(call)].append(call)
        self.differences: list[Difference] = []
        self.seconds: dict[int, float] = {}

    def take(self, wanted: PricedCall) -> PricedCall:
        """Strikes out what is wanted; returns it with as many as there were."""
        there = self.open[wanted.kind, wanted.span, wanted.bytes + wanted.padding]
        struck, there[:] = there[: wanted.count], there[wanted.count :]
        self.seconds |= {call.number: wanted.seconds for call in struck}
        if len(struck) < wanted.count:
            self.differences.append(self.lacking(wanted, wanted.count - len(struck)))
        return replace(wanted, count=len(struck))

    def take_rounded(self, wanted: Sequence[PricedCall]) -> list[PricedCall]:
        """Likewise all that is left of a kind and group, where sizes may be off: in the order of these, so that no two
        are taken for one another that differ by more."""
        keys = [key for key in self.open if key[:2] == (wanted[0].kind, wanted[0].span)]
        there = sorted((call for key in keys for call in self.open[key]), key=size_of)
        each = [call for call in sorted(wanted, key=lambda call: call.bytes) for _ in range(call.count)]
        pairs = list(zip(each, there, strict=False))
        if len(each) != len(there) or any(abs(w.bytes - size_of(call)) > w.rounding for w, call in pairs):
            self.differences += [self.lacking(call, call.count) for call in wanted]
            return []
        for key in keys:
            self.open[key] = []
        self.seconds |= {call.number: each.seconds for each, call in pairs}
        return list(wanted)

    def take_sum(self, wanted: PricedCall) -> PricedCall:
        """The same by the bytes of all that is left of this kind and group, or by their number where bytes follow from
        values."""
        keys = [key for key in self.open if key[:2] == (wanted.kind, wanted.span) and self.open[key]]
        calls = [call for key in keys for call in self.open[key]]
        total = sum(size_of(call) for call in calls)
        fits = len(calls) == wanted.count if wanted.unsized else total == wanted.bytes + wanted.padding
        if wanted.sometimes and not calls:
            return replace(wanted, count=0)
        if not fits:
            self.differences.append(self.lacking(wanted, wanted.count))
            return replace(wanted, count=0)
        for key in keys:
            self.open[key] = []
        each = {c.number: 1 / len(calls) if wanted.unsized else size_of(c) / max(total, 1) for c in calls}
        self.seconds |= {number: wanted.count * wanted.seconds * share for number, share in each.items()}
        return replace(wanted, bytes=total, count=1)

    def lacking(self, wanted: PricedCall, count: int) -> Difference:
        return Difference(False, wanted.where, wanted.kind, self.plan.axes_of(wanted.span), wanted.bytes, count)

    def name_rest(self) -> None:
        for (kind, span, size), calls in self.open.items():
            if calls:
                lines = ", ".join(f"{n} at {line}" for line, n in Counter(place_of(c) for c in calls).items())
                self.differences.append(Difference(True, lines, kind, self.plan.axes_of(span), size, len(calls)))


def key_of(call: Call) -> Key:
    name = call.name.split(" ")[0]
    return WIRE.get(name, name) if call.kind == "collective" else call.kind, call.span, size_of(call)


def size_of(call: Call) -> int:
    """The bytes that a call is known by: of a gather those of the result."""
    members = 1
    if call.kind == "collective" and call.name == "all-gather":
        for _, size in call.span:
            members *= size
    return call.bytes * members


def place_of(call: Call) -> str:
    return f"{call.line} ({call.during.split(' ')[0]})"
