"""A schedule's timeline: against the longest path of its precedence graph, bounds, closed forms and one another."""

from __future__ import annotations

import time
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.pipeline import (
    ASYNCHRONOUS,
    SCHEDULES,
    SPLIT,
    Action,
    actions,
    rank_of,
    runs,
    simulate,
)
from cost_models.pipeline.bottleneck import bottleneck_of
from cost_models.pipeline.times import pipeline_times
from tests.oracles.pipeline_formulas import bubble_fraction, step_seconds

FLUSHED = tuple(schedule for schedule in SCHEDULES if schedule not in ASYNCHRONOUS)
few = settings(deadline=None, max_examples=40)
durations = st.floats(0.01, 10)


@st.composite
def settings_of(draw, schedules=FLUSHED, enough=False):
    """(schedule, ranks, microbatches, virtual stages); ``enough`` microbatches for the closed forms."""
    schedule = draw(st.sampled_from(schedules))
    ranks = draw(st.integers(1, 5))
    count = {"interleaved": draw(st.integers(1, 3)), "zero-bubble": draw(st.integers(1, 3)), "zbv": 2}.get(schedule, 1)
    if schedule in ("interleaved", "zero-bubble"):
        return schedule, ranks, ranks * draw(st.integers(1, 4)), count
    least = 2 * ranks if enough else ranks if schedule == "pipedream-2bw" else 1
    return schedule, ranks, draw(st.integers(least, 14)), count


@st.composite
def pipelines(draw, schedules=FLUSHED):
    """The arguments of ``simulate``: a schedule that can run, its stages and messages unequal."""
    schedule, ranks, microbatches, count = draw(settings_of(schedules))
    stages = ranks * count
    forward, inputs, weights = (draw(st.lists(durations, min_size=stages, max_size=stages)) for _ in range(3))
    messages = st.lists(st.floats(0, 5), min_size=stages - 1, max_size=stages - 1)
    more = {"return_s": draw(messages)}
    if schedule in SPLIT:
        more["weight_s"] = weights
    if schedule in ("interleaved", "zero-bubble"):
        more["virtual_stages"] = count
    backward = [i + w for i, w in zip(inputs, weights, strict=True)]
    return (schedule, forward, backward, draw(messages), microbatches), more


def longest_path(schedule, forward, backward, send, microbatches, return_s, weight_s=None, virtual_stages=None):
    """When the last action ends, by recursion over what each action and each message waits for."""
    stages = len(forward)
    count = virtual_stages or (2 if schedule == "zbv" else 1)
    ranks = stages // count
    orders = [actions(schedule, rank, ranks, microbatches, virtual_stages) for rank in range(ranks)]
    previous = {b: a for order in orders for a, b in pairwise(order)}
    split = weight_s is not None
    spent = {
        "F": forward,
        "B": backward,
        "I": [b - w for b, w in zip(backward, weight_s or [0.0] * stages, strict=True)],
        "W": weight_s,
    }
    goes_back = "I" if split else "B"

    def giver(action: Action) -> Action | None:
        """The action on another rank whose result an action reads, None where there is none."""
        step = {"F": -1, goes_back: 1}.get(action.kind, 0)
        source = action._replace(stage=action.stage + step)
        here, there = (rank_of(schedule, stage, ranks) for stage in (action.stage, source.stage))
        return source if 0 <= source.stage < stages and here != there else None

    wires: dict[tuple[int, str], list[Action]] = {}
    for rank, order in enumerate(orders):
        for action in order:
            if giver(action) is not None:
                wires.setdefault((rank, action.kind), []).append(action)
    queued = {b: a for read in wires.values() for a, b in pairwise(read)}

    @cache
    def arrival(action: Action) -> float:
        """Of what it reads: posted as the action before the one before ends, behind what its wire brings before."""
        source = giver(action)
        assert source is not None
        message = send[source.stage] if action.kind == "F" else return_s[action.stage]
        two_before = previous.get(previous.get(action))
        posted = 0.0 if two_before is None else end(two_before)
        return max(end(source), posted, arrival(queued[action]) if action in queued else 0.0) + message

    @cache
    def end(action: Action) -> float:
        stage, kind, microbatch = action
        start = end(previous[action]) if action in previous else 0.0
        if giver(action) is not None:
            start = max(start, arrival(action))
        elif kind == "F" and stage > 0:
            start = max(start, end(Action(stage - 1, "F", microbatch)))
        elif kind == goes_back:
            turn = stage == stages - 1
            start = max(start, end(Action(stage, "F", microbatch) if turn else Action(stage + 1, kind, microbatch)))
        return start + spent[kind][stage]

    for actions_at in zip(*orders, strict=True):  # shallow first: recursion stays short
        for action in actions_at[::-1] if schedule == "gpipe" else actions_at:
            end(action)
    return max(end(order[-1]) for order in orders)


@few
@given(pipelines())
def test_the_timeline_is_the_longest_path(pipeline):
    arguments, more = pipeline
    timeline = simulate(*arguments, **more)
    assert timeline.step_s == pytest.approx(longest_path(*arguments, **more))


@few
@given(pipelines())
def test_runs_are_those_of_the_timeline(pipeline):
    """Also of gpipe and 1f1b, whose step is computed another way; no rank does two things at once."""
    arguments, more = pipeline
    timeline, lines = simulate(*arguments, **more), runs(*arguments, **more)
    assert timeline.step_s == pytest.approx(max(run.end_s for line in lines for run in line))
    last_s = [line[-1].end_s for line in lines]
    assert timeline.ends_s == pytest.approx(last_s) if timeline.ends_s else max(last_s) == pytest.approx(last_s[0])
    ends = {run.action: run.end_s for line in lines for run in line}
    for rank, line in enumerate(lines):
        assert [run.action for run in line] == list(
            actions(arguments[0], rank, len(lines), arguments[4], more.get("virtual_stages"))
        )
        assert all(after.start_s >= before.end_s - 1e-9 for before, after in pairwise(line))
        spent_s = sum(run.end_s - run.start_s - run.waited_s for run in line)
        assert spent_s == pytest.approx(timeline.busy_s[rank])
    waited_s = sum(run.waited_s for line in lines for run in line)
    assert waited_s == pytest.approx(sum(timeline.waits_s))
    for (stage, kind, microbatch), end_s in ends.items():
        if kind == "F" and stage:
            assert end_s >= ends[Action(stage - 1, "F", microbatch)]
        if kind == "W":
            assert end_s >= ends[Action(stage, "I", microbatch)]


@few
@given(pipelines(SCHEDULES), st.data())
def test_nothing_slower_makes_the_step_shorter(pipeline, data):
    (schedule, forward, backward, send, microbatches), more = pipeline
    before_s = simulate(schedule, forward, backward, send, microbatches, **more).step_s
    place = data.draw(st.integers(0, len(forward) - 1))
    slower = [time_s + 1.0 * (stage == place) for stage, time_s in enumerate(forward)]
    delayed = [time_s + 1.0 for time_s in send]
    least_s = before_s * (1 - 1e-12)
    assert simulate(schedule, slower, backward, send, microbatches, **more).step_s >= least_s
    assert simulate(schedule, forward, [b + 1 for b in backward], send, microbatches, **more).step_s >= least_s
    assert simulate(schedule, forward, backward, delayed, microbatches, **more).step_s >= least_s
    more_returned = {**more, "return_s": [time_s + 1 for time_s in more["return_s"]]}
    assert simulate(schedule, forward, backward, send, microbatches, **more_returned).step_s >= least_s


@few
@given(pipelines(SCHEDULES))
def test_a_step_is_no_shorter_than_its_busiest_rank_and_no_longer_than_everything_in_a_row(pipeline):
    (schedule, forward, backward, send, microbatches), more = pipeline
    timeline = simulate(schedule, forward, backward, send, microbatches, **more)
    row_s = microbatches * (sum(forward) + sum(backward) + sum(send) + sum(more["return_s"]))
    assert max(timeline.busy_s) * (1 - 1e-9) <= timeline.step_s <= row_s * (1 + 1e-9)
    assert sum(timeline.busy_s) == pytest.approx(microbatches * (sum(forward) + sum(backward)))
    assert timeline.bubble_fraction == pytest.approx(
        1 - sum(timeline.busy_s) / (len(timeline.busy_s) * timeline.step_s), abs=1e-9
    )


@few
@given(settings_of(SCHEDULES, enough=True), durations, durations, durations)
def test_equal_stages_and_free_messages_are_the_closed_form(setting, forward, inputs, weight):
    schedule, ranks, microbatches, count = setting
    if schedule == "zbv":
        inputs = max(inputs, forward)  # its formula's assumption
    stages = ranks * count
    more = {"weight_s": [weight] * stages} if schedule in SPLIT else {}
    v = count if schedule in ("interleaved", "zero-bubble") else None
    pipeline = [forward] * stages, [inputs + weight] * stages, [0.0] * (stages - 1), microbatches
    timeline = simulate(schedule, *pipeline, **more, virtual_stages=v)
    fraction = bubble_fraction(
        ranks, microbatches, schedule, v, forward_s=forward, backward_s=inputs + weight, weight_s=weight
    )
    assert timeline.bubble_fraction == pytest.approx(fraction, abs=1e-9)
    assert step_seconds(*pipeline, schedule, **more, virtual_stages=v) == pytest.approx(timeline.step_s)
    if schedule in ("gpipe", "1f1b", "interleaved"):
        assert fraction == (ranks - 1) / (count * microbatches + ranks - 1)


@few
@given(st.integers(1, 5), st.integers(2, 5), st.integers(1, 3), st.floats(0, 0.2), st.floats(0.6, 1))
def test_short_equal_messages_are_in_the_closed_form(ranks, rounds, count, message, weight):
    stages = ranks * count
    for schedule in ("interleaved", "zero-bubble"):
        more = {"virtual_stages": count, "weight_s": [weight] * stages if schedule == "zero-bubble" else None}
        pipeline = [1.0] * stages, [1.0 + weight] * stages, [message] * (stages - 1), rounds * ranks
        assert step_seconds(*pipeline, schedule, **more) == pytest.approx(simulate(schedule, *pipeline, **more).step_s)


@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble", "zbv"])
@few
@given(st.integers(2, 5), st.integers(2, 4), st.data())
def test_near_equal_stages_are_within_4_percent_of_the_closed_form(schedule, ranks, rounds, data):
    """Stages within 5% of one another, messages up to a tenth of a forward."""
    stages, near = 2 * ranks, st.floats(0.975, 1.025)
    forward, backward = (data.draw(st.lists(near, min_size=stages, max_size=stages)) for _ in range(2))
    send = data.draw(st.lists(st.floats(0, 0.1), min_size=stages - 1, max_size=stages - 1))
    more = {} if schedule == "zbv" else {"virtual_stages": 2}
    if schedule in SPLIT:
        more["weight_s"] = backward
    pipeline = forward, [2 * time_s for time_s in backward], send, rounds * ranks
    assert step_seconds(*pipeline, schedule, **more) == pytest.approx(
        simulate(schedule, *pipeline, **more).step_s, rel=0.04
    )


@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
@few
@given(st.data())
def test_without_a_flush_a_step_is_what_a_long_run_gains(schedule, data):
    """The same order run from 240 to 360 microbatches, one after another and never emptied."""
    (_, forward, _, send, _), more = data.draw(pipelines(("1f1b",)))
    pipeline = forward, [2 * time_s for time_s in forward], send
    long_s, longer_s = (simulate("1f1b", *pipeline, m, **more).step_s for m in (240, 360))
    steady_s = simulate(schedule, *pipeline, 12, **more).step_s
    assert steady_s == pytest.approx((longer_s - long_s) / 10, rel=0.01)
    assert steady_s == pytest.approx(12 * bottleneck_of(pipeline_times(schedule, *pipeline, **more)))
    alone_s = simulate("1f1b", *pipeline, 12, **more).step_s * (1 + 1e-9)
    assert steady_s * 11 / 12 <= alone_s  # a step by itself waits between its microbatches, not behind the last
    if "return_s" not in more:  # where gradients take longer on their way than activations that wait may be longest
        assert steady_s <= alone_s


@few
@given(st.integers(2, 8), st.integers(2, 6), durations, durations, durations)
def test_schedules_rank_as_their_papers_say(ranks, rounds, forward, inputs, weight):
    """Equal stages, the same work on each rank: each schedule waits no longer than the one that it improves on."""
    microbatches = ranks * rounds

    def waits(schedule: str, count: int = 1) -> float:
        stages = ranks * count
        more = {"weight_s": [weight / count] * stages} if schedule in SPLIT else {}
        v = count if schedule in ("interleaved", "zero-bubble") else None
        times = [forward / count] * stages, [(inputs + weight) / count] * stages, [0.0] * (stages - 1)
        return simulate(schedule, *times, microbatches, **more, virtual_stages=v).bubble_fraction

    slack = 1e-9
    assert waits("1f1b") == pytest.approx(waits("gpipe"))
    assert waits("interleaved", 2) < waits("1f1b")
    assert waits("zero-bubble") < waits("1f1b") + slack
    assert waits("zero-bubble", 2) < waits("zero-bubble") + slack
    assert waits("pipedream") == pytest.approx(0, abs=slack) == waits("pipedream-2bw")


def test_equal_passes_leave_zbv_least_to_wait_for():
    """f = i = w, the case that ZBV is made for; figures of the formulas for 4 ranks and 8 microbatches."""
    whole, halves = ([1.0] * 4, [2.0] * 4, [0.0] * 3, 8), ([0.5] * 8, [1.0] * 8, [0.0] * 7, 8)
    bubbles = {
        "1f1b": simulate("1f1b", *whole),
        "interleaved": simulate("interleaved", *halves, virtual_stages=2),
        "zero-bubble": simulate("zero-bubble", *whole, weight_s=[1.0] * 4),
        "zbv": simulate("zbv", *halves, weight_s=[0.5] * 8),
    }
    spans = {name: timeline.step_s - 24 for name, timeline in bubbles.items()}
    assert spans == pytest.approx({"1f1b": 9.0, "interleaved": 4.5, "zero-bubble": 3.0, "zbv": 1.5})


@few
@given(pipelines(SCHEDULES), st.integers(2, 4))
def test_many_pipelines_at_once_are_the_same_one_by_one(pipeline, many):
    (schedule, forward, backward, send, microbatches), more = pipeline
    scale = np.linspace(1, 2, many)
    more = {**more, "weight_s": more.get("weight_s")}
    batched = simulate(
        schedule,
        [time_s * scale for time_s in forward],
        [time_s * scale**2 + 0.5 for time_s in backward],
        send,
        microbatches,
        **more,
    )
    for place, factor in enumerate(scale):
        one = simulate(
            schedule,
            [time_s * factor for time_s in forward],
            [time_s * factor**2 + 0.5 for time_s in backward],
            send,
            microbatches,
            **more,
        )
        assert batched.step_s[place] == pytest.approx(one.step_s)
        assert batched.bubble_fraction[place] == pytest.approx(one.bubble_fraction, abs=1e-9)
        assert [busy_s[place] for busy_s in batched.busy_s] == pytest.approx(one.busy_s)


def test_a_border_inside_a_rank_costs_nothing():
    times = [1.0] * 4, [2.0] * 4
    free, slow = (simulate("zbv", *times, [0.0, middle, 0.0], 4, weight_s=[1.0] * 4) for middle in (0.0, 9.0))
    assert free == slow
    alone = simulate("interleaved", *times, [9.0] * 3, 4, virtual_stages=4)
    assert alone.step_s == 4 * 12


@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble", "1f1b"])
def test_16_ranks_and_64_microbatches_are_quick(schedule):
    more = {"weight_s": [1.0] * 16} if schedule == "zero-bubble" else {}
    best_s = float("inf")
    for _ in range(9):
        start = time.process_time()
        simulate(schedule, [1.0] * 16, [2.0] * 16, [0.1] * 15, 64, **more)
        best_s = min(best_s, time.process_time() - start)
    assert best_s < 0.05  # about 0.003 alone; the rest is for a machine that is busy


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        (("zbv", [1] * 4, [2] * 4, [0] * 3, 4), {}, "zbv splits the backward: weight_s has none of 4 times"),
        (("zbv", [1] * 3, [2] * 3, [0] * 2, 4), {"weight_s": [1] * 3}, "3 stages are not 2 on each rank"),
        (("1f1b", [1] * 2, [2] * 2, [0], 4), {"return_s": []}, "1 sends and 0 returns are no pipeline"),
        (("interleaved", [1] * 8, [2] * 8, [0] * 7, 9), {"virtual_stages": 2}, "take 8 or 10"),
    ],
)
def test_what_is_no_pipeline_is_refused(arguments, more, words):
    with pytest.raises(ValueError, match=words):
        simulate(*arguments, **more)
