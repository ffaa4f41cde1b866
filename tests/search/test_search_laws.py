"""Laws of the search: more of anything is never slower, and nothing that a user pins is quicker than what it finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.ir.graph import Model
from autoplan.options import Parallelism, Training
from autoplan.search.entry import search
from autoplan.search.space.systems import read, resolve
from tests.bench.laws.laws import pinned_of
from tests.support.hand_made import llama
from tests.support.planning import alone

MIXED = Training(precision="bf16-mixed")
SIZES = {"hidden": 1024, "ffn": 4096, "heads": 8, "kv": 8, "dtype": "bfloat16"}
TOLERANCE = 1.005
CLUSTERS = ("1x8 h100-sxm", "2x4 a100-sxm-40gb")


def seconds(model: Model, cluster: ClusterSpec, pinned: Parallelism | str = "auto") -> float:
    with alone():
        found = search(model, cluster, MIXED, resolve(pinned, cluster), (), "full")[0]
    return found.predicted.step_time_s


def model(batch: int = 32) -> Model:
    return llama(batch=batch, seq=1024, **SIZES)


@pytest.mark.parametrize("name", [CLUSTERS[1], pytest.param(CLUSTERS[0], marks=pytest.mark.slow)])
def test_twice_the_batch_takes_at_most_twice_as_long(name: str) -> None:
    cluster = ClusterSpec.parse(name)
    assert seconds(model(64), cluster) <= 2 * TOLERANCE * seconds(model(32), cluster)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLUSTERS)
def test_more_memory_and_more_devices_are_never_slower(name: str) -> None:
    cluster = ClusterSpec.parse(name)
    alone_s, more = seconds(model(), cluster), replace(cluster, nodes=2 * cluster.nodes)
    assert seconds(model(), more) <= TOLERANCE * alone_s
    tight = replace(cluster, memory_bytes=cluster.usable_bytes // 20)
    assert alone_s <= TOLERANCE * seconds(model(), tight)


@pytest.mark.parametrize("name", [CLUSTERS[1], pytest.param(CLUSTERS[0], marks=pytest.mark.slow)])
def test_more_bandwidth_is_never_slower(name: str) -> None:
    cluster = ClusterSpec.parse(name)
    assert seconds(model(), replace(cluster, bandwidth=2.0)) <= TOLERANCE * seconds(model(), cluster)


@pytest.mark.slow
@pytest.mark.parametrize("name", [CLUSTERS[1], pytest.param(CLUSTERS[0], marks=pytest.mark.slow)])
def test_no_pin_at_random_is_quicker(name: str) -> None:
    """`make bench-laws` tries more of them, on larger models."""
    found = list(pinned_of(model(), ClusterSpec.parse(name), ("llama", name), ("dp", "tp", "pp", "cp"), 6, 0))
    assert len(found) == 6
    for one in found:
        assert one.holds, one


PINS = (
    "zero3", "ddp", "megatron", "dp=8 zero=1", "dp=8 zero=3 dp_replicate=2", "dp=4 tp=2 zero=2", "dp=2 pp=4 1f1b",
    "tp=4 pp=2", "cp=2 dp=4 zero=1",
)  # fmt: skip


@pytest.mark.parametrize("name", [CLUSTERS[1], pytest.param(CLUSTERS[0], marks=pytest.mark.slow)])
def test_nothing_pinned_is_quicker(name: str) -> None:
    cluster = ClusterSpec.parse(name)
    least_s = seconds(model(), cluster)
    for pin in PINS:
        assert least_s <= TOLERANCE * seconds(model(), cluster, read(pin)), pin
