"""What the plan is predicted to cost, as tables: memory, collectives, the alternatives, the search itself."""

from collections.abc import Sequence
from itertools import groupby

from autoplan.emit.source import size_text
from autoplan.ir.choice import Alternative, PricedCollective, SearchReport, StageChoice
from autoplan.ir.record import PlanRecord
from autoplan.report.device_kinds import memory_limit_text, memory_limits_of, stage_kinds
from autoplan.report.table import paragraph, table
from autoplan.report.waits import per_device, spent_s
from autoplan.report.words import GIB, MIB, apart_text, headline, is_chosen, parallelism_text, seconds_text, size_in
from autoplan.search.explain.pins import PRICES_OF_PINS
from autoplan.search.space.systems import CLASSICAL

SHOWN = 8  # alternatives with a row of their own
KINDS = ("parameters", "gradients", "optimizer", "activations", "transients")


def memory_section(record: PlanRecord) -> str:
    """Bytes by kind on one device of each stage, or of each pipeline rank where it holds several, against what a device
    holds; and in its host's memory, where any are there."""
    kinds, memory_limits = stage_kinds(record), memory_limits_of(record)
    offloads = any(held.host for held in record.chosen.predicted.peak_bytes)
    largest = max(held.total for held in record.chosen.predicted.peak_bytes)
    unit, name = (GIB, "GiB") if largest >= GIB // 10 else (MIB, "MiB")
    rows = []
    stages, ranks = record.chosen.stages, len(record.chosen.predicted.peak_bytes)
    for number, held in enumerate(record.chosen.predicted.peak_bytes):
        sizes = [size_in(unit, size) for size in (*(getattr(held, kind) for kind in KINDS), held.total)]
        share = f"{100 * held.total / memory_limits[number]:.0f}%"
        beside = [size_in(unit, held.host)] if offloads else []
        holds = rank_text(record, stages[number::ranks])
        rows.append([str(number), *sizes, share, *beside, *kinds[number : number + 1], holds])
    beside = [*([apart_text(record)] if offloads else []), *(["device"] if kinds else [])]
    header = ["rank" if ranks < len(stages) else "stage", *KINDS, "total", "of the limit", *beside, "holds"]
    title = f"Memory of one device at its busiest, {name} (memory limit: {memory_limit_text(record)})"
    return f"{title}\n{table(header, rows, right=range(len(header) - 1 - bool(kinds)))}"


def rank_text(record: PlanRecord, stages: Sequence[StageChoice]) -> str:
    """What a rank holds of its stages; like ones that follow one another are counted."""
    like = [(text, len(list(same))) for text, same in groupby(stage_text(record, stage) for stage in stages)]
    return "; ".join(f"{count} stages of {text}" if count > 1 else text for text, count in like)


def stage_text(record: PlanRecord, stage: StageChoice) -> str:
    """``Embedding, 40 x LlamaDecoderLayer (12 recompute)``."""
    parts: list[str] = []
    position = stage.first
    while position < stage.last:
        index = record.model.segments[position].block
        end = position
        while end < stage.last and record.model.segments[end].block == index:
            end += 1
        count = f"{end - position} x " if end - position > 1 else ""
        parts.append(f"{count}{record.model.blocks[index].name}")
        position = end
    again = f"{stage.recompute} recompute" if stage.recompute else ""
    hosts = record.chosen.parallelism.offload == "activations"
    partly = f"{stage.selective} {'on the host' if hosts else 'recompute selectively'}" if stage.selective else ""
    how = ", ".join(part for part in (again, partly) if part)
    return ", ".join(parts) + (f" ({how})" if how else "")


def collectives_section(record: PlanRecord) -> str:
    """Every collective of a step on one device: its axis, bytes, time, and how much of that hides behind compute."""
    found = per_device(record)
    if not found:
        return "Collectives\n  none: nothing crosses the links"
    rows = [
        [c.where, c.kind, c.axis, size_text(c.bytes), f"{c.count:,}", seconds_text(c.seconds), hidden_text(c)]
        for c in found
    ]
    total_s, open_s = spent_s(record, hidden=True), spent_s(record, hidden=False)
    step_s = record.chosen.predicted.step_time_s
    share = f", {100 * open_s / step_s:.1f}% of the step in the open" if step_s else ""
    told = f"{seconds_text(total_s)}, {seconds_text(total_s - open_s)} of it hidden{share}"
    title = f"Collectives of one step on one device: {told}"
    header = ["where", "collective", "axis", "bytes", "runs", "time of all", "hidden"]
    return f"{title}\n{table(header, rows, right=(3, 4, 5))}"


def hidden_text(collective: PricedCollective) -> str:
    """Whether it overlaps with compute."""
    if collective.hidden_s <= 0:
        return "no"
    if collective.hidden_s >= collective.seconds:
        return "yes"
    return f"{seconds_text(collective.hidden_s)} of it"


def alternatives_section(record: PlanRecord) -> str:
    """The runners-up and the named systems, beside the chosen plan: the first rows, the classical choices, and the
    names of the rest."""
    step_s = record.chosen.predicted.step_time_s
    chosen = ["chosen", seconds_text(step_s), "", "yes", headline(record)]
    names = {*PRICES_OF_PINS, *(name for name, _ in CLASSICAL)}
    ranked = [a for a in record.alternatives if a.name not in names and not a.why_not]
    room = SHOWN - sum(a.name in names for a in record.alternatives)
    shown = [a for a in record.alternatives if a.name in names or a in ranked[: max(room, 0)]]
    rows = [chosen, *(alternative_row(record, a) for a in shown)]
    header = ["plan", "step time", "difference", "fits", "parallelism"]
    rest = ", ".join(rest_text(record, a) for a in record.alternatives if a not in shown)
    more = [paragraph(f"and {rest}", bullet="")] if rest else []
    return "\n".join(["Beside it", table(header, rows, right=(1, 2)), *more])


def rest_text(record: PlanRecord, alternative: Alternative) -> str:
    """``gpipe +70.8%``: an alternative that has no row."""
    if alternative.why_not:
        return f"{alternative.name} ({alternative.why_not})"
    over = f" and {size_text(alternative.over_bytes)} too much" if alternative.over_bytes > 0 else ""
    step_s = record.chosen.predicted.step_time_s
    slower = f" {100 * (alternative.step_time_s / step_s - 1):+.1f}%" if step_s else ""
    return f"{alternative.name}{slower}{over}"


def alternative_row(record: PlanRecord, alternative: Alternative) -> list[str]:
    """One line: the time of what fits or nearly does, or why it doesn't apply."""
    step_s = record.chosen.predicted.step_time_s
    if alternative.why_not:
        return [alternative.name, "-", "", "no", alternative.why_not]
    slower = f"{100 * (alternative.step_time_s / step_s - 1):+.1f}%" if step_s else ""
    over = f"no, {size_text(alternative.over_bytes)} too much" if alternative.over_bytes > 0 else "yes"
    seconds = seconds_text(alternative.step_time_s)
    if is_chosen(record, alternative):
        return [alternative.name, seconds, "", over, "the chosen plan is this one"]
    return [alternative.name, seconds, slower, over, parallelism_text(alternative.parallelism)]


def search_section(record: PlanRecord) -> str:
    """What was searched, what wasn't, and how far the plan may be from the best of what was."""
    return "\n".join(["The search", *(paragraph(line, bullet="") for line in search_lines(record))])


def search_lines(record: PlanRecord) -> list[str]:
    search = record.search
    sizes = (
        f"{search.candidates:,} candidates priced; largest ILP {search.variables:,} variables, "
        f"{search.constraints:,} constraints, by {search.solver}"
    )
    left_out = [f"not searched: {'; '.join(search.left_out)}"] if search.left_out else []
    gap = f"the best plan of this space could be at most {100 * search.optimality_gap:.1f}% quicker"
    return [sizes, f"searched: {search.searched}", *left_out, gap]


def phases_text(search: SearchReport) -> str:
    """Where this run's time went, and what it had time to check; not of the report, which is the same whenever the plan
    is."""
    phases = "planned: " + ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in search.seconds)
    return "\n".join(filter(None, (phases, search.data_axis)))
