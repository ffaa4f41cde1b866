"""The timeline of stages whose devices share processors: whoever waits leaves them to the others.

Processes of one machine with fewer cores than processes are such devices. Their times are those of all of them at work
at once; while only ``a`` of ``n`` stages that share processors work, each of these goes n/a times as fast, but no
faster than one goes alone (processor sharing: Kleinrock 1967, "Time-shared systems: a theoretical treatment"). So a
pipeline's bubble costs less than on devices of their own: with half as many cores as stages it is filled while half of
the stages work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cost_models.pipeline.order import Action, actions
from cost_models.pipeline.timeline import Run
from cost_models.pipeline.times import Times, pipeline_times

ROUNDING = 1e-12  # of the time of day: what is as near has come


@dataclass(frozen=True)
class Sharing:
    """Stages that share processors.

    stages  ranks of the pipeline, next to each other, that do
    alone   how many times as fast one of them works while the others wait
    """

    stages: int = 1
    alone: float = 1.0

    @property
    def gain(self) -> float:
        """The most that one goes faster while others wait; 1 where none share."""
        return self.rate(1)

    def rate(self, working: int) -> float:
        """Of one of ``working`` stages, over that while all work."""
        return min(self.stages / working, self.alone)


@dataclass
class _Rank:
    """A rank under way: ``place`` in its order; ``comes_s``, when the message of the action there has come, once it
    receives it; ``left_s`` of the action, once it has begun; ``began_s``, when it began to receive; ``runs`` so far."""

    order: Sequence[Action]
    place: int = 0
    comes_s: float | None = None
    left_s: float | None = None
    began_s: float = 0.0
    runs: list[Run] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.place == len(self.order)


def shared_step_seconds(
    schedule: str,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    send_s: Sequence[float],
    microbatches: int,
    sharing: Sharing,
    *,
    weight_s: Sequence[float] | None = None,
    return_s: Sequence[float] | None = None,
    virtual_stages: int | None = None,
) -> float:
    """Seconds from the first forward to the last backward where stages share processors: the end of ``shared_runs``,
    whose arguments it takes."""
    rows = shared_runs(
        schedule, forward_s, backward_s, send_s, microbatches, sharing, weight_s=weight_s, return_s=return_s,
        virtual_stages=virtual_stages,
    )  # fmt: skip
    return max(float(row[-1].end_s) for row in rows)


def shared_runs(
    schedule: str,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    send_s: Sequence[float],
    microbatches: int,
    sharing: Sharing,
    *,
    weight_s: Sequence[float] | None = None,
    return_s: Sequence[float] | None = None,
    virtual_stages: int | None = None,
) -> tuple[tuple[Run, ...], ...]:
    """When each rank runs each of its actions where stages share processors; numbers alone.

    Arguments as of ``runs``; with ``Sharing(1, 1.0)`` the same as it with ``ahead=0``: such devices move messages by
    their processors, so that one begins only when its reader has come to the action that needs it. Messages keep their
    pace, and whoever waits for one leaves the processors to others.
    """
    times = pipeline_times(schedule, forward_s, backward_s, send_s, weight_s, return_s, virtual_stages)
    return _Play(times, microbatches, sharing).run()


@dataclass
class _Play:
    """One run of the schedule, from one event to the next."""

    times: Times
    microbatches: int
    sharing: Sharing
    now_s: float = 0.0
    made_s: dict[Action, float] = field(default_factory=dict)  # when what an action waits for was made

    def run(self) -> tuple[tuple[Run, ...], ...]:
        times = self.times
        ranks = [
            _Rank(actions(times.schedule, rank, times.ranks, self.microbatches, times.chunks))
            for rank in range(times.ranks)
        ]
        self.made_s = {Action(0, "F", j): 0.0 for j in range(self.microbatches)}
        while any(not rank.done for rank in ranks):
            self.begin(ranks)
            self.advance(ranks)
        return tuple(tuple(rank.runs) for rank in ranks)

    def ready_s(self, action: Action) -> float:
        """When what an action waits for was made; infinity before."""
        if action.kind == "W":
            return 0.0
        return self.made_s.get(action._replace(kind="F" if action.kind == "F" else "B"), float("inf"))

    def message_s(self, action: Action) -> float:
        """Of the message that an action receives; 0 where there is none."""
        times, stage = self.times, action.stage
        if action.kind == "W":
            return 0.0
        other = stage - 1 if action.kind == "F" else stage + 1
        if not 0 <= other < times.stages or times.rank(other) == times.rank(stage):
            return 0.0
        return float(times.send[other] if action.kind == "F" else times.back[stage])

    def begin(self, ranks: Sequence[_Rank]) -> None:
        """Every rank that can receive or begin its next action does."""
        times = self.times
        durations = {"F": times.forward, "B": times.backward, "I": times.inputs, "W": times.weight}
        for rank in ranks:
            if rank.left_s is not None or rank.done:
                continue
            action = rank.order[rank.place]
            if rank.comes_s is None and self.past(self.ready_s(action)):
                rank.began_s, rank.comes_s = self.now_s, self.now_s + self.message_s(action)
            if rank.comes_s is not None and self.past(rank.comes_s):
                rank.comes_s, rank.left_s = None, durations[action.kind][action.stage]

    def past(self, time_s: float) -> bool:
        return time_s <= self.now_s * (1 + ROUNDING)

    def wakes_s(self, rank: _Rank) -> float:
        """When a rank that waits can go on, as far as is known."""
        return self.ready_s(rank.order[rank.place]) if rank.comes_s is None else rank.comes_s

    def advance(self, ranks: Sequence[_Rank]) -> None:
        """To the next end of an action, or arrival of a message."""
        working = [rank.left_s is not None for rank in ranks]
        group = self.sharing.stages
        rates = [self.sharing.rate(max(1, sum(working[n // group * group:][:group]))) for n in range(len(ranks))]
        wakes_s = [self.wakes_s(rank) - self.now_s for rank in ranks if rank.left_s is None and not rank.done]
        ends_s = [r.left_s / rate for r, rate in zip(ranks, rates, strict=True) if r.left_s is not None]
        step_s = min([*ends_s, *wakes_s])
        assert step_s < float("inf"), "the schedule deadlocks"
        self.now_s += step_s
        for rank, rate in zip(ranks, rates, strict=True):
            if rank.left_s is not None and rank.left_s / rate <= step_s:
                self.finish(rank)
            elif rank.left_s is not None:
                rank.left_s -= step_s * rate

    def finish(self, rank: _Rank) -> None:
        """Ends a rank's action; what it made can be read."""
        action = rank.order[rank.place]
        rank.runs.append(
            Run(self.times.rank(action.stage), action, rank.began_s, self.now_s, self.message_s(action))
        )
        rank.place, rank.left_s = rank.place + 1, None
        stage, last = action.stage, self.times.stages - 1
        if action.kind == "F":
            self.made_s[action._replace(stage=stage + 1) if stage < last else action._replace(kind="B")] = self.now_s
        elif action.kind in "BI" and stage:
            self.made_s[action._replace(stage=stage - 1, kind="B")] = self.now_s
