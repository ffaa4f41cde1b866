"""Stages that share processors: no bubble is paid for while another stage has work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.pipeline import simulate
from cost_models.pipeline.shared import Sharing, shared_step_seconds

ALONE = Sharing()
seconds = st.floats(0.001, 10.0)
schedules = st.sampled_from(["gpipe", "1f1b"])


@given(schedules, st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=4), st.integers(4, 6))
def test_devices_of_their_own_have_the_exact_timeline(schedule, stages, microbatches):
    forward, backward, send = (list(part) for part in zip(*stages, strict=True))
    arguments = (schedule, forward, backward, send[1:], microbatches)
    assert shared_step_seconds(*arguments, ALONE) == pytest.approx(simulate(*arguments, ahead=0).step_s, rel=1e-9)


@given(schedules, st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=4), st.integers(4, 6))
def test_a_message_is_part_of_the_action_that_receives_it(schedule, stages, microbatches):
    forward, backward, send = (list(part) for part in zip(*stages, strict=True))
    there = [f + s for f, s in zip(forward, [0.0, *send[1:]], strict=True)]
    back = [b + s for b, s in zip(backward, [*send[1:], 0.0], strict=True)]
    expected = simulate(schedule, there, back, [0.0] * (len(stages) - 1), microbatches).step_s
    found = shared_step_seconds(schedule, forward, backward, send[1:], microbatches, ALONE)
    assert found == pytest.approx(expected, rel=1e-9)


def test_who_waits_for_a_message_leaves_the_processors_to_others():
    """Two stages on one core: while the second receives, the first computes alone and twice as fast."""
    arguments = ("gpipe", [1.0, 1.0], [1.0, 1.0], [10.0], 1)
    assert shared_step_seconds(*arguments, Sharing(2, 2.0)) == pytest.approx(4 / 2.0 + 20.0)


def test_split_backwards_and_several_stages_on_a_rank_follow_the_exact_timeline():
    split = ("zero-bubble", [1.0, 2.0, 1.5], [2.0, 3.0, 2.5], [0.1, 0.4], 6)
    weight = [0.8, 1.4, 1.0]
    expected = simulate(*split, weight_s=weight, ahead=0).step_s
    assert shared_step_seconds(*split, ALONE, weight_s=weight) == pytest.approx(expected)
    several = ("interleaved", [1.0, 1.2, 0.8, 1.1], [2.0, 1.9, 2.2, 2.1], [0.1, 0.2, 0.3], 4)
    expected = simulate(*several, virtual_stages=2, ahead=0).step_s
    assert shared_step_seconds(*several, ALONE, virtual_stages=2) == pytest.approx(expected)


@given(schedules, st.lists(st.tuples(seconds, seconds), min_size=2, max_size=4), st.integers(4, 6))
def test_a_step_lies_between_its_work_and_the_same_on_devices_of_their_own(schedule, stages, microbatches):
    forward, backward = (list(part) for part in zip(*stages, strict=True))
    count = len(stages)
    arguments = (schedule, forward, backward, [0.0] * (count - 1), microbatches)
    shared = shared_step_seconds(*arguments, Sharing(count, 2.0))
    alone = simulate(*arguments).step_s
    work = microbatches * (sum(forward) + sum(backward)) / count
    assert max(work, alone / 2.0) * (1 - 1e-9) <= shared <= alone * (1 + 1e-9)


def test_one_microbatch_through_four_stages_on_two_cores_takes_half():
    arguments = ("gpipe", [1.0] * 4, [2.0] * 4, [0.0] * 3, 1)
    assert shared_step_seconds(*arguments, Sharing(4, 2.0)) == pytest.approx(6.0)
    assert shared_step_seconds(*arguments, ALONE) == pytest.approx(12.0)


def test_with_half_as_many_cores_as_stages_a_full_pipeline_has_hardly_a_bubble():
    arguments = ("1f1b", [1.0] * 4, [2.0] * 4, [0.0] * 3, 8)
    work = 8 * 3.0
    assert shared_step_seconds(*arguments, Sharing(4, 2.0)) < 1.1 * work
    assert shared_step_seconds(*arguments, ALONE) == pytest.approx(11 * 3.0)


def test_only_neighbours_share():
    """Stages 0 and 1 share one machine, 2 and 3 another: alone on its machine each goes at most twice as fast."""
    arguments = ("gpipe", [1.0] * 4, [1.0] * 4, [0.0] * 3, 1)
    assert shared_step_seconds(*arguments, Sharing(2, 1.5)) == pytest.approx(8 / 1.5)
