"""What lies in the host's memory is the search's to decide where nothing is pinned."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.errors import DoesNotFitError
from autoplan.ir.choice import Chosen
from autoplan.options import Inference, Parallelism, Training
from autoplan.search.entry import search
from autoplan.search.further.host_memory import hosted
from autoplan.search.state import begin
from tests.support.hand_made import llama
from tests.support.planning import alone

MIXED = Training(precision="bf16-mixed")
MODEL = llama(layers=32, batch=256, seq=2048, hidden=4096, ffn=14336, heads=32, kv=8, vocab=128256, dtype="bfloat16")
SHORT = "1x2 h100-sxm"


TIGHT = replace(ClusterSpec.parse(SHORT), memory_bytes=74_000_000_000)


def plan(cluster: str | ClusterSpec, **pinned: str) -> Chosen:
    with alone():
        return search(MODEL, ClusterSpec.of(cluster), MIXED, Parallelism(**pinned))[0]  # type: ignore[arg-type]


def test_the_optimizer_goes_to_the_host_where_that_is_quicker() -> None:
    free, kept = plan(TIGHT), plan(TIGHT, offload="none")
    assert free.parallelism.offload == "optimizer" and kept.parallelism.offload is None
    assert free.predicted.step_time_s < 0.98 * kept.predicted.step_time_s


def test_more_memory_makes_no_offloading_candidate_slower() -> None:
    """The host's update of a parameter's bytes counts also where the fastest operators fit, recomputing."""
    work = begin(MODEL, TIGHT, MIXED, Parallelism(offload="optimizer"))
    one = next(s for s in hosted(work, Parallelism()) if (s.offload, s.tp, s.micro_batch) == ("optimizer", 2, 8))
    found = [work.evaluate(one, gigabytes * 1e9) for gigabytes in (72, 74, 76, 78, 84, 90)]
    steps_s = [plan.step_s for plan in found if plan is not None]
    assert len(steps_s) == len(found) and all(more <= 1.0001 * less for less, more in itertools.pairwise(steps_s))


@pytest.mark.slow  # four searches
def test_more_memory_makes_no_plan_slower() -> None:
    """Around the limit from which on a plan fits without the host."""
    model = llama(layers=4, batch=256, seq=2048, hidden=4096, ffn=14336, heads=32, kv=8, vocab=128256, dtype="bfloat16")
    sizes = [replace(TIGHT, memory_bytes=round(gigabytes * 1e9)) for gigabytes in (19, 19.5, 20, 21)]
    with alone():
        steps_s = [search(model, one, MIXED, Parallelism())[0].predicted.step_time_s for one in sizes]
    assert all(more <= 1.005 * less for less, more in itertools.pairwise(steps_s))


@pytest.mark.slow  # test_the_host_is_left_alone has small models
def test_it_stays_on_the_device_where_there_is_room() -> None:
    assert plan("2x8 h100-sxm").parallelism.offload is None


def test_what_fits_only_with_the_host_is_a_remedy() -> None:
    with pytest.raises(DoesNotFitError, match="offload='optimizer'"):
        plan("1x1 h100-sxm")


@pytest.mark.parametrize(
    ("cluster", "training", "pinned"),
    [
        (SHORT, MIXED, Parallelism(offload="none")),
        (SHORT, MIXED, Parallelism(micro_batch=1)),
        (SHORT, Inference(), Parallelism()),
        ("1x4 cpu", Training(), Parallelism()),
    ],
    ids=str,
)
def test_the_host_is_left_alone(cluster: str, training: Training | Inference, pinned: Parallelism) -> None:
    model = llama(batch=8, seq=32, hidden=64, ffn=128, vocab=256, layers=4)
    assert not hosted(begin(model, ClusterSpec.parse(cluster), training, pinned), pinned)


def test_every_way_to_use_the_host_is_tried() -> None:
    model = llama(batch=8, seq=32, hidden=64, ffn=128, vocab=256, layers=4)
    found = hosted(begin(model, ClusterSpec.parse(SHORT), MIXED, Parallelism()), Parallelism())
    assert {(s.offload, s.zero) for s in found if s.dp == 2} == {
        *(("optimizer", zero) for zero in range(4)), ("parameters", 3), *(("activations", zero) for zero in range(4))
    }  # fmt: skip
    assert {s.pp for s in found} == {1}


def test_no_bound_is_above_a_plan_that_offloads() -> None:
    """The host updates at a pace of its own: which operators are the fastest there isn't what the problem asks."""
    model = llama(layers=4, batch=8, seq=64, hidden=512, ffn=1536, vocab=16384, kv=4)
    spec = ClusterSpec.parse("2x2 h100-sxm")
    work = begin(model, spec, Training(precision="bf16-mixed", compile=False, optimizer="sgd"), Parallelism())
    evaluator, plans = work.evaluator, 0
    asked = {("optimizer", 2, 2), ("optimizer", 1, 4), ("parameters", 3, 4), ("activations", 2, 2)}
    for candidate in hosted(work, Parallelism()):
        kind = (candidate.offload, candidate.zero, candidate.micro_batch)
        if (candidate.tp, candidate.dp) != (2, 2) or kind not in asked:
            continue
        leanest, ample = evaluator.leanest(candidate), evaluator.evaluate(candidate, spec.usable_bytes)
        assert ample is not None
        low, high = (max(m.total for m in found.memory) for found in (leanest, ample))
        for share in (0.0, 0.3, 0.9):
            wall = float(low + share * (high - low)) + 1.0
            found = evaluator.evaluate(candidate, wall)
            bounds = [evaluator.bounds.unlimited_s(candidate), evaluator.bounds.limited_s(candidate, wall)]
            assert found is None or max(bounds) <= found.step_s * (1 + 1e-9), (str(candidate), share)
            plans += found is not None
    assert plans > len(asked)


def test_leaner_operators_are_not_solved_for_where_the_fastest_are_too_slow() -> None:
    work = begin(MODEL, ClusterSpec.parse(SHORT), MIXED, Parallelism())
    candidate = next(s for s in hosted(work, Parallelism()) if s.tp == 2)
    bounds, entry = work.evaluator.bounds, work.operators.entry(candidate)
    unlimited_s = bounds.unlimited_s(candidate)
    assert len(entry.points) == 1
    assert 0 < unlimited_s <= bounds.with_host_s(candidate) * (1 + 1e-9) and len(entry.points) > 1


@pytest.mark.slow
def test_what_is_beside_a_plan_says_what_the_host_has() -> None:
    told = set()
    for gigabytes in (78, 84):
        _, others, _ = search(MODEL, replace(TIGHT, memory_bytes=gigabytes * 10**9), MIXED, Parallelism())
        for other in (other for other in others if other.name.startswith("dp=")):
            told.add(other.parallelism.offload)
            assert (f"offload={other.parallelism.offload}" in other.name) == (other.parallelism.offload is not None)
    assert {None, "optimizer"} <= told


@pytest.mark.slow
def test_a_remedy_leaves_out_that_nothing_was_offloaded() -> None:
    pinned = Parallelism(offload="none", dp=2, zero=0, micro_batch=16, recompute="none")
    with pytest.raises(DoesNotFitError) as caught:
        search(MODEL, ClusterSpec.parse(SHORT), MIXED, pinned)
    assert " in place of " in str(caught.value) and "offload='none'" not in str(caught.value)
