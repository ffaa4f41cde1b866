"""PowerSGD's price: the bytes of what the runtime sends and keeps, the products beside, where it pays."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.cost.low_rank import OPERATORS, ROUNDS, LowRankCost
from autoplan.cost.prices import Prices
from autoplan.cost.sent_compressed import kept_bytes
from autoplan.ir.buckets import Compression, is_factored
from autoplan.ir.choice import Chosen
from autoplan.ir.mesh import Mesh
from autoplan.options import Parallelism, Training
from autoplan.runtime.parallel.compression.powersgd import LowRankSums
from autoplan.runtime.parallel.own_box import whole
from autoplan.search.entry import search
from autoplan.search.predict import COMPRESSED
from tests.support.hand_made import mlp

SHAPES = ((48, 32), (48, 32), (16, 64), (8, 4, 12))
RANK = 2
HOW = Compression("powersgd", RANK)


def runtime_sums() -> LowRankSums:
    held: Any = [
        SimpleNamespace(name=str(n), part=whole(shape), parameter=p, values=p.detach())
        for n, (shape, p) in enumerate((shape, nn.Parameter(torch.zeros(shape))) for shape in SHAPES)
    ]  # fmt: skip
    return LowRankSums(held, None, RANK, 0)  # type: ignore[arg-type]


def counted() -> LowRankCost:
    return LowRankCost({"dp": {(48, 32): 2, (16, 64): 1, (8, 4, 12): 1}}, HOW, 4)


def test_bytes_are_those_that_the_runtime_sends_and_keeps() -> None:
    made = runtime_sums()
    sizes = [("all-reduce", 4 * made.sent.numel()), ("all-reduce", 4 * made.flat.numel())]
    assert list(counted().messages("dp", 4)) == sizes
    counts = made.had.numel()
    kept = sum(error.numel() for error in made.errors) + made.sent.numel() + made.flat.numel() - counts
    assert sum(kept_bytes(shape, HOW, 4, 4) for shape in SHAPES) == 4 * kept


@pytest.mark.parametrize(("size", "rank", "measured_s"), [(8192, 4, 900e-6), (4096, 4, 267e-6), (4096, 16, 266e-6)])
def test_products_take_what_they_were_measured_to_take(size: int, rank: int, measured_s: float) -> None:
    """The five kernels of one matrix in float32, torch 2.11 on an H100; the orthonormalisation aside."""
    prices = Prices(Mesh.of(dp=4), ClusterSpec.parse("1x4 h100-sxm").topology(), True, True, 1)
    cost = LowRankCost({"dp": {(size, size): 1}}, Compression("powersgd", rank), 4)
    predicted_s = cost.matrix_s((size, size), prices)
    assert 0.8 * measured_s < predicted_s < 1.2 * measured_s


def test_a_matrix_that_fits_into_the_cache_is_read_there_by_the_next_kernel() -> None:
    """Of 9.6 passes over a gradient 3.9 come right after another: at the cache's bandwidth, where it is no larger."""
    topology = ClusterSpec.parse("1x4 h100-sxm").topology()
    found = {}
    for cache in (0.0, 4.0 * 64 * 64, 4.0 * 128 * 64):
        few = {"cache_bytes": cache, "cache_bandwidth_bytes_per_s": 1e9, "memory_bandwidth_bytes_per_s": 1e8}
        device = replace(topology.device, memory_efficiency=1.0, kernel_launch_s=0.0, dispatch_s=0.0, **few)
        prices = Prices(Mesh.of(dp=4), replace(topology, device=device), True, True, 1)
        cost = LowRankCost({"dp": {(128, 64): 1}}, HOW, 4)
        found[cache] = cost.matrix_s((128, 64), prices)
    size = 4 * 128 * 64
    none, less, all_of_it = found.values()
    assert none == less == pytest.approx(9.6 * size / 1e8)
    assert all_of_it == pytest.approx(5.7 * size / 1e8 + 3.9 * size / 1e9)


@pytest.mark.parametrize(("count", "measured_s"), [(1, 908e-6), (64, 1309e-6), (224, 1402e-6)])
def test_an_orthonormalisation_takes_its_kernels(count: int, measured_s: float) -> None:
    """Measured of two rounds of 14 operators."""
    prices = Prices(Mesh.of(dp=4), ClusterSpec.parse("1x4 h100-sxm").topology(), True, True, 1)
    cost = LowRankCost({"dp": {(4096, 4096): count}}, Compression("powersgd", 4), 4)
    predicted_s = cost.orthonormal_s(4096, count, prices)
    measured_s *= ROUNDS * OPERATORS / (2 * 14)
    assert 0.5 * measured_s < predicted_s < 1.5 * measured_s


def planned(compression: str | None, cluster: str) -> Chosen:
    model = mlp(batch=256, width=2048, hidden=8192, layers=2)
    pinned = Parallelism(dp=2, tp=1, pp=1, zero=0, compression=compression)
    return search(model, ClusterSpec.parse(cluster), Training(), pinned)[0]


def test_it_pays_on_a_slow_network_and_takes_memory() -> None:
    plain, less = (planned(kind, "2x1 h100-sxm network=ethernet-10g").predicted for kind in (None, "powersgd"))
    assert less.step_time_s < 0.5 * plain.step_time_s
    more, gradients = less.peak_bytes[0].parameters - plain.peak_bytes[0].parameters, plain.peak_bytes[0].gradients
    assert 0.95 * gradients < more < 1.05 * gradients, "what is left out of each gradient, and factors beside"
    assert 0 < sum(each.bytes for each in less.collectives if each.where == COMPRESSED) < gradients / 50


@pytest.mark.parametrize(
    ("shape", "rank", "wanted"),
    [((64, 64), 4, True), ((64, 8), 4, False), ((64,), 1, False), ((16, 4, 4, 4), 2, True), ((64, 64), 0, False)],
)
def test_what_is_factored(shape: tuple[int, ...], rank: int, wanted: bool) -> None:
    """Where factors have less than half the elements."""
    assert is_factored(shape, rank) is wanted
