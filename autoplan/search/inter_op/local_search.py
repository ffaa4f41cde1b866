"""Cuts made better by the schedule's own time.

``partition.choose_cuts`` minimises (m-1)·max t + Σ t, which no schedule takes exactly: under 1F1B the forwards that
warm a stage up hide behind what the stages after it do, GPipe's slowest forward and slowest backward may be of two
stages, and what follows the last backward is that of the slowest. With f and b the times of stage k for one microbatch,
t = f + b, p stages and the seconds M of a microbatch's messages there and back, no schedule is done before
``least_line_s``:

    GPipe   Σ_k t_k + M + (m-1)·(max f + max b)
    1F1B    line(m) = max_k of  Σ_{i≤k} t_i + (m-1)·t_k   and   Σ_i t_i + M + (m-1)·t_k - min(m-1, p-1-k)·f_k
            and n·(Σ_k t_k + M) + line(m - n·p) with n = ⌊(m-1)/p⌋

The second line counts the work of stage k between the first forward's way down and the last backward's way up; until
the first backward has come to stage k, it has had time for no more than p-k forwards (1F1B's warm-up). The third is
the first stage's, which lets a microbatch in for each that comes back: p of them are under way, so that each waits for
the whole way of the one p before, messages included.

Where messages run beside no compute they are part of the stages that read them, and M is nothing.

Where the chain has few cuts, all are tried, those first that the bound holds for the fastest, until it rules out the
rest: the answer is exact. Where it has many, borders are moved by one segment as long as the bound falls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from autoplan.search.inter_op.partition import choose_cuts
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.space.candidates import Candidate

Interval = tuple[int, int]
Runs = tuple[Interval, ...]

FEW = 512         # cuts of a chain, all of which are looked at
FEW_SHARED = 24   # the same where stages share processors, of which the bound says little


class Plan(Protocol):
    """Cuts with the step time that their schedule has."""

    @property
    def step_s(self) -> float: ...


P = TypeVar("P", bound=Plan)


@dataclass
class Bound:
    """Seconds that no step with some cuts undercuts.

    seconds  of a microbatch, for each stage [N+1, N+1] by first and last segment, with recomputation and what it reads
    once_s   of what follows the last backward, of one run of segments on a stage
    slower   by how much stragglers lengthen a step, at least 1
    gain     by how much a stage is faster alone than beside others
    """

    stage_model: StageModel
    seconds: Sequence[np.ndarray]
    once_s: Callable[[int, Interval], float]
    slower: float
    gain: float
    known: dict[tuple[int, Interval], tuple[float, float, float]] = field(default_factory=dict)

    def step_s(self, runs: Runs) -> float:
        candidate, stage_model = self.stage_model.candidate, self.stage_model
        times = [self.times(stage, at) for stage, at in enumerate(runs)]
        borders = [*enumerate(runs)][1:] if stage_model.ahead else []
        read_s = 2 * sum(stage_model.message_s(stage, at[0]) for stage, at in borders)
        line_s = least_line_s(candidate, [f for f, _, _ in times], [b for _, b, _ in times], read_s) / self.gain
        return (line_s + max(once for _, _, once in times)) * self.slower

    def times(self, stage: int, at: Interval) -> tuple[float, float, float]:
        """(forward, backward, once a step) of a stage, with the messages that run beside nothing."""
        if (stage, at) not in self.known:
            stage_model = self.stage_model
            forward_s, whole_s = stage_model.at(stage).forward_s(at), float(self.seconds[stage][at])
            enters_s = stage_model.message_s(stage, at[0]) if stage else 0.0
            if stage_model.ahead:
                leaves_s = stage_model.message_s(stage + 1, at[1]) if stage + 1 < stage_model.candidate.stages else 0.0
                whole_s -= enters_s + leaves_s
            else:
                forward_s += enters_s
            self.known[stage, at] = (forward_s, whole_s - forward_s, self.once_s(stage, at))
        return self.known[stage, at]


def least_line_s(
    candidate: Candidate, forward_s: Sequence[float], backward_s: Sequence[float], messages_s: float = 0.0
) -> float:
    """Seconds from the first forward to the last backward that stages with these times need at least.

    messages_s  of a microbatch, there and back, where they run beside compute
    """
    more, stages = candidate.microbatches - 1, len(forward_s)
    whole = [f + b for f, b in zip(forward_s, backward_s, strict=True)]
    once_s = sum(whole) + messages_s
    if candidate.virtual_stages > 1:
        return candidate.microbatches * max(sum(whole[rank :: candidate.pp]) for rank in range(candidate.pp))
    if candidate.schedule == "gpipe":
        return once_s + more * (max(forward_s) + max(backward_s))
    if candidate.schedule != "1f1b":
        return candidate.microbatches * max(whole)
    sums = list(itertools.accumulate(whole))

    def line_s(more: int) -> float:
        return max(
            max(down, once_s - min(more, stages - 1 - k) * forward_s[k]) + more * whole[k]
            for k, down in enumerate(sums)
        )

    return max(line_s(more), more // stages * once_s + line_s(more % stages))


def has_few_cuts(bound: Bound) -> bool:
    """Whether all cuts are looked at, so that ``refine`` is exact."""
    chain, stages = len(bound.seconds[0]) - 1, len(bound.seconds)
    return math.comb(chain - 1, stages - 1) <= (FEW if bound.gain == 1 else FEW_SHARED)


def refine(first: P, runs: Runs, bound: Bound, price: Callable[[Runs], P]) -> P:
    """The fastest plan found from these cuts on, ``first`` being theirs."""
    tried = every_cut(bound.seconds) if has_few_cuts(bound) else descended(runs, bound)
    best = first
    for least_s, other in sorted((bound.step_s(other), other) for other in tried):
        if least_s >= best.step_s:
            break
        found = price(other) if other != runs else first
        best = min(best, found, key=lambda plan: plan.step_s)
    return best


def every_cut(seconds: Sequence[np.ndarray], first: int = 0) -> Iterator[Runs]:
    """All cuts of the chain from a segment on into as many stages as there are, whose stages are possible."""
    size = len(seconds[0])
    if len(seconds) == 1:
        if np.isfinite(seconds[0][first, size - 1]):
            yield ((first, size - 1),)
        return
    for last in range(first + 1, size - len(seconds) + 1):
        if np.isfinite(seconds[0][first, last]):
            for rest in every_cut(seconds[1:], last):
                yield ((first, last), *rest)


def descended(runs: Runs, bound: Bound) -> list[Runs]:
    """The cuts along the way down, border by border, the last of which no border's move improves."""
    way = [runs]
    least_s = bound.step_s(runs)
    while True:
        near = min(((bound.step_s(other), other) for other in moved(way[-1], bound.seconds)), default=None)
        if near is None or near[0] >= least_s:
            return way
        least_s = near[0]
        way.append(near[1])


def moved(runs: Runs, seconds: Sequence[np.ndarray]) -> Iterator[Runs]:
    """Every possible cut with one border a segment further left or right."""
    for k, by in itertools.product(range(len(runs) - 1), (-1, 1)):
        (first, border), (_, last) = runs[k], runs[k + 1]
        at = border + by
        if first < at < last and np.isfinite(seconds[k][first, at]) and np.isfinite(seconds[k + 1][at, last]):
            yield (*runs[:k], (first, at), (at, last), *runs[k + 2 :])


def by_round_trips_s(stage_model: StageModel, seconds: Sequence[np.ndarray]) -> float:
    """Seconds of 1F1B that no cuts undercut where messages run beside compute: each stretch of ``pp`` microbatches
    waits for one to go all the way and back, messages included (``least_line_s``); 0 elsewhere.

    seconds  as of ``choose_cuts``
    """
    candidate = stage_model.candidate
    trips, left = divmod(candidate.microbatches - 1, candidate.pp)
    if candidate.schedule != "1f1b" or not stage_model.ahead or not trips:
        return 0.0
    few = replace(candidate, microbatches=left + 1)
    slow = [part - replace(stage_model.at(k), candidate=few).hidden_s(k) for k, part in enumerate(seconds)]
    once, rest = choose_cuts(seconds, 1), choose_cuts(seconds, left + 1, slow)
    assert once is not None and rest is not None
    return trips * once.bound_s + rest.bound_s
