"""Why the plan is as it is: what bounds it, what was ruled out, what the trace had to say."""

from __future__ import annotations

from autoplan.emit.source import size_text
from autoplan.options import Training
from autoplan.record import PlanRecord
from autoplan.report.table import paragraph
from autoplan.report.words import fullest_stage, is_chosen, seconds_text
from autoplan.search.batch import split_batch


def notes_section(record: PlanRecord) -> str:
    notes = [*bounds(record), *batch_reasons(record), *record.model.notes]
    return "\n".join(["Why", *(paragraph(note) for note in notes)]) if notes else ""


def bounds(record: PlanRecord) -> list[str]:
    """What the time goes to and how near the wall the fullest stage is."""
    predicted = record.chosen.predicted
    said = []
    if predicted.step_time_s:
        exposed_s = sum(c.seconds - c.hidden_s for c in predicted.collectives)
        idle_s = predicted.bubble_fraction * predicted.step_time_s
        bubble = f"{seconds_text(idle_s)} in the pipeline's bubble and " if predicted.bubble_fraction > 1e-6 else ""
        said.append(
            f"Time: of {seconds_text(predicted.step_time_s)} a device waits {bubble}{seconds_text(exposed_s)} for "
            "collectives that no compute hides."
        )
    stage = fullest_stage(record.chosen)
    total, wall = predicted.peak_bytes[stage].total, record.cluster.usable_bytes
    said.append(
        f"Memory: stage {stage} is the fullest, {size_text(total)} of {size_text(wall)} a device; "
        f"{size_text(wall - total)} are left."
    )
    return [*said, *next_best(record)]


def next_best(record: PlanRecord) -> list[str]:
    """The quickest alternative that fits, and the quickest that doesn't, where it is quicker than the plan."""
    step_s = record.chosen.predicted.step_time_s
    priced = [a for a in record.alternatives if not a.why_not and not is_chosen(record, a)]
    fitting = min((a for a in priced if a.over_bytes <= 0), key=lambda a: a.step_time_s, default=None)
    beyond = min((a for a in priced if a.over_bytes > 0), key=lambda a: a.step_time_s, default=None)
    said = []
    if fitting is not None and step_s:
        ratio = fitting.step_time_s / step_s
        said.append(f"Next: {fitting.name} also fits and takes {ratio:.2f} times as long.")
    if beyond is not None and beyond.step_time_s < step_s:
        said.append(
            f"Memory decides: {beyond.name} would take {seconds_text(beyond.step_time_s)}, but exceeds the wall by "
            f"{size_text(beyond.over_bytes)} a device."
        )
    return said


def batch_reasons(record: PlanRecord) -> list[str]:
    """Why the batch isn't cut into microbatches, or isn't split over ranks, where the model doesn't let it."""
    chosen, training = record.chosen, isinstance(record.training, Training)
    said = []
    for one, virtual, what in (
        (chosen.microbatches == 1, True, "One microbatch"),
        (chosen.mesh.size("dp") == 1, False, "No data parallelism"),
    ):
        reason = split_batch(record.model, virtual=virtual, loss=training).reason if one else ""
        if reason:
            said.append(f"{what}: {reason}.")
    return said
