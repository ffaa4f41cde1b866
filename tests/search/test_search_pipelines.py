"""Small pipelines: what is found for a candidate is what trying every cut and every recomputation finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.cost import timeline
from autoplan.search.inter_op.local_search import by_round_trips_s, least_line_s
from autoplan.search.predict import messages
from autoplan.search.space.candidates import Candidate
from cost_models.pipeline.shared import Sharing
from tests.support.pipelines import by_trial, random_pipeline, walls
from tests.support.sampling import examples, slow

PIPELINES, QUICK = 40, 24


def check(seed: int) -> int:
    """How many of the walls hold something."""
    pipeline = random_pipeline(seed)
    held = 0
    for wall in walls(pipeline):
        found, best = pipeline.searched(wall), by_trial(pipeline, wall)
        assert (found is None) == (best is None)
        if found is not None and best is not None:
            assert found.step_s == pytest.approx(best.step_s, rel=1e-9)
            assert max(m.total for m in found.memory) <= wall
            held += 1
    return held


@pytest.mark.parametrize("seed", [seed if seed < QUICK else slow(seed) for seed in range(PIPELINES)])
def test_no_cut_and_no_recomputation_is_faster(seed: int) -> None:
    assert check(seed) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("start", range(PIPELINES, 400, 40))
def test_of_many_more(start: int) -> None:
    assert sum(check(seed) for seed in range(start, start + 40)) > 80


@pytest.mark.parametrize("message", [1.0, 60.0])
@pytest.mark.parametrize("seed", range(12))
def test_messages_are_hidden_as_far_as_the_schedule_does_and_no_bound_is_passed(seed: int, message: float) -> None:
    """Also where a message takes as long as a stage."""
    pipeline = random_pipeline(seed, message)
    stage_model, costs = pipeline.stage_model, pipeline.evaluator
    best = by_trial(pipeline, float("inf"))
    assert best is not None
    line, sent = best.timeline, list(messages(best))
    blocking = stage_model.data.prices.device.blocking
    assert all(0 <= one.hidden_s <= one.seconds * (not blocking) for one in sent)
    assert sum(one.seconds - one.hidden_s for one in sent) == pytest.approx(sum(line.waits_s))
    seconds = [stage_model.at(stage).options(stage, float("inf")).seconds for stage in range(pipeline.candidate.pp)]
    assert by_round_trips_s(stage_model, seconds) <= line.step_s * (1 + 1e-9)
    assert costs.bounds.line_s(stage_model) <= line.step_s * (1 + 1e-9)
    found = pipeline.searched(float("inf"))
    assert found is not None and found.step_s == pytest.approx(best.step_s, rel=1e-9)


times = st.floats(0.1, 10.0)


@examples(60)
@given(st.lists(st.tuples(times, times, times), min_size=2, max_size=5), st.integers(1, 12), st.booleans())
def test_no_schedule_is_done_before_its_bound(stages: list[tuple[float, ...]], count: int, piped: bool) -> None:
    schedule = "1f1b" if piped and count >= len(stages) else "gpipe"
    candidate = Candidate(len(stages), 1, 1, 1, count, 0, schedule, "none")
    forward_s, backward_s, sent_s = zip(*stages, strict=True)
    line = timeline(schedule, forward_s, backward_s, sent_s[1:], count, Sharing())
    assert least_line_s(candidate, forward_s, backward_s, 2 * sum(sent_s[1:])) <= line.step_s * (1 + 1e-9)


def test_the_bound_is_what_an_even_pipeline_takes() -> None:
    for schedule in ("1f1b", "gpipe"):
        candidate = Candidate(4, 1, 1, 1, 8, 0, schedule, "none")
        line = timeline(schedule, [1.0] * 4, [2.0] * 4, [0.0] * 3, 8, Sharing())
        assert least_line_s(candidate, [1.0] * 4, [2.0] * 4) == pytest.approx(line.step_s)
