"""A pipeline schedule's timeline: step time, bubble, microbatches in flight.

Stages 0 … d-1, one on each device (group); microbatches 0 … m-1. ``forward_s[s]`` and ``backward_s[s]`` are the times
of one microbatch on stage s; ``send_s[s]`` that of one message between stages s and s+1, the same both ways (d-1 of
them). Messages overlap with compute, and those of one direction over one border follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

SCHEDULES = ("gpipe", "1f1b")


class Action(NamedTuple):
    """One microbatch's forward ("F") or backward ("B") on a stage."""

    kind: Literal["F", "B"]
    microbatch: int


@dataclass(frozen=True)
class Timeline:
    """What a schedule costs.

    step_s           from the first forward to the last backward
    bubble_fraction  share of the stages' time in which they wait
    in_flight        for each stage, the most microbatches whose activations it holds at once
    busy_s           for each stage, the time it computes
    """

    step_s: float
    bubble_fraction: float
    in_flight: tuple[int, ...]
    busy_s: tuple[float, ...]


def actions(schedule: str, stage: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    """A stage's actions in order.

    gpipe: every forward, then every backward (Huang et al. 2019). 1f1b: d-1-s forwards to warm up, then a forward and
    a backward in turn, then the backwards that are left (Narayanan et al. 2021, section 2.2; PipeDream-flush).
    """
    _check_schedule(schedule)
    forwards = [Action("F", i) for i in range(microbatches)]
    backwards = [Action("B", i) for i in range(microbatches)]
    if schedule == "gpipe":
        return (*forwards, *backwards)
    warm = min(microbatches, stages - 1 - stage)
    pairs = zip(forwards[warm:], backwards, strict=False)
    return (*forwards[:warm], *(action for pair in pairs for action in pair), *backwards[microbatches - warm:])


def in_flight(schedule: str, stages: int, microbatches: int) -> tuple[int, ...]:
    """For each stage, the most microbatches gone forward there and not yet back: m in gpipe, min(m, d-s) in 1f1b."""
    _check_schedule(schedule)
    if schedule == "gpipe":
        return (microbatches,) * stages
    return tuple(min(microbatches, stages - stage) for stage in range(stages))


def bubble_fraction(stages: int, microbatches: int) -> float:
    """(d-1)/(m+d-1): the bubble of gpipe and 1f1b where stages are equal and messages free (Huang et al. 2019, 2.3)."""
    return (stages - 1) / (microbatches + stages - 1)


def simulate(
    schedule: str, forward_s: Sequence[float], backward_s: Sequence[float], send_s: Sequence[float], microbatches: int
) -> Timeline:
    """The timeline of a schedule with unequal stages, by running its actions.

    An action starts when its stage is done with the one before it and what it waits for has arrived: a forward for the
    stage before, a backward for the stage after.
    """
    _check(schedule, forward_s, backward_s, send_s, microbatches)
    forward, backward, send = (np.asarray(times, dtype=float) for times in (forward_s, backward_s, send_s))
    run = _run_gpipe if schedule == "gpipe" else _run_1f1b
    step_s = run(forward, backward, send, microbatches)
    busy_s = microbatches * (forward + backward)
    idle = 1 - busy_s.sum() / (len(forward) * step_s) if step_s > 0 else 0.0
    held = in_flight(schedule, len(forward), microbatches)
    return Timeline(step_s, max(0.0, float(idle)), held, tuple(busy_s.tolist()))


def _run_gpipe(forward: np.ndarray, backward: np.ndarray, send: np.ndarray, microbatches: int) -> float:
    """Two flow shops: the forwards front to back, then the backwards back to front.

    The last stage turns round when it has seen every microbatch; the others are done with their forwards by then.
    """
    ready = np.zeros(microbatches)
    for stage, duration in enumerate(forward):
        done = _queue(ready, duration)
        ready = _queue(done, send[stage]) if stage < len(send) else np.full(microbatches, done[-1])
    for stage in reversed(range(len(backward))):
        done = _queue(ready, backward[stage])
        ready = _queue(done, send[stage - 1]) if stage else done
    return float(ready[-1])


def _queue(ready: np.ndarray, duration: float) -> np.ndarray:
    """When jobs end that arrive at ``ready`` and are served one after another: end[i] = max(end[i-1], ready[i]) + t."""
    served = duration * np.arange(1, len(ready) + 1)
    return served + np.maximum.accumulate(ready - (served - duration))


def _run_1f1b(forward: np.ndarray, backward: np.ndarray, send: np.ndarray, microbatches: int) -> float:
    """1F1B in rounds: in round r, stage s runs forward (r-s)/2, or else backward (r-(2d-1-s))/2, whichever is whole.

    In that numbering a stage goes forward in the rounds of its own parity and back in the others, and what it waits for
    was run in the round before by its neighbour: so each round is a few array operations, whatever the true times.
    """
    stages, last = len(forward), 2 * (microbatches - 1)
    stage = np.arange(stages)
    goes_on = (stage - np.arange(2)[:, None]) % 2 == 0                 # [parity of the round, stage]
    duration = np.where(goes_on, forward, backward)
    sender = np.where(goes_on, stage - 1, stage + 1)                   # -1 and d are nobody: free[d], always 0
    wire = np.append(send, 0.0)
    transfer = np.where(goes_on, wire[stage - 1], wire[stage])
    rounds = np.arange(last + 2 * stages)
    begun = rounds[:, None] - np.where(goes_on, stage, 2 * stages - 1 - stage)[rounds % 2]
    active = (begun >= 0) & (begun <= last)

    free = np.zeros(stages + 1)                                        # when a stage is done with its last action
    arrived = np.zeros((2, stages))                                    # when its last message of either kind came
    for step in rounds:
        parity, now = step % 2, active[step]
        inbox = arrived[parity]
        np.copyto(inbox, np.maximum(inbox, free[sender[parity]]) + transfer[parity], where=now)
        np.copyto(free[:-1], np.maximum(free[:-1], inbox) + duration[parity], where=now)
    return float(free.max())


def step_seconds(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    send_s: Sequence[float],
    microbatches: int,
    schedule: str = "1f1b",
) -> float:
    """Step time in closed form: one microbatch through every stage and back, then one more each ``bottleneck_seconds``.

    Σ(f + b) + 2·Σ send + (m-1)·bottleneck: linear in the stages' times but for the bottleneck, as an ILP wants it.
    Exact for gpipe, and for 1f1b with equal stages and free messages. In 1f1b a bottleneck early in the pipeline hides
    part of what lies behind it, so with unequal stages this is too long: by under 1% on average where stages are within
    5% of one another, by up to a quarter where they are not. ``simulate`` has no such error.
    """
    _check(schedule, forward_s, backward_s, send_s, microbatches)
    through = sum(forward_s) + sum(backward_s) + 2 * sum(send_s)
    return through + (microbatches - 1) * bottleneck_seconds(forward_s, backward_s, send_s, schedule)


def bottleneck_seconds(
    forward_s: Sequence[float], backward_s: Sequence[float], send_s: Sequence[float], schedule: str = "1f1b"
) -> float:
    """What one more microbatch adds to the step.

    gpipe: the slowest forward or message, and the slowest backward or message. 1f1b: the largest, over stages i … j
    next to each other, of (Σ(f + b) + 2·Σ sends between them) / (j - i + 1): stage i lets a microbatch in for each
    that returns, and between i and j only j - i + 1 are under way, so messages are paid for although nothing else
    waits (the greatest cycle mean of the schedule's precedence graph; Baccelli et al. 1992, theorem 3.28).
    """
    if schedule == "gpipe":
        slowest = max(send_s, default=0.0)
        return max(max(forward_s), slowest) + max(max(backward_s), slowest)
    work = np.asarray(forward_s, dtype=float) + np.asarray(backward_s, dtype=float)
    spent = np.concatenate(([0.0], np.cumsum(work)))
    sent = np.concatenate(([0.0], np.cumsum(np.asarray(send_s, dtype=float)), [0.0]))[: len(work)]
    first, final = np.triu_indices(len(work))
    cycle_s = spent[final + 1] - spent[first] + 2 * (sent[final] - sent[first])
    return float(max((cycle_s / (final - first + 1)).max(), max(send_s, default=0.0)))


def _check_schedule(schedule: str) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is none of {', '.join(SCHEDULES)}")


def _check(
    schedule: str, forward_s: Sequence[float], backward_s: Sequence[float], send_s: Sequence[float], microbatches: int
) -> None:
    _check_schedule(schedule)
    stages = len(forward_s)
    if stages < 1 or len(backward_s) != stages or len(send_s) != stages - 1 or microbatches < 1:
        raise ValueError(
            f"{stages} forwards, {len(backward_s)} backwards, {len(send_s)} sends and {microbatches} microbatches are "
            f"no pipeline: d stages have d forwards, d backwards, d-1 sends and at least one microbatch"
        )
