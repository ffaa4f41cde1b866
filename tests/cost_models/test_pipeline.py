"""GPipe and 1F1B, whose timelines are array operations: against running their actions, and against closed forms."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.pipeline import (
    SCHEDULES,
    actions,
    simulate,
)
from cost_models.pipeline.bottleneck import bottleneck_of
from cost_models.pipeline.times import pipeline_times
from tests.oracles.pipeline_formulas import bubble_fraction, step_seconds

durations = st.floats(0.01, 10)
schedules = st.sampled_from(SCHEDULES[:2])


@st.composite
def pipelines(draw):
    """(forward_s, backward_s, send_s, microbatches)"""
    stages = draw(st.integers(1, 6))
    forward, backward = (draw(st.lists(durations, min_size=stages, max_size=stages)) for _ in range(2))
    send = draw(st.lists(st.floats(0, 5), min_size=stages - 1, max_size=stages - 1))
    return forward, backward, send, draw(st.integers(1, 14))


def run_one_by_one(schedule, forward, backward, send, microbatches) -> float:
    """The same timeline from the actions alone: each starts when its stage is free and its message has come; that sets
    out when its receive is posted, as the action before the last ends."""
    stages = len(forward)
    queues = [list(actions(schedule, stage, stages, microbatches)) for stage in range(stages)]
    ends, made, wires = [[0.0, 0.0] for _ in range(stages)], {}, {}
    left = sum(map(len, queues))
    while left:
        before = left
        for stage, queue in enumerate(queues):
            while queue:
                _, kind, microbatch = queue[0]
                step = 1 if kind == "F" else -1
                source = stage - step
                if 0 <= source < stages and (kind, stage, microbatch) not in made:
                    break
                queue.pop(0)
                left -= 1
                ready, border = 0.0, (kind, min(stage, source))
                if 0 <= source < stages:
                    sets_out = max(made[kind, stage, microbatch], ends[stage][-2], wires.get(border, 0.0))
                    ready = wires[border] = sets_out + send[border[1]]
                ends[stage].append(max(ends[stage][-1], ready) + (forward if kind == "F" else backward)[stage])
                made[kind, stage + step, microbatch] = ends[stage][-1]
        assert left < before, "the schedule deadlocks"
    return max(done[-1] for done in ends)


@settings(deadline=None)
@given(schedules, pipelines())
def test_the_timeline_is_that_of_the_actions(schedule, pipeline):
    assert simulate(schedule, *pipeline).step_s == pytest.approx(run_one_by_one(schedule, *pipeline))


@given(schedules, st.integers(1, 16), st.integers(1, 64), durations, durations)
def test_the_bubble_of_equal_stages_is_the_closed_form(schedule, stages, microbatches, forward, backward):
    timeline = simulate(schedule, [forward] * stages, [backward] * stages, [0.0] * (stages - 1), microbatches)
    assert timeline.bubble_fraction == pytest.approx(bubble_fraction(stages, microbatches))
    assert timeline.step_s == pytest.approx((microbatches + stages - 1) * (forward + backward))
    assert timeline.busy_s == pytest.approx([microbatches * (forward + backward)] * stages)


@given(pipelines())
def test_gpipe_s_closed_form_is_exact(pipeline):
    assert step_seconds(*pipeline, schedule="gpipe") == pytest.approx(simulate("gpipe", *pipeline).step_s)


@given(st.integers(1, 8), st.integers(1, 32), durations, durations)
def test_1f1b_s_closed_form_is_exact_for_equal_stages(stages, microbatches, forward, backward):
    pipeline = [forward] * stages, [backward] * stages, [0.0] * (stages - 1), microbatches
    assert step_seconds(*pipeline) == pytest.approx(simulate("1f1b", *pipeline).step_s)


@given(st.data())
def test_1f1b_s_closed_form_is_within_3_percent_of_near_equal_stages(data):
    """Stages within 5% of one another, backward twice forward, messages up to a tenth of a forward."""
    stages = data.draw(st.integers(1, 8))
    microbatches = data.draw(st.integers(stages, 8 * stages))
    forward = data.draw(st.lists(st.floats(0.975, 1.025), min_size=stages, max_size=stages))
    send = data.draw(st.lists(st.floats(0, 0.1), min_size=stages - 1, max_size=stages - 1))
    pipeline = forward, [2 * time_s for time_s in forward], send, microbatches
    assert step_seconds(*pipeline) == pytest.approx(simulate("1f1b", *pipeline).step_s, rel=0.03)


@settings(deadline=None)
@given(pipelines())
def test_a_long_1f1b_gains_one_bottleneck_a_microbatch(pipeline):
    """Backward proportional to forward: in the long run a step grows by the greatest cycle mean."""
    forward, _, send, _ = pipeline
    backward = [2 * time_s for time_s in forward]
    steps = [simulate("1f1b", forward, backward, send, m).step_s for m in (240, 360)]
    growth = (steps[1] - steps[0]) / 120
    assert growth == pytest.approx(bottleneck_of(pipeline_times("1f1b", forward, backward, send)), rel=0.01)


@settings(deadline=None)
@given(schedules, pipelines(), st.data())
def test_nothing_slower_makes_the_step_shorter(schedule, pipeline, data):
    forward, backward, send, microbatches = pipeline
    before = simulate(schedule, *pipeline).step_s
    stage = data.draw(st.integers(0, len(forward) - 1))
    slower = [time_s + 1.0 * (place == stage) for place, time_s in enumerate(forward)]
    assert simulate(schedule, slower, backward, send, microbatches).step_s >= before
    assert simulate(schedule, forward, backward, send, microbatches + 1).step_s > before
    assert simulate(schedule, forward, backward, [time_s + 1 for time_s in send], microbatches).step_s >= before


def test_a_thousand_microbatches_on_64_stages_are_quick():
    best_s = float("inf")
    for _ in range(5):
        start = time.process_time()
        simulate("1f1b", [1.0] * 64, [2.0] * 64, [0.1] * 63, 1024)
        best_s = min(best_s, time.process_time() - start)
    assert best_s < 0.2      # about 0.02 alone; the rest is for a machine that is busy


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dualpipe", [1], [1], [], 1), "schedule 'dualpipe' is none of gpipe, 1f1b"),
        (("gpipe", [1, 1], [1], [1], 1), "2 forwards, 1 backwards, 1 sends and 1 returns are no pipeline"),
        (("1f1b", [1, 1], [1, 1], [], 4), "0 sends"),
        (("1f1b", [1], [1], [], 0), "0 microbatches"),
        (("1f1b", [], [], [], 1), "0 forwards"),
    ],
)
def test_what_is_no_pipeline_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        simulate(*arguments)
