"""What one rank's step is made of, by the trace that torch.profiler wrote of it.

On an accelerator the kernels tell: those of a collective carry the name of its process group, and what of them no other
kernel covers is waited for. On a CPU the operators of the threads that compute tell, and the spans during which gloo
has a collective or a message; over which group that is, its trace doesn't say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoplan.measurement.spans import Span, length, minus, union, within

STEP, UPDATE = "autoplan step", "autoplan update"
"""The marks around a step and, in it, the optimizer's."""
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LINKS = ("nccl", "hccl", "rccl", "oneccl", "xccl")  # that kernels of collectives are named after
HOST, OTHERS = "host", ""
"""Instead of an axis: copies between device and host; waiting of which the trace doesn't say over which axis it is."""
MICRO = 1e6

Event = Mapping[str, Any]


@dataclass(frozen=True)
class RankStep:
    """Seconds of a step on one rank; they add up to its length.

    step_s     under the profiler, which takes time of its own
    compute_s  something computes, the update left out
    update_s   something computes in the optimizer's step
    waited_s   by axis: a collective, a message or a copy is on its way, and nothing computes
    idle_s     neither
    busy_s     by axis: on its way, whether something computes or not
    """

    step_s: float
    compute_s: float
    update_s: float
    waited_s: Mapping[str, float]
    idle_s: float
    busy_s: Mapping[str, float]


def rank_step(events: Iterable[Event], groups: Mapping[str, str]) -> RankStep:
    """The step of a trace's events.

    groups  the axis of each process group, by its name
    ValueError where the trace has no step.
    """
    timed = [event for event in events if event.get("ph") == "X"]
    marks = {event["name"]: event for event in timed if event.get("cat") == "user_annotation"}
    if STEP not in marks:
        raise ValueError(f"no event of the trace is named {STEP!r}")
    start, end = span(marks[STEP])
    on_device = [event for event in timed if event.get("cat") in DEVICE and start <= float(event["ts"]) < end]
    if on_device:
        computing, flying = device_spans(on_device, groups)
        updates = union(span(e) for e in timed if e.get("cat") == "gpu_user_annotation" and e["name"] == UPDATE)
    else:
        computing, flying = processor_spans(timed, marks[STEP], (start, end))
        updates = [span(marks[UPDATE])] if UPDATE in marks else []
    whole = [(start, max([end, *(last for _, last in computing)]))]
    computing = within(computing, whole)
    waited, covered = {}, computing
    for axis, spans in flying.items():  # moments in which several are on their way count for the first
        alone = minus(within(spans, whole), covered)
        waited[axis], covered = length(alone) / MICRO, union([*covered, *alone])
    updating = length(within(computing, updates))
    return RankStep(
        step_s=length(whole) / MICRO,
        compute_s=(length(computing) - updating) / MICRO,
        update_s=updating / MICRO,
        waited_s=waited,
        idle_s=(length(whole) - length(covered)) / MICRO,
        busy_s={axis: length(spans) / MICRO for axis, spans in flying.items()},
    )


def span(event: Event) -> Span:
    begin = float(event["ts"])
    return begin, begin + float(event["dur"])


def device_spans(events: Sequence[Event], groups: Mapping[str, str]) -> tuple[list[Span], dict[str, list[Span]]]:
    """When an accelerator computes, and by axis when something is on its way."""
    computing: list[Span] = []
    flying: defaultdict[str, list[Span]] = defaultdict(list)
    for event in events:
        name = event["name"].lower()
        if any(name.startswith(library) for library in LINKS):
            flying[axis_of(event.get("args", {}), groups)].append(span(event))
        elif event["cat"] == "gpu_memcpy" and ("htod" in name or "dtoh" in name):
            flying[HOST].append(span(event))
        else:
            computing.append(span(event))
    return union(computing), {axis: union(spans) for axis, spans in flying.items()}


def axis_of(told: Mapping[str, Any], groups: Mapping[str, str]) -> str:
    """The axis of a collective, by what its kernel says: its group's name, or its description, "mesh_tp"."""
    named = groups.get(str(told.get("Process Group Name", "")))
    described = str(told.get("Process Group Description", ""))
    return named or (described.removeprefix("mesh_") if described.startswith("mesh_") else OTHERS)


def processor_spans(timed: Sequence[Event], step: Event, whole: Span) -> tuple[list[Span], dict[str, list[Span]]]:
    """When a CPU computes, and when gloo has something on its way."""
    own = {step.get("tid")} | {e.get("tid") for e in timed if e["name"].startswith("autograd::engine::")}
    within_step = [event for event in timed if whole[0] <= float(event["ts"]) < whole[1]]
    computing = union(
        span(event) for event in within_step if event.get("tid") in own and event["name"].startswith("aten::")
    )
    flying = union(span(event) for event in within_step if event["name"].startswith("gloo:"))
    return computing, {OTHERS: flying} if flying else {}
