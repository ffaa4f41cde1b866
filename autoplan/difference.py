"""``autoplan diff``: what changed from one plan to another, as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoplan.emit.source import size_text
from autoplan.ir.choice import PricedCollective
from autoplan.plan import Plan
from autoplan.report.device_kinds import memory_limits_of
from autoplan.report.waits import per_device
from autoplan.report.words import elements_of, fullest_stage, headline, seconds_text, way_text
from autoplan.search.breakdown import breakdown

MOST = 20  # rows of a table; further ones are counted
Key = tuple[str, str, str]


def difference(before: Plan, after: Plan) -> str:
    """Markdown: the predictions of both side by side, then what differs: time, collectives, operators."""
    parts = [
        f"### Plan of {turned(before.record.model.name, after.record.model.name)}: "
        f"{turned(str(before.record.cluster), str(after.record.cluster))}",
        table(["", "before", "after", "change"], list(summary(before, after))),
        section("Time of one step", ["part", "before", "after", "change"], list(times(before, after))),
        section("Collectives of one step on one device", ["collective", "before", "after"], list(moved(before, after))),
        section("Operators split another way", ["operator", "axis", "before", "after"], list(split(before, after))),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def turned(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def section(title: str, header: Sequence[str], rows: list[list[str]]) -> str:
    if not rows:
        return f"**{title}**: no change."
    more = f"\n\n… and {len(rows) - MOST} more." if len(rows) > MOST else ""
    return f"**{title}**\n\n{table(header, rows[:MOST])}{more}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def changed(before: float, after: float) -> str:
    """``+8.2%``; "" for none."""
    return f"{100 * (after / before - 1):+.1f}%" if before and abs(after / before - 1) > 5e-4 else ""


def summary(before: Plan, after: Plan) -> Iterator[list[str]]:
    """What was planned, and what it is predicted to reach."""
    yield ["plan", headline(before.record), headline(after.record), ""]
    one, other = before.predicted, after.predicted
    step = seconds_text(one.step_time_s), seconds_text(other.step_time_s)
    yield ["step time", *step, changed(one.step_time_s, other.step_time_s)]
    rates = f"{one.tokens_per_s:,.0f}", f"{other.tokens_per_s:,.0f}"
    yield [f"{elements_of(after.record)} a second", *rates, changed(one.tokens_per_s, other.tokens_per_s)]
    yield ["MFU", *shares(one.mfu, other.mfu)]
    yield ["pipeline bubble", *shares(one.bubble_fraction, other.bubble_fraction)]
    peaks = [p.peak_bytes[fullest_stage(plan.record.chosen, memory_limits_of(plan.record))].total
             for plan, p in ((before, one), (after, other))]  # fmt: skip
    yield ["fullest device", *map(size_text, peaks), changed(*peaks)]


def shares(before: float, after: float) -> list[str]:
    """Two shares in percent, and what lies between them in points."""
    points = 100 * (after - before)
    return [f"{100 * before:.1f}%", f"{100 * after:.1f}%", f"{points:+.1f} points" if abs(points) > 0.05 else ""]


def times(before: Plan, after: Plan) -> Iterator[list[str]]:
    """The parts of the step that differ."""
    one, other = (
        {f"{part.kind} {part.axis}".strip(): part.seconds for part in breakdown(plan.record).parts}
        for plan in (before, after)
    )
    for name in dict.fromkeys((*one, *other)):
        spent = one.get(name, 0.0), other.get(name, 0.0)
        if seconds_text(spent[0]) != seconds_text(spent[1]):
            yield [name, *map(seconds_text, spent), changed(*spent)]


def moved(before: Plan, after: Plan) -> Iterator[list[str]]:
    """The collectives that differ in bytes or in how often they run."""
    one, other = ({key_of(c): c for c in per_device(plan.record)} for plan in (before, after))
    for key in dict.fromkeys((*one, *other)):
        texts = [collective_text(found[key]) if key in found else "none" for found in (one, other)]
        if texts[0] != texts[1]:
            yield [f"{key[0]}: {key[1]} over {key[2]}", *texts]


def key_of(collective: PricedCollective) -> Key:
    return collective.where, collective.kind, collective.axis


def collective_text(c: PricedCollective) -> str:
    return f"{c.count:,} x {size_text(c.bytes)}, {seconds_text(c.seconds)}"


def split(before: Plan, after: Plan) -> Iterator[list[str]]:
    """The operators of blocks of one name that are split another way on some axis."""
    one, other = (ways(plan) for plan in (before, after))
    for name in one:
        if name in other:
            for axis in dict.fromkeys((*one[name], *other[name])):
                texts = [found[name].get(axis, "not split") for found in (one, other)]
                if texts[0] != texts[1]:
                    yield [name, axis, *texts]


def ways(plan: Plan) -> dict[str, dict[str, str]]:
    """For each operator how it runs on each axis of more than one rank."""
    record = plan.record
    axes = [a.name for a in record.chosen.mesh.device_axes if a.size > 1 and a.name != "pp"]
    return {
        f"{block.name} {node}": {axis: way_text(strategy.on(axis)) for axis in axes}
        for block, choice in zip(record.model.blocks, record.chosen.blocks, strict=True)
        for node, strategy in choice.strategies
    }
