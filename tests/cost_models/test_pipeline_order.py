"""The order of a schedule's actions: against what torch.distributed.pipelining runs, and against what it must obey."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from cost_models.pipeline import (
    ASYNCHRONOUS,
    SCHEDULES,
    SPLIT,
    Action,
    actions,
    in_flight,
    rank_of,
    staleness,
    weight_versions,
)

SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
SEVERAL = {
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


@st.composite
def settings_of(draw, schedules=SCHEDULES):
    """(schedule, ranks, microbatches, virtual stages) that the schedule can run."""
    schedule = draw(st.sampled_from(schedules))
    ranks = draw(st.integers(1, 6))
    count = {"interleaved": draw(st.integers(1, 4)), "zero-bubble": draw(st.integers(1, 3)), "zbv": 2}.get(schedule, 1)
    if schedule in ("interleaved", "zero-bubble"):
        rounds = draw(st.integers(1, 4))
        return schedule, ranks, rounds * (ranks if rounds > 1 else draw(st.integers(1, 2 * ranks - 1))), count
    return schedule, ranks, draw(st.integers(ranks if schedule == "pipedream-2bw" else 1, 20)), count


def orders(schedule, ranks, microbatches, count) -> list[tuple[Action, ...]]:
    return [actions(schedule, rank, ranks, microbatches, count) for rank in range(ranks)]


def words(order) -> list[str]:
    return [str(action) for action in order]


def stand_in(ranks: int, count: int, rank: int = 0) -> mock.Mock:
    """What a schedule asks of a stage, with nothing behind it."""
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.stage_index = rank, ranks, rank
    stage.num_stages, stage.submod, stage.is_last = ranks * count, None, rank == ranks - 1
    for name in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, name).return_value = []
    return stage


def as_torch_runs(schedule: str, rank: int, ranks: int, microbatches: int) -> list[str]:
    """What torch's engine asks of a rank's only stage, in order."""
    stage = stand_in(ranks, 1, rank)
    run: list[str] = []
    stage.forward_one_chunk.side_effect = lambda i, *_, **__: run.append(f"{rank}F{i}")
    stage.backward_one_chunk.side_effect = lambda i, *_, **__: run.append(f"{rank}B{i}")
    engine = SINGLE[schedule](stage, microbatches)
    with mock.patch.object(engine, "_initialize_stage"):
        engine._step_microbatches([()] * microbatches, [{}] * microbatches)
    return run


@pytest.mark.parametrize("schedule", SINGLE)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (1, 3), (2, 2), (2, 5), (4, 4), (4, 9), (5, 16)])
def test_one_stage_a_rank_runs_as_torch_runs_it(schedule, ranks, microbatches):
    for rank, order in enumerate(orders(schedule, ranks, microbatches, None)):
        assert words(order) == as_torch_runs(schedule, rank, ranks, microbatches)


@pytest.mark.parametrize("schedule", SEVERAL)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    ("ranks", "microbatches"), [(1, 4), (2, 1), (2, 2), (2, 8), (3, 5), (4, 2), (4, 4), (4, 7), (4, 12), (4, 10)]
)
def test_several_stages_a_rank_run_in_torch_s_order(schedule, count, ranks, microbatches):
    """torch's zero-bubble with one stage a rank is ZB-H1."""
    count = 2 if schedule == "zbv" else count
    engine = SEVERAL[schedule]([stand_in(ranks, count)] * count, microbatches)
    for rank, order in enumerate(orders(schedule, ranks, microbatches, count)):
        assert words(order) == [str(action) for action in engine.pipeline_order[rank] if action is not None]
        assert all(rank_of(schedule, action.stage, ranks) == rank for action in order)


@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble"])
def test_rounds_of_unequal_size_are_refused_as_by_torch(schedule):
    with pytest.raises(ValueError, match="2 equal rounds, which 9 microbatches on 4 ranks don't fill: take 8 or 10"):
        actions(schedule, 0, 4, 9, 2)
    with pytest.raises(ValueError, match="multiple of the number of rounds"):
        SEVERAL[schedule]([stand_in(4, 2)] * 2, 9)


def test_orders_as_drawn_in_the_papers():
    assert words(actions("1f1b", 0, 3, 4)) == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3".split()
    assert words(actions("1f1b", 2, 3, 4)) == "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3".split()
    # Narayanan et al. 2021, figure 4: 4 ranks, 2 chunks each; the first 11 forwards of the first rank
    assert words(actions("interleaved", 0, 4, 8, 2))[:11] == (
        "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6".split()
    )
    # Qi et al. 2023, figure 2 (ZB-H1): the first rank's weights at once, the last rank's three microbatches later
    assert words(actions("zero-bubble", 0, 4, 8))[:8] == "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1".split()
    assert words(actions("zero-bubble", 3, 4, 8))[:10] == "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4".split()


@given(settings_of())
def test_each_action_once_and_none_before_what_it_needs(setting):
    schedule, ranks, microbatches, count = setting
    kinds = "FIW" if schedule in SPLIT else "FB"
    for rank, order in enumerate(orders(*setting)):
        stages = [stage for stage in range(count * ranks) if rank_of(schedule, stage, ranks) == rank]
        assert sorted(order) == sorted(Action(s, k, i) for s in stages for k in kinds for i in range(microbatches))
        place = {action: index for index, action in enumerate(order)}
        for stage, _, microbatch in order:
            of = [place[Action(stage, kind, microbatch)] for kind in kinds]
            assert of == sorted(of)


@given(settings_of())
def test_what_is_held_is_recounted_from_the_actions(setting):
    """From the forward to the last pass back; without a flush, where the run is long enough to fill the pipeline."""
    schedule, ranks, microbatches, count = setting
    if schedule in ASYNCHRONOUS:
        microbatches = max(microbatches, ranks)
    frees = "W" if schedule in SPLIT else "B"
    held = []
    for order in orders(schedule, ranks, microbatches, count):
        now = most = 0
        for action in order:
            now += (action.kind == "F") - (action.kind == frees)
            most = max(most, now)
        assert now == 0
        held.append(most)
    assert tuple(held) == in_flight(schedule, ranks, microbatches, count)


def test_in_flight_as_measured():
    """Two ranks, four microbatches, as torch.distributed.pipelining runs them; with two stages a rank in halves."""
    assert in_flight("gpipe", 2, 4) == (4, 4)
    assert in_flight("1f1b", 2, 4) == (2, 1)
    assert in_flight("interleaved", 2, 4, 2) == (5, 3)
    assert in_flight("zero-bubble", 2, 4, 2) == (4, 4)


@given(st.integers(1, 16), st.integers(1, 64))
def test_zero_bubble_s_peak_is_that_of_1f1b(ranks, extra):
    """ZB-H1 on every rank what 1F1B holds on its first; ZBV twice as many of half the size."""
    microbatches = 2 * ranks * extra
    most = max(in_flight("1f1b", ranks, microbatches))
    assert set(in_flight("zero-bubble", ranks, microbatches)) == {most}
    assert set(in_flight("zbv", ranks, microbatches)) == {2 * most}


def test_versions_and_staleness_of_weights():
    assert weight_versions("pipedream", 4) == (4, 3, 2, 1)
    assert staleness("pipedream", 4) == (3, 2, 1, 0)
    assert weight_versions("pipedream-2bw", 4) == (2, 2, 2, 2)
    assert staleness("pipedream-2bw", 4) == (1, 1, 1, 1)
    assert set(weight_versions("zbv", 4)) == {1} and set(staleness("1f1b", 4)) == {0}


@given(settings_of(("pipedream",)))
def test_a_stage_holds_a_version_for_each_microbatch_under_way(setting):
    """PipeDream: weights change with each backward, and each microbatch goes back by those of its way there."""
    _, ranks, microbatches, _ = setting
    for rank, order in enumerate(orders(*setting)):
        version, met, oldest, most = 0, {}, 0, 0
        for action in order:
            if action.kind == "F":
                met[action.microbatch] = version
            else:
                oldest = max(oldest, version - met.pop(action.microbatch))
                version += 1
            most = max(most, len({*met.values(), version}))
        if microbatches >= 2 * ranks:
            assert oldest == staleness("pipedream", ranks)[rank]
            assert most == weight_versions("pipedream", ranks)[rank]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dualpipe", 0, 2, 2), "schedule 'dualpipe' is none of gpipe, 1f1b"),
        (("1f1b", 0, 2, 2, 2), "virtual_stages=2: 1f1b has 1 on each rank"),
        (("zbv", 0, 2, 2, 3), "virtual_stages=3: zbv has 2 on each rank"),
        (("interleaved", 0, 2, 2, 0), "virtual_stages=0: interleaved has at least one on each rank"),
        (("gpipe", 0, 0, 2), "0 ranks and 2 microbatches are no pipeline"),
        (("pipedream-2bw", 0, 4, 3), "4 ranks can't make do with two versions .* 3 microbatches: give it 4, or "),
    ],
)
def test_what_is_no_schedule_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        actions(*arguments)
