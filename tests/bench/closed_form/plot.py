"""Predicted against measured, both axes logarithmic: a panel for each quantity, a colour for each table.

Apart from the rest, since matplotlib is wanted for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.bench.closed_form.result import TableResult

STYLE: Any = {"svg.hashsalt": "autoplan", "svg.fonttype": "none", "font.size": 9}
"""A fixed salt: the same points make the same bytes."""
WIDTH_IN = 6.0


def write_plot(results: Sequence[TableResult], path: Path) -> None:
    """An SVG; reported rows are filled, those that may have been fitted on are open."""
    quantities = list(dict.fromkeys(result.quantity for result in results))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN * min(2, len(quantities)), WIDTH_IN * ((len(quantities) + 1) // 2)))
        for place, quantity in enumerate(quantities, start=1):
            axes = figure.add_subplot((len(quantities) + 1) // 2, min(2, len(quantities)), place)
            _panel(axes, quantity, [result for result in results if result.quantity == quantity])
        figure.subplots_adjust(left=0.1, right=0.97, top=0.95, bottom=0.08, wspace=0.22, hspace=0.25)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _panel(axes: Axes, quantity: str, results: Sequence[TableResult]) -> None:
    names = list(dict.fromkeys(result.name for result in results))
    points = [point for result in results for point in result.points]
    ends = [
        min(min(point.measured, point.predicted) for point in points) / 1.5,
        max(max(point.measured, point.predicted) for point in points) * 1.5,
    ]
    axes.loglog(ends, ends, color="0.6", linewidth=0.8)
    colours = matplotlib.colormaps["tab20" if len(names) > 10 else "tab10"]
    for result in results:
        colour = colours(names.index(result.name))
        for half, filled in ((result.fitted, False), (result.reported, True)):
            axes.scatter(
                [point.measured for point in half], [point.predicted for point in half], s=12, linewidths=0.7,
                edgecolors=[colour], facecolors=[colour] if filled else "none",
            )  # fmt: skip
    for name in names:
        axes.scatter([], [], s=12, color=colours(names.index(name)), label=name)
    axes.set(title=quantity, xlabel="measured", ylabel="predicted", xlim=ends, ylim=ends)
    axes.minorticks_off()
    axes.legend(fontsize=7, frameon=False)
