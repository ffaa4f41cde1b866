"""The page: a headline, charts, and what they leave out, folded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from autoplan.ir.record import PlanRecord
from autoplan.report.html.alternatives import alternatives_section
from autoplan.report.html.chart import figure, folded, text
from autoplan.report.html.layer import layers_section
from autoplan.report.html.memory import memory_section
from autoplan.report.html.rehearsed import rehearsal_section
from autoplan.report.html.scaling import scaling_section
from autoplan.report.html.time_bar import collectives_table, time_section
from autoplan.report.html.timeline import timeline_section
from autoplan.report.notes import notes_of
from autoplan.report.price_tables import search_lines
from autoplan.report.program_tables import blocks_section
from autoplan.report.text_report import summary_fields
from autoplan.report.words import headline
from autoplan.search.breakdown import breakdown

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""


def report_html(record: PlanRecord, found: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """The page of a plan; nothing is loaded from elsewhere.

    found  what was asked about the plan since: the data of "rehearsal" and of "scaling"
    """
    told = found or {}
    step = breakdown(record)
    name = f"{record.model.name} on {record.cluster}"
    parts = (
        header(record, name),
        time_section(record, step),
        memory_section(record),
        rehearsal_section(told["rehearsal"]) if "rehearsal" in told else "",
        timeline_section(record, step),
        layers_section(record),
        alternatives_section(record),
        scaling_section(told["scaling"]) if "scaling" in told else "",
        items("Why", notes_of(record)),
        items("The search", search_lines(record)),
        folded("Every collective of a step", collectives_table(record)),
        folded("Every operator with its layout", f"<pre>{text(blocks_section(record))}</pre>"),
    )
    files = resources.files("autoplan.report.html").joinpath("assets")
    style, script = (files.joinpath(file).read_text() for file in ("page.css", "page.js"))
    body = "\n".join(part for part in parts if part)
    title = text(f"{name}: {headline(record)}")
    return PAGE.format(title=title, style=style, script=script, body=f"<main>{body}</main>")


def header(record: PlanRecord, name: str) -> str:
    """What was planned, and what it is predicted to reach."""
    fields = "".join(f"<dt>{text(key)}</dt><dd>{text(value)}</dd>" for key, value in summary_fields(record))
    return f"<header><h1>{text(name)}</h1><dl>{fields}</dl></header>"


def items(title: str, lines: list[str]) -> str:
    return figure(title, f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>") if lines else ""
