"""The schedule: what each pipeline rank does when, with the messages that it receives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.ir.record import PlanRecord
from autoplan.report.html.chart import figure, legend, text
from autoplan.report.words import seconds_text
from autoplan.search.breakdown import Breakdown, Span

MOST_DRAWN = 2400  # actions; of a schedule with more its middle is left out, so that the page stays small
WIDTH, ROW, GAP = 100_000, 20, 4  # of the drawing's own units, which the page stretches to its width
BREAK = 0.03  # of the width, that what is left out takes
NAMES = {"F": "forward", "B": "backward", "I": "gradients of inputs", "W": "gradients of weights"}


@dataclass(frozen=True)
class Stretch:
    """A part of the step that is drawn.

    first_s, last_s  in seconds of the step
    left, right      where it lies, in the drawing's units
    """

    first_s: float
    last_s: float
    left: float
    right: float

    def at(self, time_s: float) -> int:
        inside = min(max(time_s, self.first_s), self.last_s)
        share = (inside - self.first_s) / (self.last_s - self.first_s) if self.last_s > self.first_s else 0.0
        return round(self.left + share * (self.right - self.left))


def stretches_of(spans: Sequence[Sequence[Span]], step_s: float) -> tuple[Stretch, ...]:
    """The whole step; or its beginning and its end, at one scale, where it has too many actions to be drawn."""
    flat = [span for row in spans for span in row]
    if len(flat) <= MOST_DRAWN:
        return (Stretch(0.0, step_s, 0.0, WIDTH),)
    half = MOST_DRAWN // 2
    first_s = sorted(span.start_s for span in flat)[half]
    last_s = sorted((span.end_s for span in flat), reverse=True)[half]
    if last_s <= first_s:
        return (Stretch(0.0, step_s, 0.0, WIDTH),)
    drawn_s, room = first_s + step_s - last_s, WIDTH * (1 - BREAK)
    end = room * first_s / drawn_s
    return Stretch(0.0, first_s, 0.0, end), Stretch(last_s, step_s, end + WIDTH * BREAK, WIDTH)


def timeline_section(record: PlanRecord, step: Breakdown) -> str:
    """A row for each pipeline rank; it scrolls by itself when it is zoomed."""
    spans, step_s = step.spans, record.chosen.predicted.step_time_s
    if not step_s or not any(spans):
        return ""
    stretches, ranks = stretches_of(spans, step_s), len(spans)
    height = ranks * (ROW + GAP)
    marks = [mark for rank, row in enumerate(spans) for span in row for mark in drawn(span, rank, stretches, ranks)]
    marks.append(received(spans, stretches))
    ended_s = max(row[-1].end_s for row in spans if row)
    if step.once_s > 0:
        left, right = stretches[-1].at(ended_s), stretches[-1].at(ended_s + step.once_s)
        label = f"gradient sums and update, {seconds_text(step.once_s)}"
        marks.append(f'<rect class="update" x="{left}" y="0" width="{max(right - left, 1)}" height="{height - GAP}">'
                     f"<title>{text(label)}</title></rect>")  # fmt: skip
    left_out = gap_of(stretches, height)
    pieces = json.dumps([[s.left / WIDTH, s.right / WIDTH, s.first_s, s.last_s] for s in stretches])
    place = "rank" if len(record.chosen.stages) > ranks else "stage"
    names = "".join(f"<span>{place} {rank}</span>" for rank in range(ranks))
    drawing = (
        f'<svg class="schedule" viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" style="height:{height}px" '
        f'role="img" aria-label="the schedule of one step">{"".join(marks)}{left_out}</svg>'
    )
    body = (
        '<p class="zoom"><button type="button" data-zoom="2">zoom in</button>'
        '<button type="button" data-zoom="0.5">zoom out</button><button type="button" data-zoom="0">whole</button></p>'
        f'<div class="readable rows"><div class="scrolled"><div class="ranks">{names}</div><div class="window">'
        f'<div class="wider">{drawing}<div class="axis"><div class="ticks timed" data-pieces="{text(pieces)}"></div>'
        '<div class="unit">time since the step began, s</div></div></div></div></div><output></output></div>'
    )
    used = dict.fromkeys(span.kind for row in spans for span in row)
    keys = [(f"act-{kind}", NAMES[kind]) for kind in used]
    keys += [("receive", "receiving activations or gradients")] if len(record.chosen.stages) > 1 else []
    keys += [("update", "gradient sums and update")] if step.once_s > 0 else []
    return figure("Schedule of one step", body + legend(keys), note_of(record, spans, stretches), "schedule")


def note_of(record: PlanRecord, spans: Sequence[Sequence[Span]], stretches: Sequence[Stretch]) -> str:
    """What is drawn, and what is left out of it."""
    total, chosen = sum(map(len, spans)), record.chosen
    many = f"{chosen.microbatches:,} microbatch{'es' if chosen.microbatches > 1 else ''}"
    said = f"{many}, {total:,} forwards and backwards."
    if len(stretches) == 1:
        return f"{said} All are drawn. Point at one for its times."
    first, last = stretches
    cut_s = last.first_s - first.last_s
    return (
        f"{said} The first {seconds_text(first.last_s)} and the last {seconds_text(last.last_s - last.first_s)} are "
        f"drawn; {seconds_text(cut_s)} between them, where microbatches follow one another alike, are left out."
    )


def drawn(span: Span, rank: int, stretches: Sequence[Stretch], ranks: int) -> list[str]:
    """An action as a bar; none where it is left out."""
    found = []
    for stretch in stretches:
        if span.end_s <= stretch.first_s or span.start_s >= stretch.last_s:
            continue
        left, right = stretch.at(span.start_s), stretch.at(span.end_s)
        chunk = span.stage // ranks
        shade = f' fill-opacity="{max(0.4, 1 - 0.2 * chunk):.2g}"' if chunk else ""
        times = f"{span.start_s:.4g} to {span.end_s:.4g} s"
        label = f"{NAMES[span.kind]} of microbatch {span.microbatch}, stage {span.stage}, {times}"
        found.append(
            f'<rect class="act-{span.kind}" x="{left}" y="{rank * (ROW + GAP)}" width="{max(right - left, 1)}" '
            f'height="{ROW}"{shade}><title>{text(label)}</title></rect>'
        )
    return found


def received(spans: Sequence[Sequence[Span]], stretches: Sequence[Stretch]) -> str:
    """Where actions begin by receiving, as one path."""
    parts = []
    for rank, row in enumerate(spans):
        for span in row:
            for stretch in stretches:
                begins_s, ends_s = span.start_s, span.start_s + span.received_s
                if span.received_s > 0 and ends_s > stretch.first_s and begins_s < stretch.last_s:
                    left, right = stretch.at(begins_s), stretch.at(ends_s)
                    parts.append(f"M{left} {rank * (ROW + GAP)}h{max(right - left, 1)}v{ROW}H{left}z")
    return f'<path class="receive" d="{"".join(parts)}"/>' if parts else ""


def gap_of(stretches: Sequence[Stretch], height: int) -> str:
    """What is left out."""
    if len(stretches) == 1:
        return ""
    left, right = round(stretches[0].right), round(stretches[1].left)
    label = f"{seconds_text(stretches[1].first_s - stretches[0].last_s)} left out"
    place = f'x="{left}" y="0" width="{right - left}" height="{height}"'
    return f'<rect class="gap" {place}><title>{text(label)}</title></rect>'
