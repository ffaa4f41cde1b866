"""The step's time as one bar: compute, what no compute hides of each axis' collectives, the bubble, the update."""

from autoplan.cluster.interval import Interval, interval_of
from autoplan.ir.record import PlanRecord
from autoplan.report.html.chart import Scale, axis, figure, legend, percent, plain, table, text
from autoplan.report.waits import per_device
from autoplan.report.words import interval_text, seconds_text
from autoplan.search.breakdown import BUBBLE, COMPUTE, UPDATE, Breakdown, Part

NAMES = {COMPUTE: "compute", BUBBLE: "pipeline bubble", UPDATE: "parameter update"}
CLASSES = {COMPUTE: "compute", BUBBLE: "bubble", UPDATE: "update"}
DIFFERS = 0.005  # of a plan of this version parts add up to its step
AXES = ("tp", "dp", "pp", "cp", "ep")  # that have a colour of their own


def part_name(part: Part) -> str:
    return NAMES.get(part.kind, f"waiting for collectives over {part.axis}")


def part_class(part: Part) -> str:
    first = part.axis.split(",")[0].split(".")[0]
    return CLASSES.get(part.kind, f"axis-{first if first in AXES else 'other'}")


def time_section(record: PlanRecord, step: Breakdown) -> str:
    """The bar, and under it what each part is."""
    step_s = record.chosen.predicted.step_time_s
    if not step_s:
        return ""
    interval = interval_of(record.cluster, step_s)
    priced_s = sum(part.seconds for part in step.parts)  # today; a plan of an older version says what it said then
    whole_s = max(step_s, interval.high_s, priced_s)
    unit, name = (1.0, "s") if step_s >= 1 else (1e3, "ms") if step_s >= 1e-3 else (1e6, "µs")
    bars, begun_s, rows = [], 0.0, []
    for part in step.parts:
        share = part.seconds / priced_s
        label = f"{part_name(part)}: {seconds_text(part.seconds)}, {100 * share:.1f}%"
        bars.append(
            f'<rect class="{part_class(part)}" x="{percent(begun_s / whole_s)}" '
            f'width="{percent(part.seconds / whole_s)}" height="100%" data-kind="{text(part.kind)}" '
            f'data-axis="{text(part.axis)}" data-seconds="{part.seconds!r}">'
            f"<title>{text(label)}</title></rect>"
        )
        begun_s += part.seconds
        rows.append((part, [seconds_text(part.seconds), f"{100 * share:.1f}%"]))
    scale = Scale(0.0, whole_s * unit)
    mark, told = interval_mark(interval, whole_s), f"predicted interval, {interval_text(record)}"
    bar = f'<svg class="bar tall" role="img" aria-label="step time by part">{"".join(bars)}{mark}</svg>'
    keys = "".join(
        f'<tr><td><b class="key {part_class(part)}"></b>{text(part_name(part))}</td>'
        f'<td class="n">{text(cells[0])}</td><td class="n">{text(cells[1])}</td></tr>'
        for part, cells in rows
    )
    told = f'{legend([("interval", told)])}<div class="wide"><table class="keys"><tbody>{keys}</tbody></table></div>'
    body = f'<div class="readable">{bar}{axis(scale, f"time of one step, {name}", plain)}<output></output></div>{told}'
    note = (
        "One device, the mean over the pipeline's ranks. Collectives count as far as no compute hides them; what "
        "follows the last backward is that of the slowest rank."
    )
    if abs(priced_s / step_s - 1) > DIFFERS:
        note += (
            f" Priced today its parts come to {seconds_text(priced_s)}: the plan was made by another version, whose "
            f"prediction the other figures are."
        )
    return figure(f"Time: {seconds_text(step_s)} a step", body, note, "time")


def interval_mark(interval: Interval, whole_s: float) -> str:
    """A span with both ends marked, over the bar."""
    low, high = percent(interval.low_s / whole_s), percent(interval.high_s / whole_s)
    ends = "".join(f'<line x1="{at}" x2="{at}" y1="25%" y2="75%"/>' for at in (low, high))
    return (
        f'<g class="interval" data-low="{interval.low_s!r}" data-high="{interval.high_s!r}">'
        f'<line x1="{low}" x2="{high}" y1="50%" y2="50%"/>{ends}</g>'
    )


def collectives_table(record: PlanRecord) -> str:
    """Every collective of a step."""
    header = ["where", "collective", "axis", "bytes", "runs", "time of all", "hidden"]
    rows = [
        [c.where, c.kind, c.axis, f"{c.bytes:,}", f"{c.count:,}", seconds_text(c.seconds), seconds_text(c.hidden_s)]
        for c in per_device(record)
    ]
    return table(header, rows, right=(3, 4, 5, 6))
