"""A plan asked again: the plan that would have been made anew, without a trace, also of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan import ClusterSpec, Inference, Parallelism, Plan, Training
from autoplan.errors import AutoplanError, ClusterError, InputsError, ParallelismError, RescaleError
from autoplan.ir.record import PlanRecord
from autoplan.search.entry import search
from tests.support.hand_made import llama
from tests.support.planning import alone
from tests.support.replanned import planned


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(parallelism="ddp")


@pytest.fixture
def no_alternatives() -> Iterator[None]:
    with alone():
        yield


def same(one: Plan, other: Plan) -> bool:
    return one.record.model == other.record.model and one.record.chosen == other.record.chosen


def test_another_batch_and_cluster_are_as_planned_anew(plan: Plan) -> None:
    other = plan.what_if(batch=24, cluster_spec="1x2 cpu")
    assert same(other, planned(24, "1x2 cpu", parallelism="ddp")) and other.parallelism.dp == 2
    assert other.record.asked == plan.record.asked and other.record.model.batch[0].type.shape == (24, 16)


@pytest.mark.parametrize("given", [5, None, autoplan.replicated("layers.0"), (c for c in ())])
def test_constraints_are_a_list(plan: Plan, given: object) -> None:
    with pytest.raises(ParallelismError, match="expected a list"):
        planned(constraints=given)
    if given is not None:
        with pytest.raises(ParallelismError, match="expected a list"):
            plan.what_if(constraints=given)  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_was_pinned_stays_until_it_is_freed(plan: Plan) -> None:
    assert plan.what_if().parallelism == plan.parallelism
    tensor = plan.what_if(parallelism=Parallelism(tp=2, pp=1))
    assert (tensor.parallelism.tp, tensor.parallelism.dp) == (2, 2)
    assert tensor.what_if(batch=16).parallelism.tp == 2
    assert tensor.what_if(parallelism="auto").record.asked.request == Parallelism()


def test_a_plan_of_a_folder_is_asked_too_and_its_answer_exported(plan: Plan, tmp_path: Path) -> None:
    plan.export(tmp_path / "first")
    other = autoplan.load(tmp_path / "first").what_if(batch=16, parallelism=Parallelism(dp=2, tp=2))
    assert other.module is None
    other.export(tmp_path / "second")
    again = autoplan.load(tmp_path / "second")
    assert again.record == other.record and again.what_if(batch=8, parallelism="ddp").predicted == plan.predicted


@pytest.mark.usefixtures("no_alternatives")
def test_a_rescaled_plan_equals_one_device(plan: Plan) -> None:
    assert plan.what_if(batch=12, parallelism=Parallelism(dp=1, tp=2, pp=2)).verify().passed


@pytest.mark.usefixtures("no_alternatives")
def test_wider_links_are_quicker_and_narrower_ones_slower(plan: Plan) -> None:
    two = plan.what_if(cluster_spec="2x2 cpu")
    wide, narrow = two.what_if(bandwidth=100.0), two.what_if(bandwidth={"nic": 0.01})
    assert wide.predicted.step_time_s < two.predicted.step_time_s < narrow.predicted.step_time_s
    assert str(narrow.record.cluster) == "2x2 cpu bandwidth=nic:0.01"
    assert narrow.what_if(bandwidth=100.0).record.cluster == two.record.cluster


@pytest.mark.usefixtures("no_alternatives")
def test_training_may_change_where_the_trace_stays_the_same(plan: Plan) -> None:
    assert plan.what_if(training=Training(optimizer="sgd")).predicted.peak_bytes[0].optimizer == 0
    wide = plan.what_if(training=Training(precision="fp64"))
    assert wide.record.model.batch[0].type.dtype == "float64"


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"cluster_spec": "1x4 abacus"}, ClusterError, "abacus"),
        ({"cluster": "1x4 cpu"}, InputsError, "what_if has no 'cluster'. write cluster_spec='1x4 cpu'"),
        ({"bandwidth": 0}, ClusterError, "bandwidth = 0: is no factor"),
        ({"bandwidth": {"spine": 2}}, ClusterError, "bandwidth of 'spine': is no link of this cluster"),
        ({"seq": 8}, RescaleError, "has no sequence of tokens"),
        ({"batch": 9}, ParallelismError, "a batch of 9 rows: it does not divide by 4"),
        ({"training": Inference()}, ParallelismError, "the model was traced for Training()"),
        ({"training": Training(precision="bf16")}, ParallelismError, "the model was traced in float32"),
        ({"effort": "much"}, ParallelismError, "effort='much': no such effort. use one of ('full', 'fast')"),
        ({"parallelism": "sideways"}, ParallelismError, "no such system"),
        ({"constraints": (3,)}, ParallelismError, "constraint 3: expected a Constraint"),
    ],
)
def test_what_cannot_be_asked_is_named(plan: Plan, change: dict, kind: type[AutoplanError], said: str) -> None:
    with pytest.raises(kind) as error:
        plan.what_if(**change)
    assert said in str(error.value)


def test_what_a_plan_says_of_itself_is_that_plan() -> None:
    """Some of its blocks recompute, and not all alike: ``parallelism`` pinned leaves that to the search again."""
    model = llama(batch=8, seq=256, hidden=64, ffn=192, vocab=256, layers=6)
    cluster, pinned = ClusterSpec.parse("1x1 h100-sxm 0.06GB"), Parallelism(micro_batch=8)
    found = search(model, cluster, Training(), pinned, (), "fast")
    first = Plan(PlanRecord(cluster, Training(), model, *found, None))
    assert 0 < sum(stage.recompute + stage.selective for stage in first.record.chosen.stages) < 6
    again = first.what_if(parallelism=first.parallelism, effort="fast")
    assert again.record.chosen == first.record.chosen and first.parallelism.recompute == "auto"
    every = first.what_if(parallelism=replace(first.parallelism, recompute="selective"), effort="fast")
    assert every.predicted.step_time_s > first.predicted.step_time_s and every.parallelism.recompute == "selective"
