"""The predicted step as a trace that Perfetto, or chrome://tracing, opens; with a measured one beside it."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoplan.arguments.places import place_for
from autoplan.errors import InputsError
from autoplan.ir.record import PlanRecord
from autoplan.search.breakdown import Breakdown, Span, breakdown

NAMES = {"F": "forward", "B": "backward", "I": "gradients of inputs", "W": "gradients of weights"}
COMPUTE, LINKS = 0, 1  # the rows of a rank
MICRO = 1e6  # the format counts in microseconds

Event = dict[str, Any]


def write_trace(record: PlanRecord, path: str | os.PathLike, measured: str | os.PathLike | None = None) -> Path:
    """Writes the trace and returns its path.

    measured  a trace of torch.profiler (``export_chrome_trace``), gzipped or not: its processes stand beside the
              predicted ranks, from time 0 like them
    InputsError where that is no such trace, or nothing can be written there.
    """
    target = place_for(path)
    events = list(predicted_events(record, breakdown(record)))
    events += [] if measured is None else measured_events(Path(measured))
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events})
    if target.suffix == ".gz":
        target.write_bytes(gzip.compress(text.encode()))
    else:
        target.write_text(text)
    return target


def predicted_events(record: PlanRecord, step: Breakdown) -> Iterator[Event]:
    """A process for each pipeline rank: what it computes, what it receives, and where that comes from."""
    place = "rank" if len(record.chosen.stages) > len(step.spans) else "stage"
    for rank in range(len(step.spans)):
        yield named("process_name", rank, f"predicted: {place} {rank}")
        yield named("thread_name", rank, "compute", COMPUTE)
        yield named("thread_name", rank, "messages, gradient sums", LINKS)
    ends = {(span.stage, span.kind, span.microbatch): span for row in step.spans for span in row}
    for row in step.spans:
        for span in row:
            yield from span_events(span, ends)
    if step.once_s > 0:
        begin_s = max(row[-1].end_s for row in step.spans)
        for rank in range(len(step.spans)):
            yield duration("gradient sums and update", rank, LINKS, begin_s, step.once_s)


def span_events(span: Span, ends: dict[tuple[int, str, int], Span]) -> Iterator[Event]:
    """An action, the part of its message that it waits for, and an arrow from the action that sends it."""
    said = {"microbatch": span.microbatch, "stage": span.stage}
    begin_s = span.start_s + span.received_s
    yield duration(f"{NAMES[span.kind]} {span.microbatch}", span.rank, COMPUTE, begin_s, span.end_s - begin_s, said)
    if span.received_s > 0:
        yield duration(f"receive for {NAMES[span.kind]}", span.rank, LINKS, span.start_s, span.received_s, said)
    sender = ends.get((span.stage + (-1 if span.kind == "F" else 1), span.kind, span.microbatch))
    if sender is not None and sender.rank != span.rank:
        arrow = {"name": "message", "cat": "message", "id": f"{span.stage}{span.kind}{span.microbatch}"}
        yield {**arrow, "ph": "s", "pid": sender.rank, "tid": COMPUTE, "ts": sender.end_s * MICRO}
        yield {**arrow, "ph": "f", "bp": "e", "pid": span.rank, "tid": COMPUTE, "ts": begin_s * MICRO}


def named(what: str, rank: int, name: str, row: int = 0) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": row, "args": {"name": name}}


def duration(
    name: str, rank: int, row: int, begin_s: float, spent_s: float, said: dict[str, int] | None = None
) -> Event:
    return {
        "ph": "X", "name": name, "cat": "predicted", "pid": rank, "tid": row, "ts": begin_s * MICRO,
        "dur": spent_s * MICRO, "args": said or {},
    }  # fmt: skip


def measured_events(path: Path) -> list[Event]:
    """The events of a measured trace, under processes of their own, the first at time 0."""
    try:
        content = path.read_bytes()
        data = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
        events = data["traceEvents"] if isinstance(data, dict) else data
        timed = [float(event["ts"]) for event in events if event.get("ph") == "X"]
        begin = min(timed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        cause = f"it is no trace of a step ({type(error).__name__}: {error})"
        raise InputsError(path, cause, "give what torch.profiler's export_chrome_trace wrote") from None
    found = []
    for event in events:
        moved = {**event, "pid": f"measured {event.get('pid', 0)}"}
        if "ts" in event and event.get("ph") != "M":
            moved["ts"] = float(event["ts"]) - begin
        if event.get("ph") == "M" and event.get("name") == "process_name":
            moved["args"] = {"name": f"measured: {event.get('args', {}).get('name', '')}"}
        found.append(moved)
    return found
