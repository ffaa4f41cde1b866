"""What was measured, as the section of docs/appendix/accuracy.md between <!-- live --> and <!-- /live -->."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from autoplan.report.notes import notes_section
from tests.bench.live.cases import LENGTH, ROWS
from tests.bench.live.measured import Measured, Row

CORRELATION, WITHIN = 0.9, 1.05
SECTION = re.compile(r"(<!-- live -->\n)(.*?)(<!-- /live -->)", re.DOTALL)

INTRODUCTION = """Written by `make bench-live` on {date}: four gloo processes, first on one node, then on two nodes,
two on each, joined by a link of 200 Mbit/s. On each cluster `cost_models.calibrate` measured the profile; the plans of
one small Llama ({rows} rows of {length} tokens, float32, AdamW) were made under it, exported, and run in {rounds}
interleaved rounds of one optimizer step each, those far from the fastest in fewer. Times are in seconds; of the
measured ones the median over the rounds, and in brackets the least and the greatest. Places are those in the order of
time, without the plan of `auto`.
"""


def section(found: Sequence[Measured]) -> str:
    """Markdown: for each cluster its table and what is asked of it; then why the two choices differ."""
    rounds = max(len(row.seconds) for row in found[0].rows)
    parts = [INTRODUCTION.format(date=date.today().isoformat(), rows=ROWS, length=LENGTH, rounds=rounds)]
    for measured in found:
        parts += [f"### On {measured.name}\n", *table(measured), "", *verdict(measured), ""]
    parts.append("### What `auto` chose, and why\n")
    for measured in found:
        parts += [f"On {measured.name}: **{measured.auto.plan}**. Its report:\n", *quoted(measured.auto), ""]
    return "\n".join(parts).rstrip() + "\n"


def table(measured: Measured) -> Iterator[str]:
    predicted = places([row.predicted_s for row in measured.pinned])
    timed = places([row.measured_s for row in measured.pinned])
    yield "| plan | parallelism | predicted | measured | predicted / measured | place predicted | place measured |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    order = dict(zip((row.name for row in measured.pinned), zip(predicted, timed, strict=True), strict=True))
    for row in sorted(measured.rows, key=lambda row: row.measured_s):
        told, seen = order.get(row.name, ("", ""))
        spread = f"{row.measured_s:.3f} ({min(row.seconds):.3f}–{max(row.seconds):.3f})"
        cells = (row.name, str(row.plan), f"{row.predicted_s:.3f}", spread, f"{row.predicted_s / row.measured_s:.2f}")
        yield f"| {' | '.join((*cells, str(told), str(seen)))} |"


def places(seconds: Sequence[float]) -> list[int]:
    """The place of each in ascending order, from 1."""
    order = sorted(range(len(seconds)), key=lambda i: seconds[i])
    return [order.index(i) + 1 for i in range(len(seconds))]


def verdict(measured: Measured) -> Iterator[str]:
    yield f"Rank correlation over {len(measured.pinned)} plans: {measured.correlation:.3f} (asked: {CORRELATION})."
    share = 100 * (measured.auto_over_fastest - 1)
    yield f"The plan of `auto` takes {share:.1f}% longer than the fastest measured (asked: at most 5%)."


def quoted(row: Row) -> list[str]:
    """The reasons that the plan's report gives."""
    return ["```text", *notes_section(row.plan.record).splitlines(), "```"]


def failures(found: Sequence[Measured]) -> list[str]:
    """What is asked and was not reached."""
    said = []
    for measured in found:
        if measured.correlation < CORRELATION:
            said.append(f"{measured.name}: rank correlation {measured.correlation:.3f}, asked {CORRELATION}")
        if measured.auto_over_fastest > WITHIN:
            said.append(f"{measured.name}: auto takes {measured.auto_over_fastest:.3f} times the fastest")
    plans = {str(measured.auto.plan) for measured in found}
    if len(found) > 1 and len(plans) < len(found):
        said.append(f"auto chose {plans.pop()} on every cluster")
    return said


def write_section(text: str, path: Path) -> None:
    """Replaces the section in the document, or adds it at the end where there is none."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if SECTION.search(before):
        after = SECTION.sub(lambda found: f"{found[1]}{text}{found[3]}", before)
    else:
        after = f"{before}\n## Measured for real on this machine\n\n<!-- live -->\n{text}<!-- /live -->\n"
    path.write_text(after, encoding="utf-8")
