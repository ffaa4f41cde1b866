"""The printed parts of docs/appendix/prices.md: formulas, what they are worth at a point, where recipes cross."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sympy

from cost_models.sensitivity.expression import closed_form
from tests.bench.prices import formulas
from tests.bench.prices.examples import (
    RECIPES,
    SEQUENCE,
    bandwidths_gb_per_s,
    by_batch,
    by_network,
    by_sequence,
    formula,
    held_bytes,
    point,
    slopes,
)

FORMULAS = {
    "operators": formulas.operators,
    "fusion": formulas.fusion,
    "collectives": formulas.collectives,
    "memory": formulas.held,
    "pipeline": formulas.pipelines,
    "data axis": formulas.data_axis,
    "overlap": formulas.overlap,
    "stragglers": formulas.stragglers,
}
UNITS = {"batch": (1e3, "ms a sequence"), "sequence": (1e6, "µs a token"), "node": (1e3, "ms for each GB/s"),
         "network": (1e3, "ms for each GB/s")}  # fmt: skip


def parts() -> dict[str, str]:
    """Every printed part by the name between its marks."""
    printed = {name: _block(_formulas(name)) for name in FORMULAS}
    printed["closed forms"] = _block(_closed_forms())
    printed["sensitivities"] = "\n".join(_sensitivities())
    printed["crossovers"] = "\n".join(f"- {line}." for line in crossovers())
    return printed


def rewritten(document: str, printed: Mapping[str, str]) -> str:
    """The document with its marked parts as ``parts`` prints them now.

    A ``ValueError`` where it lacks one.
    """
    for name, text in printed.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = document.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"no part {name!r}: put <!-- {name} --> and <!-- end of {name} --> where it belongs")
        document = f"{before}{begin}{text}\n{end}{after}"
    return document


def readable(expression: sympy.Basic) -> str:
    """A formula on one line."""
    text = str(expression).replace("**2", "²").replace("*", "·")
    for name, short in (("Max", "max"), ("Min", "min"), ("ceiling", "ceil")):
        text = text.replace(f"{name}(", f"{short}(")
    return text


def crossovers() -> tuple[str, ...]:
    """Where one recipe overtakes the other, in sentences."""
    return tuple(line for found in (by_sequence(), by_batch(), by_network()) for line in found.sentences)


def _block(lines: Iterator[tuple[str, str]]) -> str:
    rows = list(lines)
    width = max(len(what) for what, _ in rows)
    return "\n".join(["```text", *(f"{what:<{width}}  {text}" for what, text in rows), "```"])


def _formulas(name: str) -> Iterator[tuple[str, str]]:
    for what, price in FORMULAS[name]():
        yield what, readable(formulas.tidy(price))


def _closed_forms() -> Iterator[tuple[str, str]]:
    for name in RECIPES:
        yield f"{name}, s", readable(closed_form(formula(name), point()))
        yield f"{name}, bytes", readable(closed_form(held_bytes(name, SEQUENCE), point()))


def _sensitivities() -> Iterator[str]:
    """A table: the step, and for each symbol its slope and elasticity."""
    node, network = bandwidths_gb_per_s()
    yield f"| recipe | step | batch (128) | sequence (8192) | node ({node:.0f} GB/s) | network ({network:.0f} GB/s) |"
    yield "|---|---|---|---|---|---|"
    for name in RECIPES:
        found = slopes(name)
        cells = [_cell(found[each].slope * UNITS[each][0], UNITS[each][1], found[each].elasticity) for each in UNITS]
        seconds = found["batch"].seconds
        yield f"| {name} | {seconds:.2f} s | {' | '.join(cells)} |"


def _cell(slope: float, unit: str, elasticity: float) -> str:
    if not slope:
        return "0"
    return f"{slope:+.3g} {unit}: {elasticity:+.2f}"
