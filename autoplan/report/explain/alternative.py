"""Another plan beside this one: where its time goes, and why it wasn't taken."""

from __future__ import annotations

from dataclasses import replace

from autoplan.emit.source import size_text
from autoplan.errors import InputsError, ParallelismError
from autoplan.ir.choice import Alternative
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism
from autoplan.report.device_kinds import memory_limits_of
from autoplan.report.kept_out import kept_out
from autoplan.report.table import paragraph, table
from autoplan.report.words import fullest_stage, headline, seconds_text
from autoplan.search.breakdown import breakdown
from autoplan.search.space.systems import CLASSICAL, read


def asked_for(record: PlanRecord, name: str) -> str | Parallelism | None:
    """What a name asks to be planned: one of the report's alternatives, a named system, or fields ("dp=2 tp=4"); None
    where it is none of these."""
    known = dict(CLASSICAL)
    found = listed(record, name)
    if found is not None and not found.why_not and name not in known:
        return replace(found.parallelism, recompute=None)  # as an older plan's "selective" may be of some layers
    try:
        asked = read(known.get(name, name))
    except (ParallelismError, InputsError):
        return None
    return None if asked == "auto" else asked


def listed(record: PlanRecord, name: str) -> Alternative | None:
    """The report's alternative of that name."""
    return next((a for a in record.alternatives if a.name == name), None)


def alternative_text(record: PlanRecord, name: str, other: PlanRecord | None, why: str = "") -> str:
    """The plan and the other side by side, and the verdict.

    other  the alternative, planned; None where it can't be, and ``why`` says why
    """
    head = f"{name}, beside the plan {headline(record)}"
    if other is None:
        beside = listed(record, name)
        said = f"Not taken: {why}"
        if beside is not None and beside.over_bytes > 0:
            times = seconds_text(beside.step_time_s), seconds_text(record.chosen.predicted.step_time_s)
            said = (
                f"Not taken: it exceeds the memory limit by {size_text(beside.over_bytes)} a device; it would take "
                f"{times[0]}, and the plan takes {times[1]}."
            )
        return f"{head}\n\n{paragraph(said, bullet='')}\n"
    lines = [head, "", f"  as planned now: {headline(other)}"]
    header = ["of a step", "the plan", name]
    said = paragraph(verdict(record, other), bullet="")
    lines += ["", table(header, comparison(record, other), right=(1,)), "", said]
    return "\n".join(lines) + "\n"


def comparison(record: PlanRecord, other: PlanRecord) -> list[list[str]]:
    """Time by part, and the fullest device."""
    both = record, other
    rows = [["time", *(seconds_text(one.chosen.predicted.step_time_s) for one in both)]]
    parts = [{f"{p.kind} {p.axis}".strip(): p.seconds for p in breakdown(one).parts} for one in both]
    for name in dict.fromkeys((*parts[0], *parts[1])):
        rows.append([name, *(seconds_text(found.get(name, 0.0)) for found in parts)])
    rows.append(["fullest device", *(size_text(peak(one)) for one in both)])
    return rows


def peak(record: PlanRecord) -> int:
    return record.chosen.predicted.peak_bytes[fullest_stage(record.chosen, memory_limits_of(record))].total


def verdict(record: PlanRecord, other: PlanRecord) -> str:
    """Why it wasn't taken, by what differs most."""
    own_s, its_s = (one.chosen.predicted.step_time_s for one in (record, other))
    if not own_s or headline(record) == headline(other):
        return "It is the plan itself."
    ratio = its_s / own_s - 1
    if ratio < -1e-6:
        reason = kept_out(record, other.chosen.parallelism)
        return f"Not taken, though it fits and takes {-100 * ratio:.1f}% less time: {reason}. parallelism= plans it."
    if ratio <= 1e-6:
        return "It takes as long: the search met the plan first."
    one, its = ({f"{p.kind} {p.axis}".strip(): p.seconds for p in breakdown(r).parts} for r in (record, other))
    worst = max(dict.fromkeys((*one, *its)), key=lambda name: its.get(name, 0.0) - one.get(name, 0.0))
    more_s = its.get(worst, 0.0) - one.get(worst, 0.0)
    return f"Not taken: it takes {100 * ratio:.1f}% longer. Most of it is {worst}: {seconds_text(more_s)} more."
