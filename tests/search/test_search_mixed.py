"""Clusters of several kinds of device: a stage has the pace and the memory of its own, and stages are unequal."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.api import parallelize
from autoplan.cluster import ClusterSpec
from autoplan.cost import Topology
from autoplan.emit.source import size_text
from autoplan.ir.choice import Chosen
from autoplan.ir.graph import Model
from autoplan.options import Parallelism, Training
from autoplan.search.bounds.floors import least_bytes
from autoplan.search.chosen import choose
from autoplan.search.driver import fastest
from autoplan.search.evaluate import Evaluator, finish
from autoplan.search.explain.does_not_fit import leanest, needs
from autoplan.search.space.heterogeneous import devices_of, headroom_bytes, least_uneven_slots
from autoplan.search.state import begin, candidates
from cost_models.hardware import load_device
from tests.support.hand_made import llama
from tests.support.pipelines import Pipeline, by_trial, random_pipeline, walls
from tests.support.sampling import sampled

H100, A100 = load_device("h100-sxm")[0], load_device("a100-sxm-80gb")[0]
MIXED = ClusterSpec.parse("1x2 h100-sxm + 1x2 a100-sxm-80gb")
MODEL = llama(
    batch=16, seq=1024, hidden=2048, ffn=5632, heads=16, kv=8, vocab=32000, layers=12, dtype="bfloat16"
)  # fmt: skip
TRAINING = Training(precision="bf16")
PIPED = Parallelism(pp=2, dp=2, tp=1, zero=0, pipeline_schedule="1f1b")


def planned(
    cluster: str | ClusterSpec, pinned: Parallelism = PIPED, model: Model = MODEL, training: Training = TRAINING
) -> Chosen:
    """The best plan, nothing else priced beside it."""
    cluster = ClusterSpec.of(cluster)
    work = begin(model, cluster, training, pinned)
    best = fastest(work, candidates(work.limits, pinned), cluster.usable_bytes)
    assert best is not None
    return choose(best, work)


def layers(chosen: Chosen) -> list[int]:
    return [stage.last - stage.first for stage in chosen.stages]


def test_the_faster_node_takes_more_of_the_chain() -> None:
    mixed, slow, fast = planned(MIXED), planned("2x2 a100-sxm-80gb"), planned("2x2 h100-sxm")
    few, many = sorted(layers(mixed))
    assert layers(mixed) == [many, few] and many > 1.5 * few
    assert max(layers(slow)) - min(layers(slow)) < many - few
    assert fast.predicted.step_time_s < mixed.predicted.step_time_s < 0.8 * slow.predicted.step_time_s
    few, many = layers(planned("1x2 a100-sxm-80gb + 1x2 h100-sxm"))
    assert many > 1.5 * few, "kinds come in the order of the nodes"


def test_at_the_pace_of_the_slowest_it_would_take_longer() -> None:
    work = begin(MODEL, MIXED, TRAINING, PIPED)
    best = fastest(work, candidates(work.limits, PIPED), MIXED.usable_bytes)
    assert best is not None and len(best.stage_model.ranks) == 2
    slowest = replace(best.stage_model, ranks=())
    runs = [replace(s, first=f, last=f + 7) for s, f in zip(best.stages, (0, 7), strict=True)]
    assert best.step_s < finish(best.candidate, best.point, slowest, best.stages, 0.0).step_s
    assert best.step_s < finish(best.candidate, best.point, best.stage_model, tuple(runs), 0.0).step_s


def small_kinds(stages: int, first: int, headroom: int) -> Topology:
    """So many devices on a node, ``first`` of them quick and with more memory."""
    topology = ClusterSpec.parse(f"1x{stages} a100-sxm-80gb").topology()
    quick = replace(H100, memory_bytes=10**8 + headroom, reserved_bytes=0)
    slow = replace(A100, memory_bytes=10**8, reserved_bytes=0)
    return replace(topology, device=slow, groups=((quick, first), (slow, stages - first)))


def mixed_pipeline(seed: int) -> Pipeline:
    """A random pipeline whose first ranks take a third to two thirds of the time, and hold some megabytes more."""
    random, given = np.random.default_rng(seed), random_pipeline(seed)
    first = int(random.integers(1, given.candidate.stages))
    topology = small_kinds(given.candidate.stages, first, int(random.integers(0, 4e6)))
    operators = replace(given.evaluator.operators, topology=topology)
    shares = random.uniform(0.33, 0.67, len(given.point.prices))
    quick = tuple(
        replace(
            price, forward_s=share * price.forward_s, backward_s=share * price.backward_s,
            selective=replace(price.selective, again_s=share * price.selective.again_s),
        )
        for share, price in zip(shares.tolist(), given.point.prices, strict=True)
    )  # fmt: skip
    kinds = tuple(zip((topology.groups[0][0], topology.device), (quick, given.point.prices), strict=True))
    return Pipeline(Evaluator.of(operators, Training()), given.candidate, replace(given.point, kinds=kinds))


@pytest.mark.parametrize("seed", sampled(range(20), range(0, 20, 3)))
def test_no_cut_and_no_recomputation_is_faster(seed: int) -> None:
    pipeline = mixed_pipeline(seed)
    assert pipeline.stage_model.ranks
    held = 0
    for wall in walls(pipeline):
        found, best = pipeline.searched(wall), by_trial(pipeline, wall)
        assert (found is None) == (best is None)
        if found is not None and best is not None:
            held += 1
            assert found.step_s == pytest.approx(best.step_s, rel=1e-9)
            for rank, memory in enumerate(found.memory):
                assert memory.total <= wall + pipeline.stage_model.at(rank).headroom
            assert found.over_bytes(wall) == 0
    assert held


def test_each_kind_is_filled_to_its_own_wall() -> None:
    """States alone take more than the small cards hold of an even share; the large ones take the rest."""
    cluster = ClusterSpec.parse("1x1 a100-sxm-80gb + 1x1 v100-sxm2-16gb")
    model = llama(batch=4, seq=256, hidden=2048, ffn=8192, heads=16, kv=16, vocab=8000, layers=30)
    pinned = Parallelism(pp=2, dp=1, tp=1, pipeline_schedule="1f1b")
    chosen = planned(cluster, pinned, model, Training(precision="fp32"))
    large, small = (device.usable_bytes for device, _ in cluster.topology().kinds)
    held = [memory.total for memory in chosen.predicted.peak_bytes]
    assert cluster.usable_bytes == small < held[0] <= large and held[1] <= small


def test_memory_that_is_given_holds_for_all_kinds() -> None:
    topology = replace(MIXED, memory_bytes=5_000_000_000).topology()
    assert [device.usable_bytes for device, _ in topology.kinds] == [5_000_000_000] * 2
    assert all(headroom_bytes(topology, device) == 0 for device, _ in topology.kinds)


def test_which_ranks_are_on_a_kind_of_their_own() -> None:
    work = begin(MODEL, MIXED, TRAINING, Parallelism())
    seen = set()
    for candidate in candidates(work.limits, Parallelism()):
        devices = devices_of(work.operators.topology, candidate)
        if candidate.pp == 1 or candidate.schedule not in ("gpipe", "1f1b"):
            assert not devices
        else:
            assert devices == (H100,) * (candidate.pp // 2) + (A100,) * (candidate.pp // 2)
        seen.add((candidate.pp, candidate.schedule))
    assert {(1, "1f1b"), (2, "1f1b"), (4, "gpipe"), (2, "interleaved")} & seen
    wide = ClusterSpec.parse("1x2 h100-sxm + 2x2 a100-sxm-80gb").topology()
    assert wide.among(0, 2) == H100 and wide.among(2, 4) == A100 and wide.among(0, 3) == wide.device


@given(st.lists(st.tuples(st.floats(0.2, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=6), st.integers(1, 12))
def test_no_uneven_stages_take_less_than_the_bound(ranks: list[tuple[float, float]], count: int) -> None:
    paces, shares = zip(*ranks, strict=True)
    whole = sum(shares)
    bound = least_uneven_slots(paces, lambda n: count - 1 + n)
    if whole > 1e-6:
        times = [pace * share / whole for pace, share in ranks]
        assert bound <= (count - 1) * max(times) + sum(times) + 1e-9
    assert least_uneven_slots([1.0] * len(paces), lambda n: count - 1 + n) == pytest.approx(
        (count - 1 + len(paces)) / len(paces)
    )


def test_the_bound_is_below_every_plan_and_near_the_best() -> None:
    """Every candidate with a pipeline of one kind to a stage, each searched for itself."""
    pinned = Parallelism(pp=2, tp=1, pipeline_schedule="1f1b", zero=0)
    work = begin(MODEL, MIXED, TRAINING, pinned)
    possible, wall = candidates(work.limits, pinned), MIXED.usable_bytes
    for candidate in possible:
        found = work.evaluate(candidate, wall)
        assert found is not None
        assert work.evaluator.bounds.limited_s(candidate, wall) <= found.step_s * (1 + 1e-9)
        assert found.step_s * 0.9 <= found.bound_s <= found.step_s
    best = fastest(work, possible, wall)
    assert best is not None and 0 <= work.gap(best) < 0.1 + work.budget.tolerance


def test_utilisation_is_of_the_sum_of_the_peaks() -> None:
    mixed, slow = planned(MIXED), planned("2x2 a100-sxm-80gb")
    peaks = [device.peak_flops_per_s["bfloat16"] for device in (H100, A100)]
    flops = slow.predicted.mfu * slow.predicted.step_time_s * 4 * peaks[1]
    assert mixed.predicted.mfu * mixed.predicted.step_time_s * 2 * sum(peaks) == pytest.approx(flops)


def test_the_sum_of_stages_is_the_chain() -> None:
    runs = [(s.first, s.last) for s in planned(MIXED).stages]
    assert runs[0][0] == 0 and runs[-1][1] == len(MODEL.segments)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(runs))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(32) for _ in range(6))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return ((x - y) ** 2).mean()


def test_an_emitted_plan_equals_one_device_and_is_told() -> None:
    batch = torch.randn(8, 32), torch.randn(8, 32)
    plan = parallelize(
        Net(), "1x1 h100-sxm + 1x1 v100-sxm2-16gb", batch, training=Training(precision="fp32"),
        parallelism=Parallelism(pp=2, pipeline_schedule="1f1b"), effort="fast",
    )  # fmt: skip
    many, few = layers(plan.record.chosen)
    assert many > few and plan.verify().passed
    report = plan.report(verbose=True)
    assert f"of 6 segments h100-sxm holds {many}, v100-sxm2-16gb holds {few}" in report
    large, small = (size_text(device.usable_bytes) for device, _ in plan.record.cluster.topology().kinds)
    assert f"(memory limit: {large} on h100-sxm, {small} on v100-sxm2-16gb)" in report


def test_what_does_not_fit_is_told_of_the_stage_that_lacks_most() -> None:
    cluster = ClusterSpec.parse("1x1 a100-sxm-80gb + 1x1 v100-sxm2-16gb")
    model = llama(batch=4, seq=256, hidden=4096, ffn=16384, heads=16, kv=16, vocab=8000, layers=40)
    pinned = Parallelism(pp=2, dp=1, tp=1, pipeline_schedule="1f1b")
    work = begin(model, cluster, Training(precision="fp32"), pinned)
    sizes = [least_bytes(work.operators, s, work.training) for s in candidates(work.limits, pinned)]
    assert fastest(work, candidates(work.limits, pinned), cluster.usable_bytes) is None
    large, small = (device.usable_bytes for device, _ in cluster.topology().kinds)
    nearest = leanest(work, pinned)
    assert min(sizes) <= nearest.over_bytes(0.0), "what a plan needs at the least is no less than its bound"
    assert f"of the cluster's {(large + small) / 1e9:.0f} GB" in needs(work, nearest)
