"""The parts of docs/appendix/recipes.md: a line a recipe, theirs beside ours.

A line says when it was planned. Where a run doesn't plan a row, the line that the page has of the same row with the
same pins stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from autoplan.report.words import parallelism_text, seconds_text
from tests.bench.recipes.price import JobPlans
from tests.bench.recipes.row import Job, Recipe, Refused

Cells = tuple[str, ...]
HEADER = ("row", "recipe", "theirs", "memory", "ours", "step", "memory", "ours / theirs", "CPU s", "GiB", "planned")
RECIPE, THEIRS, MEMORY, RATIO, SECONDS, PEAK = 1, 2, 3, 7, 8, 9
SLOWER = 1.002  # ours may be slower by the tolerance that the search stops at
LONG_S, LARGE_GIB = 30, 2  # what the planner may take for one search
NOT_RUN, NOT_KNOWN = "not planned yet", "not planned: "
ROOM = 150  # characters of a reason other than of memory


def parts(
    rows: Sequence[Recipe | Refused], found: Mapping[Job, JobPlans | str], before: Mapping[str, Cells]
) -> dict[str, str]:
    """Every printed part by the name between its marks.

    before  the lines that the page has, by row
    """
    lines = [line(row, found, before) for row in rows]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (HEADER, ("---",) * len(HEADER), *lines))
    notes = Counter(note for row in rows if isinstance(row, Recipe) for note in row.notes)
    told = "\n".join(f"- {note} ({count} row{'s' if count > 1 else ''})" for note, count in sorted(notes.items()))
    return {"summary": "\n".join(summary(lines)), "table": table, "notes": told}


def lines_of(document: str) -> dict[str, Cells]:
    """The lines of the table in a page, by row."""
    _, _, rest = document.partition("<!-- table -->\n")
    table = rest.partition("<!-- end of table -->")[0].splitlines()[2:]
    found = (tuple(cell.strip() for cell in text.strip("|").split(" | ")) for text in table)
    return {cells[0]: cells for cells in found if len(cells) == len(HEADER)}


def line(
    row: Recipe | Refused, found: Mapping[Job, JobPlans | str], before: Mapping[str, Cells]
) -> Cells:  # fmt: skip
    if isinstance(row, Refused):
        return blank(row.name, row.text, f"{NOT_KNOWN}{row.reason}")
    text, plans = f"{row.text}: {parallelism_text(row.pins)}", found.get(row.job)
    if plans is None:
        kept = before.get(row.name)
        return kept if kept is not None and kept[RECIPE] == text else blank(row.name, text, NOT_RUN)
    if isinstance(plans, str):
        return blank(row.name, text, f"the planner failed: {short(plans)}")
    theirs, ours = plans.theirs[row.name], plans.ours
    whose = f"{seconds_text(theirs.step_s)}" if theirs.plan else short(theirs.reason)
    mine = (ours.plan, seconds_text(ours.step_s), gigabytes(ours.memory_bytes)) if ours.plan else (
        short(ours.reason), "-", "-")  # fmt: skip
    ratio = f"{ours.step_s / theirs.step_s:.4f}" if ours.plan and theirs.plan else "-"
    seconds, peak = f"{theirs.cpu_s:.1f}, {ours.cpu_s:.1f}", f"{plans.peak_bytes / 2**30:.2f}"
    memory = gigabytes(theirs.memory_bytes) if theirs.plan else "-"
    return (row.name, text, whose, memory, *mine, ratio, seconds, peak, plans.day)


def blank(name: str, text: str, why: str) -> Cells:
    """The line of a row that has no plans."""
    return (name, text, why, *("-",) * (len(HEADER) - 3))


def short(reason: str) -> str:
    """A reason on one line of a table: its beginning, or all of it where it says which bytes don't fit."""
    text = " ".join(reason.split()).replace("|", "/")
    return text if len(text) <= ROOM or too_large(text) else f"{text[:ROOM].rsplit(' ', 1)[0]} …"


def too_large(reason: str) -> bool:
    return "doesn't fit" in reason or "does not fit" in reason


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def summary(lines: Sequence[Cells]) -> Iterator[str]:
    """How many rows end in which way, how ours compare, and what searches took."""
    for end, count in Counter(map(ending, lines)).most_common():
        yield f"- {count} {'rows' if count > 1 else 'row'}: {end}"
    ratios = [float(cells[RATIO]) for cells in lines if cells[RATIO] != "-"]
    if ratios:
        mean, slower = sum(ratios) / len(ratios), sum(ratio > SLOWER for ratio in ratios)
        yield (f"- ours takes {mean:.3f} of theirs on average over {len(ratios)} rows, from {min(ratios):.3f} to "
               f"{max(ratios):.3f}; it is more than {SLOWER - 1:.1%} slower in {slower}")  # fmt: skip
    long = [cells[0] for cells in lines if any(float(s) > LONG_S for s in cells[SECONDS].split(", ") if s != "-")]
    known = [cells for cells in lines if cells[PEAK] != "-"]
    large = [cells[0] for cells in known if float(cells[PEAK]) > LARGE_GIB]
    yield f"- a search took more than {LONG_S} s of the processor in {len(long)} rows{listed(long)}"
    yield f"- the process took more than {LARGE_GIB} GiB in {len(large)} of {len(known)} rows{listed(large)}"


def listed(names: Sequence[str]) -> str:
    return f": {', '.join(names)}" if names else ""


def ending(cells: Cells) -> str:
    """What became of a row."""
    theirs = cells[THEIRS]
    if theirs == NOT_RUN:
        return NOT_RUN
    if theirs.startswith(NOT_KNOWN):
        return "not planned: their model, devices or axes aren't known or can't be said"
    if cells[MEMORY] != "-":
        return "planned as pinned, and fit"
    if theirs.startswith("the planner failed"):
        return "the planner failed"
    return "as pinned they don't fit" if too_large(theirs) else "their pins are refused"
