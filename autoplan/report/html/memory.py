"""The memory of each stage's device, stacked by kind against its limit."""

from autoplan.ir.record import PlanRecord
from autoplan.report.device_kinds import memory_limits_of, stage_kinds
from autoplan.report.html.chart import Scale, axis, figure, legend, percent, plain, text
from autoplan.report.price_tables import KINDS, rank_text
from autoplan.report.words import GIB, MIB, apart_text, size_in


def memory_section(record: PlanRecord) -> str:
    """A bar for each stage, or for each pipeline rank where it holds several."""
    held, stages, memory_limits = record.chosen.predicted.peak_bytes, record.chosen.stages, memory_limits_of(record)
    kinds = stage_kinds(record)
    place = "rank" if len(held) < len(stages) else "stage"
    most = max(*(memory.total for memory in held), *memory_limits)
    unit, name = (GIB, "GiB") if most >= GIB // 10 else (MIB, "MiB")
    scale, rows = Scale(0.0, 1.02 * most / unit), []
    for number, memory in enumerate(held):
        parts, begun = [], 0
        for kind in KINDS:
            size = getattr(memory, kind)
            if size:
                label = f"{place} {number}, {kind}: {size_in(unit, size)} {name}"
                box = f'x="{percent(scale(begun / unit))}" width="{percent(scale(size / unit))}" height="100%"'
                parts.append(
                    f'<rect class="mem-{kind}" {box} data-stage="{number}" data-kind="{kind}" data-bytes="{size}">'
                    f"<title>{text(label)}</title></rect>"
                )
            begun += size
        limit, at = memory_limits[number], percent(scale(memory_limits[number] / unit))
        parts.append(f'<line class="limit" x1="{at}" x2="{at}" y1="0" y2="100%" data-limit="{limit}"/>')
        holds = rank_text(record, stages[number :: len(held)])
        share = f"{size_in(unit, memory.total)} {name}, {100 * memory.total / limit:.0f}%"
        host = f", {size_in(unit, memory.host)} {name} {apart_text(record)}" if memory.host else ""
        device = f"{kinds[number]}: " if kinds else ""
        rows.append(
            f'<div class="row"><span class="name">{place} {number}</span>'
            f'<svg class="bar" role="img" aria-label="{text(f"{place} {number}: {share}")}">{"".join(parts)}</svg>'
            f'<span class="after">{text(share + host)}</span><span class="holds">{text(device + holds)}</span></div>'
        )
    limits = ", ".join(dict.fromkeys(f"{size_in(unit, memory_limit)} {name}" for memory_limit in memory_limits))
    keys = legend([*((f"mem-{kind}", kind) for kind in KINDS), ("limit", f"limit, {limits} a device")])
    under = f'<div class="row"><span class="name"></span>{axis(scale, f"memory of one device, {name}", plain)}</div>'
    body = f'<div class="readable rows">{"".join(rows)}{under}<output></output></div>{keys}'
    return figure("Memory of one device at its busiest", body, name="memory")
