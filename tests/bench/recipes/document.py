"""The parts of docs/appendix/recipes.md: a line a recipe, theirs beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date

from autoplan.report.words import parallelism_text, seconds_text
from tests.bench.recipes.price import JobPlans
from tests.bench.recipes.row import Job, Recipe, Refused

HEADER = ("row", "recipe", "theirs", "memory", "ours", "step", "memory", "ours / theirs", "CPU s")
SLOWER = 1.002  # ours may be slower by the tolerance that the search stops at
NOT_RUN = "not planned in this run"
ROOM = 150  # characters of a reason


def parts(rows: Sequence[Recipe | Refused], found: Mapping[Job, JobPlans | str]) -> dict[str, str]:
    """Every printed part by the name between its marks."""
    lines = [HEADER, ("---",) * len(HEADER), *(line(row, found) for row in rows)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    notes = Counter(note for row in rows if isinstance(row, Recipe) for note in row.notes)
    told = "\n".join(f"- {note} ({count} row{'s' if count > 1 else ''})" for note, count in sorted(notes.items()))
    return {"date": f"Planned on {date.today().isoformat()}.", "summary": summary(rows, found), "table": table,
            "notes": told}  # fmt: skip


def line(row: Recipe | Refused, found: Mapping[Job, JobPlans | str]) -> tuple[str, ...]:
    if isinstance(row, Refused):
        return (row.name, row.text, f"not planned: {row.reason}", *("-",) * 6)
    plans = found.get(row.job, NOT_RUN)
    if isinstance(plans, str):
        return (row.name, row.text, short(plans), *("-",) * 6)
    theirs, ours = plans.theirs[row.name], plans.ours
    whose = f"{seconds_text(theirs.step_s)}" if theirs.plan else short(theirs.reason)
    mine = (ours.plan, seconds_text(ours.step_s), gigabytes(ours.memory_bytes)) if ours.plan else (
        short(ours.reason), "-", "-")  # fmt: skip
    ratio = f"{ours.step_s / theirs.step_s:.3f}" if ours.plan and theirs.plan else "-"
    seconds = f"{theirs.cpu_s:.1f}, {ours.cpu_s:.1f}"
    text = f"{row.text}: {parallelism_text(row.pins)}"
    return (row.name, text, whose, gigabytes(theirs.memory_bytes) if theirs.plan else "-", *mine, ratio, seconds)


def short(reason: str) -> str:
    """The beginning of a reason, on one line of a table."""
    text = " ".join(reason.split()).replace("|", "/")
    return text if len(text) <= ROOM else f"{text[:ROOM].rsplit(' ', 1)[0]} …"


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def summary(rows: Sequence[Recipe | Refused], found: Mapping[Job, JobPlans | str]) -> str:
    """How many rows end in which way."""
    ends: Counter[str] = Counter()
    ratios = []
    for row in rows:
        plans = found.get(row.job, NOT_RUN) if isinstance(row, Recipe) else None
        if plans is None:
            ends["not planned: their model, devices or axes aren't known or can't be said"] += 1
        elif isinstance(plans, str):
            ends[NOT_RUN if plans == NOT_RUN else "the planner failed"] += 1
        else:
            assert isinstance(row, Recipe)
            theirs, ours = plans.theirs[row.name], plans.ours
            ends[ending(bool(theirs.plan), theirs.reason)] += 1
            if theirs.plan and ours.plan:
                ratios.append(ours.step_s / theirs.step_s)
    lines = [f"- {count} rows: {end}" for end, count in ends.most_common()]
    if ratios:
        slower = sum(ratio > SLOWER for ratio in ratios)
        mean = sum(ratios) / len(ratios)
        lines.append(f"- ours takes {mean:.3f} of theirs on average over {len(ratios)} rows; it is more than "
                     f"{SLOWER - 1:.1%} slower in {slower}")  # fmt: skip
    return "\n".join(lines)


def ending(fits: bool, reason: str) -> str:
    if fits:
        return "planned as pinned, and fit"
    short_of_memory = "doesn't fit" in reason or "does not fit" in reason
    return "as pinned they don't fit" if short_of_memory else "their pins are refused"
