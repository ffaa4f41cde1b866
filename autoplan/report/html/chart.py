"""What charts share: escaping, axes, legends, tables."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

TICKS = 6  # steps that an axis has at most, so that they fit beside one another on a phone


def text(value: object) -> str:
    """Escaped, for an element or an attribute."""
    return html.escape(str(value), quote=True)


def percent(share: float) -> str:
    """``12.345%`` of a chart's width."""
    return f"{100 * share:.4g}%"


@dataclass(frozen=True)
class Scale:
    """From a quantity to a share of the chart: linear, or logarithmic."""

    first: float
    last: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            return math.log(value / self.first) / math.log(self.last / self.first)
        return (value - self.first) / (self.last - self.first)

    @property
    def ticks(self) -> list[float]:
        """Round numbers inside, in at most TICKS steps."""
        return log_ticks(self.first, self.last) if self.log else linear_ticks(self.first, self.last)


def linear_ticks(first: float, last: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    step = 10 ** math.floor(math.log10((last - first) / TICKS))
    step *= next(factor for factor in (1, 2, 5, 10, 20) if (last - first) / (step * factor) <= TICKS)
    count = math.floor(last / step + 1e-9) - math.ceil(first / step - 1e-9) + 1
    return [(math.ceil(first / step - 1e-9) + number) * step for number in range(count)]


def log_ticks(first: float, last: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where few are inside; a short stretch is ticked as a linear one is."""
    decades = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**decade for decade in decades for factor in factors]
        inside = [value for value in found if first <= value <= last]
        if 3 <= len(inside) <= TICKS:
            return inside
    if len(inside) < 3 and last / first < 100:
        return [value for value in linear_ticks(first, last) if value >= first]
    return inside[:: math.ceil(len(inside) / TICKS)]


def plain(value: float) -> str:
    """A tick's number: no more digits than it has."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def axis(
    scale: Scale, label: str, shown: Callable[[float], str] = plain, at: Sequence[float] | None = None
) -> str:
    """A horizontal axis: ticks, at round numbers or where asked, and what it measures in which unit."""
    ticks = "".join(tick(scale(value), shown(value)) for value in (scale.ticks if at is None else at))
    return f'<div class="axis"><div class="ticks">{ticks}</div><div class="unit">{text(label)}</div></div>'


def tick(share: float, number: str) -> str:
    """A number under its place; at an end of the axis inside of it."""
    end = ' class="begin"' if share < 0.02 else ' class="end"' if share > 0.97 else ""
    return f'<i{end} style="left:{percent(share)}">{text(number)}</i>'


def grid(scale: Scale) -> str:
    """Lines across a drawing at the vertical scale's ticks, each with its number."""
    return "".join(
        f'<line class="grid" x1="0" x2="100%" y1="{percent(1 - scale(v))}" y2="{percent(1 - scale(v))}"/>'
        f'<text class="tick" x="2" y="{percent(1 - scale(v))}" dy="-3">{text(plain(v))}</text>'
        for v in scale.ticks
    )


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Colours with their names; (class, text)."""
    items = "".join(f'<li><b class="key {css}"></b>{text(name)}</li>' for css, name in entries)
    return f'<ul class="legend">{items}</ul>'


def figure(title: str, body: str, note: str = "", name: str = "") -> str:
    """A chart under a heading."""
    said = f"<p>{text(note)}</p>" if note else ""
    return f'<section{f" id={chr(34)}{name}{chr(34)}" if name else ""}><h2>{text(title)}</h2>{said}{body}</section>'


def folded(title: str, body: str, *, shown: bool = False) -> str:
    return f"<details{' open' if shown else ''}><summary>{text(title)}</summary>{body}</details>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table that scrolls by itself where it is wider than the page. Cells are text."""

    def row(cells: Sequence[str], tag: str) -> str:
        put = (f"<{tag}{' class=n' if i in right else ''}>{text(cell)}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(put)}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return f'<div class="wide"><table><thead>{row(header, "th")}</thead><tbody>{body}</tbody></table></div>'
