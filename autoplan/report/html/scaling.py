"""How a plan scales: its throughput over devices and over bandwidth, each point a plan of its own."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from autoplan.report.html.chart import Scale, axis, figure, grid, legend, percent, plain, table, text
from autoplan.report.words import seconds_text

HEIGHT = 220  # pixels
LINKS = {"nic": "the network between nodes", "node": "the links inside the node"}
Point = Mapping[str, Any]


def scaling_section(found: Mapping[str, Any]) -> str:
    """The data of scaling.json."""
    elements, link = str(found["elements"]), LINKS[found["link"]]
    devices, widths = found["devices"], found["bandwidth"]
    own = next(p for p in devices if p["plan"] == found["plan"] and p["tokens_per_s"])
    ideal = {p["devices"]: own["tokens_per_s"] * p["devices"] / own["devices"] for p in devices}
    keys = legend([("fits", f"{elements}/s of the best plan found"), ("ideal", "in proportion to the devices")])
    body = (
        f"<h3>Over devices</h3>{curve(devices, 'devices', 'devices (logarithmic)', elements, ideal)}{keys}"
        f"{points_table(devices, 'devices', elements)}<h3>Over bandwidth</h3>"
        f"{curve(widths, 'bandwidth', f'times the bandwidth of {link} (logarithmic)', elements)}"
        f"{points_table(widths, 'bandwidth', elements)}"
    )
    note = "The same batch. Each point is a plan of its own, by the quick search, with what was pinned."
    return figure("Scaling", body, note, "scaling")


def curve(
    points: Sequence[Point], key: str, label: str, elements: str, ideal: Mapping[float, float] | None = None
) -> str:
    """Throughput over devices, both logarithmic, or over bandwidth, from none up; what doesn't fit has no dot."""
    planned = [p for p in points if p["tokens_per_s"]]
    places = [float(p[key]) for p in points]
    rates = [p["tokens_per_s"] for p in planned] + list((ideal or {}).values())
    across = Scale(min(places) / 1.15, max(places) * 1.15, log=True)
    along = Scale(min(rates) / 1.3, max(rates) * 1.3, log=True) if ideal else Scale(0.0, 1.08 * max(rates))
    spots = [(across(float(p[key])), 1 - along(p["tokens_per_s"])) for p in planned]
    lines = path(spots, "line")
    if ideal:
        lines += path([(across(float(count)), 1 - along(rate)) for count, rate in ideal.items()], "ideal")
    dots = "".join(
        f'<g data-{key}="{p[key]}" data-rate="{p["tokens_per_s"]!r}"><title>{text(point_text(p, elements))}</title>'
        f'<circle class="fits" cx="{percent(x)}" cy="{percent(y)}" r="6"/></g>'
        for p, (x, y) in zip(planned, spots, strict=True)
    )
    return (
        f'<div class="readable"><p class="unit">{text(elements)} a second{" (logarithmic)" if ideal else ""}</p>'
        f'<svg class="plane" style="height:{HEIGHT}px" role="img" aria-label="{text(f"{elements}/s over {key}")}">'
        f"{grid(along)}{lines}{dots}</svg>{axis(across, label, plain, places)}<output></output></div>"
    )


def path(spots: Sequence[tuple[float, float]], css: str) -> str:
    """Straight lines from one place to the next, in shares of the chart."""
    return "".join(
        f'<line class="{css}" x1="{percent(x)}" y1="{percent(y)}" x2="{percent(to_x)}" y2="{percent(to_y)}"/>'
        for (x, y), (to_x, to_y) in pairwise(spots)
    )


def point_text(p: Point, elements: str) -> str:
    rate = f"{p['tokens_per_s']:,.0f} {elements}/s, {seconds_text(p['step_time_s'])} a step"
    return f"{p['cluster']}: {rate}, MFU {100 * p['mfu']:.1f}%; {p['plan']}"


def points_table(points: Sequence[Point], key: str, elements: str) -> str:
    header = [key, "step time", f"{elements}/s", "MFU", "plan"]
    return table(header, [[plain(p[key]), *row_of(p)] for p in points], right=(0, 1, 2, 3))


def row_of(p: Point) -> list[str]:
    if not p["tokens_per_s"]:
        return ["", "", "", p["why_not"]]
    return [seconds_text(p["step_time_s"]), f"{p['tokens_per_s']:,.0f}", f"{100 * p['mfu']:.1f}%", p["plan"]]
