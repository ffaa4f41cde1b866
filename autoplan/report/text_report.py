"""The report: one section after the other, as text."""

import textwrap
from collections.abc import Iterator
from dataclasses import replace

from autoplan.arguments.values import options_text
from autoplan.emit.source import shape_text, size_text
from autoplan.ir.choice import SplitShare
from autoplan.ir.graph import Model
from autoplan.ir.record import PlanRecord
from autoplan.options import Training
from autoplan.report.device_kinds import memory_limit_text
from autoplan.report.embedding_tables import tables_section
from autoplan.report.notes import notes_section
from autoplan.report.price_tables import alternatives_section, collectives_section, memory_section, search_section
from autoplan.report.program_tables import blocks_section
from autoplan.report.start import start_text
from autoplan.report.table import WIDTH
from autoplan.report.words import elements_of, headline, step_text
from autoplan.runtime.optim.parameter_group import whole_parameters

SPLITS = "tp splits"


def report_text(record: PlanRecord) -> str:
    """What was chosen, at what price, why, and what else was priced; plain text of at most 118 columns."""
    sections = (
        summary_section(record),
        memory_section(record),
        notes_section(record),
        tables_section(record),
        alternatives_section(record),
        collectives_section(record),
        blocks_section(record),
        search_section(record),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def summary_section(record: PlanRecord) -> str:
    """The plan in one line and its predictions."""
    lines = [f"{name:<12}{text}" for name, text in summary_fields(record)]
    start = start_text(record.start)
    if start:  # what isn't known stands in the first lines
        filled = textwrap.fill(f"starts from {start}", WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)
        lines.insert(1 if record.start.unknown else len(lines), filled)
    title = f"{record.model.name} on {record.cluster}"
    return "\n".join([title, "=" * min(len(title), WIDTH), *lines])


def summary_fields(record: PlanRecord) -> list[tuple[str, str]]:
    """What was planned, and what it is predicted to reach, each under its name."""
    predicted = record.chosen.predicted
    batch = ", ".join(f"{value.name} {shape_text(value.type.shape)}" for value in record.model.batch)
    return [
        ("plan", headline(record)),
        *([(SPLITS, split_text(predicted.split))] if predicted.split else []),
        ("step time", step_text(record)),
        ("throughput", f"{predicted.tokens_per_s:,.0f} {elements_of(record)}/s, MFU {100 * predicted.mfu:.1f}%"),
        *([("bubble", f"{100 * predicted.bubble_fraction:.1f}% of the step")] if predicted.bubble_fraction else []),
        ("cluster", cluster_text(record)),
        ("training", training_text(record)),
        ("batch", f"{batch}: all rows of one step"),
    ]


def split_text(split: SplitShare) -> str:
    """``98.1% of FLOPs, 92.0% by weights``."""
    how = f"{shown(split.weights)} by weights" if split.weights else "by rows alone, no weight"
    return f"{shown(split.any)} of FLOPs, {how}"


def shown(share: float) -> str:
    """``98.1%``, ``100%``."""
    return f"{100 * share:.1f}%" if share < 0.9995 else "100%"


def cluster_text(record: PlanRecord) -> str:
    devices = record.cluster.devices
    plural = "devices" if devices > 1 else "device"
    return f"{devices} {plural} of {memory_limit_text(record)} usable{reserve_text(record)}"


def reserve_text(record: PlanRecord) -> str:
    """`` (3.0 GiB are reserved)``: contexts, buffers of collectives, fragmentation, as the device's profile has them;
    "" where a user says what may be filled, or there are several kinds."""
    if record.cluster.memory_bytes is not None or record.cluster.groups:
        return ""
    return f" ({size_text(record.cluster.profile()[0].reserved_bytes)} are reserved)"


def groups_text(model: Model, training: Training) -> Iterator[str]:
    """Each group of parameters: how many it has, its options, and which of its patterns match nothing."""
    known = [names for names, _ in whole_parameters(model)]
    for number, group in enumerate(training.groups, 1):
        count = sum(training.group_of(names) == number for names in known)
        options = options_text(dict(group.options))
        patterns = [] if group.names else group.title.split("|")
        nothing = [one for one in patterns if not any(replace(group, match=one).has(names) for names in known)]
        told = f" (nothing matches {', '.join(nothing)})" if nothing else ""
        by = f"{group.optimizer}, " if group.optimizer else ""
        given = f"with {by}{options}" if options else f"with {group.optimizer}"
        yield f"{group.title}: {count} parameter{'s' * (count != 1)} {given}{told}"


def training_text(record: PlanRecord) -> str:
    training = record.training
    compiled = "compiled" if training.compile else "eager"
    if not isinstance(training, Training):
        return f"forward alone, {training.precision}, {compiled}"
    rates = f" with a {training.lr_schedule.name} schedule" if training.lr_schedule is not None else ""
    sums = f", gradients summed in {training.reduce_dtype}" if training.reduce_dtype is not None else ""
    apart = ", statistics of each microbatch" if training.microbatch_statistics else ""
    drawn = ", dropout drawn per rank" if training.draws_by_rank else ""
    most = training.expert_capacity
    dropped = f", an expert takes at most {most:g} times an even share, the rest is dropped" if most else ""
    groups = "".join(f", {text}" for text in groups_text(record.model, training))
    return f"{training.optimizer}{rates}, {training.precision}{sums}{apart}{drawn}{dropped}, {compiled}{groups}"
