"""The report on one screen: at most 40 lines of 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from autoplan.emit.source import size_text
from autoplan.ir.choice import PricedCollective, StageMemory
from autoplan.ir.record import PlanRecord
from autoplan.report.device_kinds import memory_limit_text, memory_limits_of
from autoplan.report.notes import notes_of, others
from autoplan.report.price_tables import KINDS, hidden_text
from autoplan.report.start import start_text
from autoplan.report.table import table
from autoplan.report.text_report import SPLITS, summary_fields
from autoplan.report.waits import per_device, spent_s
from autoplan.report.words import apart_text, is_equal, parallelism_text, seconds_text, size_in, unit_for
from autoplan.search.explain.alternatives import together, whose

LINES, WIDTH, NAME = 40, 100, 12
MOST = {"collectives": 6, "plans": 6, "stages": 8, "notes": 5}  # of each, where there is room; what gives way first
LEAST = 2  # of each
WHOLE = "everything else: --verbose, plan.report(verbose=True), report.html"


def screen_text(record: PlanRecord) -> str:
    """What was chosen, at what price, why, and what else was priced. A section that has more says how much more."""
    counts = dict(MOST)
    while True:
        lines = lines_of(record, counts)
        over = max(counts, key=lambda part: counts[part])
        if len(lines) <= LINES or counts[over] == LEAST:
            return "\n".join(lines[:LINES]) + "\n"
        counts[over] -= 1


def lines_of(record: PlanRecord, counts: dict[str, int]) -> list[str]:
    sections = (
        head(record),
        notes(record, counts["notes"]),
        memory(record, counts["stages"]),
        plans(record, counts["plans"]),
        collectives(record, counts["collectives"]),
    )
    return [line for section in sections if section for line in (*section, "")] + [WHOLE]


def head(record: PlanRecord) -> list[str]:
    """The plan and its predictions, each under its name."""
    title = f"{record.model.name} on {record.cluster}"
    fields = dict(summary_fields(record))
    bubble = f"; bubble {fields.pop('bubble')}" if "bubble" in fields else ""
    splits = f"; {SPLITS} {fields.pop(SPLITS)}" if SPLITS in fields else ""
    fields["step time"] += f"; {fields.pop('throughput')}{bubble}{splits}"
    lines = [line for name, text in fields.items() for line in wrapped(f"{name:<{NAME}}{text}", NAME)]
    start = start_text(record.start)
    if start:  # what isn't known stands in the first lines
        told = wrapped(f"{'starts from':<{NAME}}{start}", NAME)
        lines[slice(2, 2) if record.start.unknown else slice(len(lines), None)] = told
    return [shortened(title), "=" * min(len(title), WIDTH), *lines]


def wrapped(text: str, indent: int, most: int = 2) -> list[str]:
    """In lines, of which further ones are indented; what takes more lines than that ends in an ellipsis."""
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * indent, max_lines=most, placeholder=" …", break_on_hyphens=False
    )


def shortened(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def shown(count: int, most: int) -> int:
    """How many of so many rows stand there: the one that alone is left stands in place of its count."""
    return count if count == most + 1 else most


def notes(record: PlanRecord, most: int) -> list[str]:
    found = notes_of(record)
    most = shown(len(found), most)
    lines = [line for note in found[:most] for line in wrapped(f"  - {note}", 4)]
    return ["Why", *lines, *more(len(found) - most, "reason")] if found else []


def more(count: int, what: str) -> list[str]:
    """``… and 3 more stages``."""
    return [f"  … and {count} more {what}{'s' * (count > 1)}"] if count > 0 else []


def memory(record: PlanRecord, most: int) -> list[str]:
    """The stages that have least left, in their order."""
    held, memory_limits = record.chosen.predicted.peak_bytes, memory_limits_of(record)
    unit, name = unit_for(max(m.total for m in held))
    most = shown(len(held), most)
    place = "rank" if len(held) < len(record.chosen.stages) else "stage"
    fullest = sorted(range(len(held)), key=lambda k: memory_limits[k] - held[k].total)[:most]
    rows = [memory_row(k, held[k], memory_limits[k], unit) for k in sorted(fullest)]
    offloads = any(m.host for m in held)
    header = [place, *KINDS, "total", "of the limit", *([apart_text(record)] if offloads else [])]
    rows = [row[: len(header)] for row in rows]
    title = shortened(f"Memory of one device at its busiest, {name} (memory limit: {memory_limit_text(record)})")
    return [title, *table(header, rows, right=range(len(header))).splitlines(), *more(len(held) - len(rows), place)]


def memory_row(number: int, memory: StageMemory, memory_limit: int, unit: int) -> list[str]:
    sizes = [size_in(unit, size) for size in (*(getattr(memory, kind) for kind in KINDS), memory.total)]
    return [str(number), *sizes, f"{100 * memory.total / memory_limit:.0f}%", size_in(unit, memory.host)]


def plans(record: PlanRecord, most: int) -> list[str]:
    """The alternatives that apply, those that fit first."""
    step_s, found = record.chosen.predicted.step_time_s, others(record)
    found.sort(key=lambda a: (a.over_bytes > 0, a.step_time_s))
    most = shown(len(found), most)
    rows = []
    for a in found[:most]:
        slower = f"{100 * (a.step_time_s / step_s - 1):+.1f}%" if step_s else ""
        slower += ", equal" if is_equal(record, a) else ""
        fits = f"no, {size_text(a.over_bytes)} too much" if a.over_bytes > 0 else "yes"
        rows.append([a.name, seconds_text(a.step_time_s), slower, fits, parallelism_text(a.parallelism)])
    header = ["plan", "step time", "difference", "fits", "parallelism"]
    return ["Beside it", *cut(header, rows, (1, 2)), *more(len(found) - most, "alternative")] if rows else []


def cut(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """A table of one line a row: a last column that doesn't fit ends in an ellipsis."""
    before = 2 + sum(max(len(row[i]) for row in (header, *rows)) + 2 for i in range(len(header) - 1))
    fitted = [[*row[:-1], shortened(row[-1], max(WIDTH - before, 12))] for row in rows]
    return [shortened(line) for line in table(header, fitted, right=right).splitlines()]


def collectives(record: PlanRecord, most: int) -> list[str]:
    """Those that take longest, of the pipeline rank that has most of each; those of one kind in one block are a row."""
    summed: dict[tuple[str, str, str], PricedCollective] = {}
    for one in per_device(record):
        key = (whose(one), one.kind, one.axis)
        summed[key] = together(summed[key], one) if key in summed else one
    found = sorted(summed.values(), key=lambda c: -c.seconds)
    if not found:
        return []
    most = shown(len(found), most)
    total_s, open_s = spent_s(record, hidden=True), spent_s(record, hidden=False)
    rows = [
        [whose(c), c.kind, c.axis, size_text(c.bytes), f"{c.count:,}", seconds_text(c.seconds), hidden_text(c)]
        for c in found[:most]
    ]
    title = f"Collectives of one step on one device: {seconds_text(total_s)}, {seconds_text(open_s)} in the open"
    header = ["where", "collective", "axis", "bytes at most", "runs", "time of all", "hidden"]
    return [title, *cut(header, rows, (3, 4, 5)), *more(len(found) - most, "collective")]
