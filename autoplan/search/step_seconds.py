"""Seconds of an optimizer step of a chain that is cut: its schedule, and what happens once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoplan.cost import Timeline, timeline
from autoplan.cost.interleaved import splits
from autoplan.cost.step import Sharing, after_line_s, sharing_of
from autoplan.ir.choice import StageChoice
from autoplan.search.candidate_costs import exposed
from autoplan.search.inter_op.chain_costs import backwards_of
from autoplan.search.inter_op.stage_model import StageModel

ScheduleArguments = tuple[str, list[float], list[float], list[float], int, Sharing, int, list[float], int]


def whole_s(stage_model: StageModel, stages: Sequence[StageChoice]) -> float:
    """Seconds of the schedule and of what happens once a step. Only split backwards end at other times on other ranks
    (``Timeline.ends_s``), so that others need no timeline."""
    if splits(stage_model.candidate.schedule):
        line = timeline(*scheduled(stage_model, stages))
        return line.step_s + once_s(stage_model, stages, line)
    sums_s, updates_s = once_of_ranks(stage_model, stages)
    return line_s(stage_model, stages) + waits_s(stage_model, stages) + max(sums_s) + max(updates_s)


def waits_s(stage_model: StageModel, stages: Sequence[StageChoice]) -> float:
    """Of a pipeline without a flush, where an update looks at all stages: then all begin a step at once, and the last
    one with its first forward."""
    if not (stage_model.data.stashes and stage_model.data.together):
        return 0.0
    _, forward_s, _, messages_s, *_ = scheduled(stage_model, stages)
    return sum(forward_s[:-1]) + sum(messages_s)


def line_s(stage_model: StageModel, stages: Sequence[StageChoice]) -> float:
    """Seconds of the schedule: as of its timeline, which takes longer to draw."""
    arguments = scheduled(stage_model, stages)
    _, forward_s, backward_s, messages_s, _, sharing, _, weights_s, _ = arguments
    if stage_model.interleaved is None or sharing.gain != 1:
        return float(timeline(*arguments).step_s)
    apart, none = splits(stage_model.candidate.schedule), np.zeros(len(stages))
    inputs_s = np.subtract(backward_s, weights_s) if apart else backward_s
    sent = np.array([0.0, *messages_s]), np.array([*messages_s, 0.0])
    durations_s = np.stack([forward_s, inputs_s, weights_s if apart else none, *sent])
    return stage_model.interleaved.script.path(durations_s).step_s


def scheduled(stage_model: StageModel, stages: Sequence[StageChoice]) -> ScheduleArguments:
    """What ``cost.timeline`` and ``cost.step.timeline_runs`` ask of a chain that is cut."""
    candidate, runs = stage_model.candidate, [(s.first, s.last) for s in stages]
    backward_s, weights_s = backwards_of(stage_model, stages)
    late_s = gathered_late_s(stage_model, stages)
    return (
        candidate.schedule,
        [stage_model.at(k).forward_s(at) + late_s[k][0] for k, at in enumerate(runs)],
        [seconds + late_s[k][1] for k, seconds in enumerate(backward_s)],
        [stage_model.message_s(k, s.first) for k, s in enumerate(stages[1:], start=1)],
        candidate.microbatches,
        sharing_of(stage_model.data.prices.topology.device, candidate.pp, candidate.stage_devices),
        candidate.virtual_stages,
        weights_s,
        stage_model.ahead,
    )


def gathered_late_s(stage_model: StageModel, stages: Sequence[StageChoice]) -> list[tuple[float, float]]:
    """Of each stage what ZeRO's gathers add to a microbatch's (forward, backward), on average. GPipe's last stage runs
    one backward after another and waits for no message: what each gathers first comes under the one before."""
    late_s = [stage_model.at(k).chain.gathered_late_s((s.first, s.last)) for k, s in enumerate(stages)]
    if stage_model.candidate.schedule == "gpipe":
        ahead_s, back_s = late_s[-1]
        opens_s = float(stage_model.at(len(stages) - 1).chain.opens_back_s[stages[-1].last - 1])
        late_s[-1] = ahead_s, back_s - opens_s * (1 - 1 / stage_model.candidate.microbatches)
    return late_s


def once_s(stage_model: StageModel, stages: Sequence[StageChoice], line: Timeline) -> float:
    """Seconds after the last backward that nothing hides: reductions and the update."""
    return after_line_s(line, *once_of_ranks(stage_model, stages))


def once_of_ranks(stage_model: StageModel, stages: Sequence[StageChoice]) -> tuple[list[float], list[float]]:
    """Of each pipeline rank (what nothing hides of its collectives once a step, its update)."""
    ranks = stage_model.candidate.pp
    each = [stage_model.at(k).once_s((s.first, s.last)) for k, s in enumerate(stages)]
    spent_s = [exposed(*times[:3], 0.0) for times in each]
    return [sum(spent_s[r::ranks]) for r in range(ranks)], [sum(t[3] for t in each[r::ranks]) for r in range(ranks)]
