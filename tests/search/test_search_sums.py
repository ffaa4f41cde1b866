"""How gradients are summed: chosen by size on processors, kept where it is pinned, refused where it can't be."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.errors import ParallelismError
from autoplan.ir.choice import Chosen
from autoplan.options import Inference, Parallelism, Training
from autoplan.search.entry import search
from autoplan.search.space.systems import resolve
from tests.support.hand_made import mlp
from tests.support.planning import alone

CPU = ClusterSpec.parse("1x4 cpu")
FREE = Parallelism(dp=4, tp=1, pp=1, zero=0)


def plan(pinned: Parallelism, cluster: ClusterSpec) -> Chosen:
    with alone():
        return search(mlp(layers=10), cluster, Training(), pinned)[0]


@pytest.mark.parametrize(
    ("cluster", "quickest"), [("1x4 cpu", None), ("2x2 cpu", "hierarchical"), ("2x2 h100-sxm", None)]
)
def test_buckets_are_summed_by_size_on_processors_alone(cluster: str, quickest: str | None) -> None:
    """Where it isn't pinned; and pinned it is the same plan again."""
    spec = ClusterSpec.parse(cluster)
    chosen = plan(FREE, spec)
    rule = chosen.parallelism.all_reduce
    if quickest is None:
        assert rule is None
        return
    assert rule is not None and rule.endswith(quickest)
    again, ring = (plan(replace(FREE, all_reduce=each), spec) for each in (rule, "ring"))
    assert again.parallelism == chosen.parallelism
    assert again.predicted.step_time_s == chosen.predicted.step_time_s < ring.predicted.step_time_s


@pytest.mark.parametrize("rule", ["ring", "tree", "hierarchical"])
def test_what_is_pinned_is_planned_and_its_phases_are_told(rule: str) -> None:
    chosen = plan(Parallelism(all_reduce=rule), ClusterSpec.parse("2x2 cpu"))
    assert chosen.parallelism.all_reduce == rule and chosen.parallelism.zero == 0
    sums = [c for c in chosen.predicted.collectives if c.where == "gradients"]
    kinds = {"ring": ["all-reduce"], "tree": ["tree all-reduce"]}
    assert [c.kind for c in sums] == kinds.get(rule, ["reduce-scatter", "all-reduce", "all-gather"])
    if rule == "hierarchical":
        assert sums[0].bytes == sums[2].bytes == 2 * sums[1].bytes


@pytest.mark.parametrize("rule", ["ring", "tree", "tree<64KiB<hierarchical"])
def test_a_ring_and_a_tree_are_for_an_accelerators_library_to_choose(rule: str) -> None:
    with pytest.raises(ParallelismError, match=r"on accelerators: .*set NCCL_ALGO where the program starts, or give"):
        resolve(Parallelism(all_reduce=rule), ClusterSpec.parse("2x8 h100-sxm"))
    resolve(Parallelism(all_reduce="hierarchical"), ClusterSpec.parse("2x8 h100-sxm"))


@pytest.mark.parametrize(
    ("pinned", "words"),
    [
        (Parallelism(all_reduce="tree", zero=1), "all_reduce='tree' with zero=1: fully_shard scatters gradients"),
        (Parallelism(all_reduce="tree", servers=2), "with servers=2: gradients go to servers, which add them up"),
        (Parallelism(all_reduce="ring", compression="int8"), "with compression='int8': gradients are sent in another"),
        (Parallelism(all_reduce="ring", local_steps=4), "with local_steps=4: replicas that step by themselves sum no"),
        (Parallelism(all_reduce="ring", gossip="ring"), "with gossip='ring': replicas that step by themselves"),
        (Parallelism(all_reduce="tree", dp=1), "all_reduce='tree' with dp=1: no gradient goes over the data axis"),
        (Parallelism(all_reduce="hierarchical"), "and there is one. leave it out, or use more nodes"),
    ],
)
def test_what_sums_no_gradients_is_refused_beside_it(pinned: Parallelism, words: str) -> None:
    with pytest.raises(ParallelismError, match=words):
        resolve(pinned, CPU)


def test_a_forward_alone_sums_no_gradients() -> None:
    with pytest.raises(ParallelismError, match=r"='tree' with Inference\(\): a forward alone has no gradients"):
        search(mlp(), CPU, Inference(), Parallelism(all_reduce="tree"))
