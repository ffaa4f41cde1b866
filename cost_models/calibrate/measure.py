"""Seconds of each case, on all ranks at once: rounds over all cases, and of each case the median over the rounds.

The cases of a round follow one another, so that a disturbance that lasts meets many cases once instead of one always;
and every rank runs the same case at the same time, as in a training step, so that processes which share cores, memory
or a network card are measured while they do. The median tells what a plan meets; the minimum would hide the contention.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from cost_models.calibrate.cases import AnyCase, Sample
from cost_models.calibrate.operators import Run
from cost_models.calibrate.world import World

LEAST_ROUNDS = 3
_BLOCK_S = 0.03         # repetitions of a case are timed together for as long: many of a scheduler's time slices
_MOST_REPEATS = 2000
_ISSUED = 0.9           # of an accelerator's time: where the host takes as long to issue the work, it sets the pace


@dataclass
class _Timing:
    """A case's repetitions in a round; of each round so far its seconds, and the share in which the host issued it."""

    repeats: int
    seconds: list[float] = field(default_factory=list)
    issued: list[float] = field(default_factory=list)


def measure(
    cases: Sequence[AnyCase],
    start: Callable[[AnyCase], Run],
    calls: Callable[[AnyCase], int],
    world: World,
    budget_s: float,
    longest_s: float,
) -> tuple[list[Sample[AnyCase]], int]:
    """(samples, rounds). Every rank has to call it with the same cases and budget.

    On an accelerator a case is left out where the host takes as long to issue it as the device to run it: such a time
    says nothing of the device. The framework's own floor stays (``calls`` above 1).

    start      makes a case's tensors and returns what runs it
    calls      operators in one run, over which its time is shared
    budget_s   rounds go on for as long
    longest_s  a case is left out where, by the one before it in its family, making tensors like those and running it
               once would take longer
    """
    began = time.perf_counter()
    timings = _first_round(cases, start, world, longest_s)
    rounds, ends_s = 0, 0.0
    while rounds < LEAST_ROUNDS or ends_s < budget_s:
        round_began = time.perf_counter()
        for case, timing in timings.items():
            seconds, issued = _block(start(case), timing.repeats, world)
            timing.seconds.append(seconds)
            timing.issued.append(issued)
        now = time.perf_counter()
        rounds, ends_s = rounds + 1, world.largest([now - began + now - round_began])[0]
    means = world.mean([statistics.median(timing.seconds) for timing in timings.values()])
    shares = world.mean([statistics.median(timing.issued) for timing in timings.values()])
    samples = [
        Sample(case, mean / calls(case))
        for case, mean, share in zip(timings, means, shares, strict=True)
        if world.device.type == "cpu" or calls(case) > 1 or share < _ISSUED
    ]
    return samples, rounds


def _first_round(
    cases: Sequence[AnyCase], start: Callable[[AnyCase], Run], world: World, longest_s: float
) -> dict[AnyCase, _Timing]:
    """Each case that there is time for, with as many repetitions as fill a block."""
    timings: dict[AnyCase, _Timing] = {}
    before: dict[str, tuple[float, float]] = {}  # seconds to make the family's last case, and for a unit of its work
    for case in cases:
        making_s, rate = before.get(case.family, (0.0, 0.0))
        if making_s + case.work * rate > longest_s:
            continue
        began = time.perf_counter()
        run = start(case)
        started_s = time.perf_counter() - began
        _block(run, 1, world)  # the first run of a shape chooses an algorithm, or connects
        seconds, made_s = world.largest([_block(run, 1, world)[0], started_s])
        before[case.family] = made_s, seconds / case.work
        repeats = max(1, min(_MOST_REPEATS, round(min(_BLOCK_S, longest_s) / seconds)))
        timings[case] = _Timing(repeats)
    return timings


@torch.no_grad()
def _block(run: Run, repeats: int, world: World) -> tuple[float, float]:
    """Seconds of one run, over ``repeats`` of them, and the share of these in which the host issued them.

    Half as many go before and don't count: a link lets a burst through faster than it can go on, clocks and caches
    settle, and a training step outlasts all of these. Half as many follow and don't count either: where processes share
    cores, those that begin first or are done first would be measured while they have them to themselves.
    """
    world.barrier()
    for turn in range(repeats // 2):
        run(turn)
    world.synchronize()
    began = time.perf_counter()
    for turn in range(repeats):
        run(turn)
    issued = time.perf_counter() - began
    world.synchronize()
    seconds = time.perf_counter() - began
    for turn in range(repeats // 2):
        run(turn)
    world.synchronize()
    return seconds / repeats, issued / seconds
