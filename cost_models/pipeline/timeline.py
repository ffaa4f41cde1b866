"""The exact timeline of a schedule, by running its actions.

Actions and messages form a graph without circles: an action waits for the one before it on its rank and for its
message; a message for the action that sends it, for the message that is read before it the same way between the same
two ranks, and for its receive. A rank posts the receive of an action ``ahead`` actions before: as the action before
that one ends. The time of an action is its longest path. A message runs beside compute, which it doesn't slow; messages
between other ranks or the other way don't slow it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.arithmetic import Number, maximum
from cost_models.pipeline.bottleneck import bottleneck_of
from cost_models.pipeline.flow import run_1f1b, run_gpipe
from cost_models.pipeline.order import KINDS, Action, in_flight, orders
from cost_models.pipeline.schedule import ASYNCHRONOUS, SPLIT, check, staleness, weight_versions
from cost_models.pipeline.times import Times, pipeline_times

AHEAD = 1
"""As programs post receives (``runtime.pipeline``): while the action before computes, its message comes."""


@dataclass(frozen=True)
class Timeline:
    """What a schedule costs.

    step_s           from the first forward to the last backward; without a flush, what m microbatches take in the
                     steady state
    bubble_fraction  share of the ranks' time in which they wait
    in_flight        for each rank, the most activations that it holds at once, each of one microbatch on one stage
    busy_s           for each rank, the time it computes
    waits_s          for each border between stages, how long its messages' readers wait for one on its way, both ways
    ends_s           for each rank, when its last action ends; empty where the first rank is the last to end
    weight_versions  for each rank, the versions of its weights that it holds
    staleness        for each rank, by how many updates a gradient's weights are older than those that it changes
    """

    step_s: Number
    bubble_fraction: Number
    in_flight: tuple[int, ...]
    busy_s: tuple[Number, ...]
    waits_s: tuple[Number, ...] = ()
    ends_s: tuple[Number, ...] = ()
    weight_versions: tuple[int, ...] = ()
    staleness: tuple[int, ...] = ()


@dataclass(frozen=True)
class Run:
    """An action with its times, in seconds from the first.

    waited_s  of it, before it computes, for its message on its way
    """

    rank: int
    action: Action
    start_s: Number
    end_s: Number
    waited_s: Number = 0.0


def simulate(
    schedule: str,
    forward_s: Sequence[Number],
    backward_s: Sequence[Number],
    send_s: Sequence[Number],
    microbatches: int,
    *,
    weight_s: Sequence[Number] | None = None,
    return_s: Sequence[Number] | None = None,
    virtual_stages: int | None = None,
    ahead: int = AHEAD,
) -> Timeline:
    """The timeline of a schedule whose stages may be unequal.

    forward_s, backward_s  of one microbatch on each of the v·d stages; the backward with what it computes again
    send_s                 of a message from each stage to the next, v·d-1 of them, where v > 1 round the ring; unused
                           where both are on one rank
    weight_s               where the schedule splits the backward, the part of ``backward_s`` that is the weights'
                           gradients
    return_s               of a message back, where that takes another time than ``send_s``
    virtual_stages         v, for interleaved and zero-bubble
    ahead                  actions by which a receive is posted before the one that reads it; 0: in its place, so that a
                           message runs beside none of its reader's compute

    Times are numbers, or arrays of one shape: many pipelines of one schedule at once.
    """
    times = pipeline_times(schedule, forward_s, backward_s, send_s, weight_s, return_s, virtual_stages)
    check(schedule, times.ranks, microbatches, virtual_stages)
    step_s, waits_s, ends_s = _step_s(times, microbatches, ahead)
    whole = times.backward
    busy_s = tuple(
        microbatches * (times.of_rank(times.forward, rank) + times.of_rank(whole, rank)) for rank in range(times.ranks)
    )
    return Timeline(
        step_s,
        _idle(sum(busy_s) / times.ranks, step_s),
        in_flight(schedule, times.ranks, microbatches, virtual_stages),
        busy_s,
        waits_s,
        ends_s,
        weight_versions(schedule, times.ranks),
        staleness(schedule, times.ranks),
    )


def _idle(busy_s: Number, step_s: Number) -> Number:
    """1 - busy/step, no less than 0 for rounding, and 0 where there is no work."""
    if isinstance(step_s, np.ndarray):
        return np.maximum(0.0, 1 - busy_s / np.where(step_s > 0, step_s, np.inf)) * (step_s > 0)
    return max(0.0, 1 - busy_s / step_s) if step_s > 0 else 0.0


def _step_s(times: Times, microbatches: int, ahead: int) -> tuple[Number, tuple[Number, ...], tuple[Number, ...]]:
    """(seconds, those that each border's readers wait, when ranks end), by the quickest way that there is."""
    if times.schedule in ASYNCHRONOUS:
        return microbatches * bottleneck_of(times), (0.0,) * (times.stages - 1), ()
    if times.schedule in ("gpipe", "1f1b") and not times.batched:
        quick = run_gpipe if times.schedule == "gpipe" else run_1f1b
        parts = (times.forward, times.backward, times.send, times.back)
        forward, backward, send, back = (np.asarray(part, dtype=float) for part in parts)
        step_s, waits_s = quick(forward, backward, send, back, microbatches, ahead)
        return step_s, tuple(waits_s.tolist()), ()
    rows = orders(times.schedule, times.ranks, microbatches, times.chunks)
    ends, waited = _play(times, rows, microbatches, ahead)
    waits: list[Number] = [0.0] * times.stages  # the last is of what reads no message: nothing
    for acts, each_s in zip(rows.tolist(), waited, strict=True):
        for (stage, kind, _), wait_s in zip(acts, each_s, strict=True):
            border = stage - 1 if KINDS[kind] == "F" else stage
            waits[border] = waits[border] + wait_s
    ends_s = tuple(done[-1] for done in ends)
    return maximum(*ends_s), tuple(waits[:-1]), ends_s if times.schedule in SPLIT else ()


def runs(
    schedule: str,
    forward_s: Sequence[Number],
    backward_s: Sequence[Number],
    send_s: Sequence[Number],
    microbatches: int,
    *,
    weight_s: Sequence[Number] | None = None,
    return_s: Sequence[Number] | None = None,
    virtual_stages: int | None = None,
    ahead: int = AHEAD,
) -> tuple[tuple[Run, ...], ...]:
    """When each rank runs each of its actions; arguments as of ``simulate``. Without a flush: from the first microbatch
    of a run to the last."""
    times = pipeline_times(schedule, forward_s, backward_s, send_s, weight_s, return_s, virtual_stages)
    rows = orders(schedule, times.ranks, microbatches, virtual_stages)
    durations_s, (ends, waited) = _durations(times), _play(times, rows, microbatches, ahead)
    return tuple(
        tuple(
            Run(rank, Action(stage, KINDS[kind], j), end_s - durations_s[kind][stage] - wait_s, end_s, wait_s)  # type: ignore[arg-type]
            for (stage, kind, j), end_s, wait_s in zip(rows[rank].tolist(), ends[rank], waited[rank], strict=True)
        )
        for rank in range(times.ranks)
    )


def _play(times: Times, rows: np.ndarray, microbatches: int, ahead: int) -> tuple[list[list[Number]], ...]:
    """(when each action of each rank ends, how long each waits for its message on its way); the actions as ``orders``
    has them."""
    later: Callable[[Number, Number], Number] = np.maximum if times.batched else max
    earlier: Callable[[Number, Number], Number] = np.minimum if times.batched else min
    scripts = _scripts(times, rows, microbatches)
    slots = times.stages * microbatches
    # When what an action waits for was made; None: not yet. The first stage's forwards wait for nothing, and neither
    # do weights' gradients, which stand behind the inputs' in the order.
    inbox: list[Number] = [0.0] * microbatches + [None] * (2 * slots - microbatches) + [0.0] * slots
    came: list[Number] = [0.0] * (2 * times.ranks)  # when the last message over a wire did
    ends: list[list[Number]] = [[] for _ in scripts]
    waited: list[list[Number]] = [[] for _ in scripts]
    missing = [-1] * times.ranks  # the slot for which a rank waits
    able = list(range(times.ranks))
    while able:
        rank = able.pop()
        script, done = scripts[rank], ends[rank]
        now = done[-1] if done else 0.0
        for place in range(len(done), len(script)):
            slot, duration_s, filled, reader, wire, message_s = script[place]
            ready, wait_s = inbox[slot], 0.0
            if ready is None:
                missing[rank] = slot
                break
            if wire >= 0:
                posted = done[place - 1 - ahead] if place > ahead else 0.0
                ready = came[wire] = later(later(ready, posted), came[wire]) + message_s
                wait_s = earlier(later(ready - now, 0.0), message_s)
            now = later(now, ready) + duration_s
            done.append(now)
            waited[rank].append(wait_s)
            inbox[filled] = now
            if missing[reader] == filled:
                able.append(reader)
    assert all(len(done) == len(script) for done, script in zip(ends, scripts, strict=True)), "the schedule deadlocks"
    return ends, waited


def _scripts(times: Times, rows: np.ndarray, microbatches: int) -> list[list[tuple[Any, ...]]]:
    """Each rank's actions as ``_play`` reads them: (slot of the inbox that it reads, its seconds, slot that it fills,
    the rank that reads that; the wire of its own message or -1, seconds of that).

    Slots are numbered [forwards, backwards, weights' gradients][stage][microbatch]; what nobody waits for fills a slot
    that was read before. A wire is a rank that reads and a direction.
    """
    stage, kind, microbatch = np.moveaxis(rows, 2, 0)
    last, slots = times.stages - 1, times.stages * microbatches
    forward, weights = kind == KINDS.index("F"), kind == KINDS.index("W")
    target = np.where(weights, stage, np.clip(np.where(forward, stage + 1, stage - 1), 0, last))
    source = np.where(weights, stage, np.clip(np.where(forward, stage - 1, stage + 1), 0, last))
    part = np.where(weights, 2, np.where(forward, 0, 1))
    slot = part * slots + stage * microbatches + microbatch
    filled = np.where(forward & (stage == last), 1, part) * slots + target * microbatches + microbatch
    rank = np.array([times.rank(s) for s in range(times.stages)])
    here, reader = rank[stage], rank[target]
    wire = np.where(here == rank[source], -1, 2 * here + forward)
    spent, sent = [time_s for by_stage in _durations(times) for time_s in by_stage], (*times.send, *times.back, 0.0)
    durations_s = [[spent[i] for i in places] for places in (kind * times.stages + stage).tolist()]
    received = np.where(wire < 0, -1, np.where(forward, stage - 1, last + stage))
    messages_s = [[sent[i] for i in places] for places in received.tolist()]
    fields = (slot.tolist(), durations_s, filled.tolist(), reader.tolist(), wire.tolist(), messages_s)
    return [list(zip(*of_rank, strict=True)) for of_rank in zip(*fields, strict=True)]


def _durations(times: Times) -> tuple[tuple[Number, ...], ...]:
    """Seconds by kind, in the order of KINDS, and stage."""
    return times.forward, times.backward, times.inputs, times.weight
