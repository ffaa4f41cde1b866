"""The alternatives in the plane of time and memory."""

import math

from autoplan.ir.choice import Alternative
from autoplan.ir.record import PlanRecord
from autoplan.report.device_kinds import memory_limits_of
from autoplan.report.html.chart import Scale, axis, figure, folded, grid, legend, percent, plain, table, text
from autoplan.report.price_tables import rest_text
from autoplan.report.words import GIB, MIB, fullest_stage, headline, is_chosen, parallelism_text, seconds_text, size_in

HEIGHT = 300  # pixels
SLOWEST = 4.0  # times the plan's step: what takes longer would press the others together, and is in the table alone


def alternatives_section(record: PlanRecord) -> str:
    """A numbered dot for each that has a price, and under them a row for each."""
    predicted = record.chosen.predicted
    priced = [a for a in record.alternatives if not a.why_not and not is_chosen(record, a) and a.peak_bytes]
    priced = [a for a in priced if 0 < a.step_time_s < math.inf]
    if not priced or not predicted.step_time_s:
        return ""
    memory_limits = memory_limits_of(record)
    fullest = fullest_stage(record.chosen, memory_limits)
    peak, memory_limit = predicted.peak_bytes[fullest].total, memory_limits[fullest]
    unit, name = (GIB, "GiB") if memory_limit >= GIB else (MIB, "MiB")
    near = {number: a for number, a in enumerate(priced, 1) if a.step_time_s <= SLOWEST * predicted.step_time_s}
    seconds = [predicted.step_time_s, *(a.step_time_s for a in near.values())]
    bytes_ = [peak, *(a.peak_bytes for a in near.values())]
    across = around(seconds)
    along = around([*(size / unit for size in bytes_), memory_limit / unit])
    dots = [dot(a, number, across, along, unit, name) for number, a in near.items()]
    own = (percent(across(predicted.step_time_s)), percent(1 - along(peak / unit)))
    told = f"the plan: {seconds_text(predicted.step_time_s)}, {size_in(unit, peak)} {name}"
    chosen = (
        f'<g data-plan="chosen" data-seconds="{predicted.step_time_s!r}" data-bytes="{peak}">'
        f'<title>{text(told)}</title><circle class="chosen" cx="{own[0]}" cy="{own[1]}" r="13"/></g>'
    )
    limit = percent(1 - along(memory_limit / unit))
    line = f'<line class="limit" x1="0" x2="100%" y1="{limit}" y2="{limit}"/>'
    plot = (
        f'<p class="unit">memory of the fullest device, {name} (logarithmic)</p>'
        f'<svg class="plane" style="height:{HEIGHT}px" role="img" aria-label="alternatives by time and memory">'
        f"{grid(along)}{line}{chosen}{''.join(dots)}</svg>{axis(across, 'time of one step, s (logarithmic)', plain)}"
    )
    keys = legend([("chosen", "the plan"), ("fits", "fits"), ("over", "exceeds the limit"), ("limit", "memory limit")])
    rows = [["", "the plan", seconds_text(predicted.step_time_s), "", f"{size_in(unit, peak)} {name}",
             headline(record)]]  # fmt: skip
    rows += [row(record, a, number, unit, name) for number, a in enumerate(priced, 1)]
    header = ["", "alternative", "step time", "difference", "memory", "parallelism"]
    rest = [a for a in record.alternatives if a not in priced]
    others = "".join(f"<li>{text(rest_text(record, a))}</li>" for a in rest)
    told = f"{len(rest)} more that are the plan itself, have no price or don't apply"
    more = folded(told, f"<ul>{others}</ul>") if rest else ""
    body = f'<div class="readable">{plot}<output></output></div>{keys}{table(header, rows, right=(0, 2, 3, 4))}{more}'
    slow = len(priced) - len(near)
    note = f"{slow} that take more than {SLOWEST:g} times as long are in the table alone." if slow else ""
    return figure("Alternatives", body, note, name="alternatives")


def around(values: list[float]) -> Scale:
    """A logarithmic scale with a margin on both sides."""
    first, last = min(values), max(values)
    margin = max(1.04, (last / first) ** 0.08)
    return Scale(first / margin, last * margin, log=True)


def dot(a: Alternative, number: int, across: Scale, along: Scale, unit: int, name: str) -> str:
    over = f", {size_in(unit, a.over_bytes)} {name} too much" if a.over_bytes > 0 else ""
    label = f"{number} {a.name}: {seconds_text(a.step_time_s)}, {size_in(unit, a.peak_bytes)} {name}{over}"
    css = "over" if a.over_bytes > 0 else "fits"
    x, y = percent(across(a.step_time_s)), percent(1 - along(a.peak_bytes / unit))
    return (
        f'<g data-plan="{text(a.name)}" data-seconds="{a.step_time_s!r}" data-bytes="{a.peak_bytes}">'
        f'<title>{text(label)}</title><circle class="{css}" cx="{x}" cy="{y}" r="9"/>'
        f'<text class="number" x="{x}" y="{y}" dy="4">{number}</text></g>'
    )


def row(record: PlanRecord, a: Alternative, number: int, unit: int, name: str) -> list[str]:
    slower = f"{100 * (a.step_time_s / record.chosen.predicted.step_time_s - 1):+.1f}%"
    over = f", {size_in(unit, a.over_bytes)} too much" if a.over_bytes > 0 else ""
    memory = f"{size_in(unit, a.peak_bytes)} {name}{over}"
    return [str(number), a.name, seconds_text(a.step_time_s), slower, memory, parallelism_text(a.parallelism)]
