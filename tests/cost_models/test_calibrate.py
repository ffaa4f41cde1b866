"""The fit finds the figures that made the measurements; what is measured, and how its halves are told apart."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.calibrate import sizes
from cost_models.calibrate.cases import Collective, Dispatch, Matmul, Sample, Stream, by_family, errors, split
from cost_models.calibrate.fit import fit
from cost_models.calibrate.fit_device import blank_device, fit_device
from cost_models.calibrate.fit_links import fit_links, predict, with_start_delay
from cost_models.calibrate.overlap import sharing, slowdown
from cost_models.calibrate.report import held_out_errors, mean_error, rows
from cost_models.calibrate.world import cluster_axes, join, members
from cost_models.collective import COLLECTIVES, overlapped, send_seconds
from cost_models.errors import ProfileError
from cost_models.hardware import Link

CPU = replace(
    blank_device("made up", 8 * 2**30, 2**28, 1, accelerated=False),
    peaks=(("float32", 80e9), ("float64", 40e9)), matmul_efficiency=0.9, matmul_tiles=((16, 16, 1.0),),
    matmul_ramp_k=20.0, attention_efficiency=0.4, attention_backward_efficiency=0.6, attention_ramp_k=50.0,
    attention_ramp_head_dim=10.0, memory_bandwidth_bytes_per_s=10e9, memory_efficiency=0.8, cache_bytes=3e6,
    cache_bandwidth_bytes_per_s=40e9, update_efficiency=0.3, kernel_launch_s=4e-6, dispatch_s=5e-6,
)  # fmt: skip
NODE = Link(
    200e-6, 0.5e9, 100e-6, group_bandwidths=((2, 0.8e9), (4, 0.5e9)),
    kinds=(("reduce-scatter", Link(200e-6, 0.25e9, 300e-6, group_bandwidths=((2, 0.4e9), (4, 0.25e9)))),),
)  # fmt: skip
NIC = Link(500e-6, 12e6, 400e-6, kinds=(("send", Link(800e-6, 20e6)),))


def noisy(cases, seconds, share=0.03):
    """Samples of the cases as though measured, each off by a few percent."""
    draw = random.Random(1)
    return [Sample(case, seconds(case) * math.exp(draw.gauss(0, share))) for case in cases]


def affordable(case):
    return case.work < 4e9


def test_the_fit_finds_the_device_that_made_the_measurements():
    cases = [case for case in sizes.operators(("float32", "float64"), "float32") if affordable(case)]
    points = split(noisy(cases, lambda case: case.predict(CPU)))
    found = fit_device(blank_device("made up", 8 * 2**30, 2**28, 1, accelerated=False), points.fitted)
    for name, peak in CPU.peaks:
        share = dict(found.matmul_shares).get(name, 1.0)
        rate = dict(found.peaks)[name] * found.matmul_efficiency * share
        assert rate == pytest.approx(peak * CPU.matmul_efficiency, rel=0.05)
    reached = found.memory_bandwidth_bytes_per_s * found.memory_efficiency
    assert reached == pytest.approx(8e9, rel=0.1)
    assert found.cache_bytes == pytest.approx(CPU.cache_bytes, rel=0.3)
    assert found.cache_bandwidth_bytes_per_s == pytest.approx(CPU.cache_bandwidth_bytes_per_s, rel=0.2)
    assert found.update_efficiency * reached == pytest.approx(CPU.update_efficiency * 8e9, rel=0.1)
    assert found.dispatch_s == pytest.approx(CPU.dispatch_s, rel=0.1)
    assert found.matmul_efficiency <= 1 and found.memory_efficiency <= 1
    told = held_out_errors(points, lambda case: case.predict(found))
    assert 0 < mean_error(told) < 0.06


def test_an_accelerators_tiles_are_fitted_with_their_shares():
    tiles = ((256, 128, 1.0), (128, 128, 0.8), (128, 64, 0.7), (64, 64, 0.5))
    fast = replace(
        CPU, peaks=(("bfloat16", 900e12),), multiprocessors=132, matmul_tiles=tiles, compiles=True, cache_bytes=0.0,
        blocking=False,
        memory_bandwidth_bytes_per_s=3e12, kernel_launch_s=2e-6,
    )  # fmt: skip
    samples = noisy(sizes.operators(("bfloat16",), "bfloat16"), lambda case: case.predict(fast), share=0.01)
    found = fit_device(blank_device("made up", 80 * 2**30, 2**30, 132, accelerated=True), samples)
    assert held_out_errors(split(samples), lambda case: case.predict(found))[0].mean < 0.1
    products = [sample for sample in samples if isinstance(sample.case, Matmul)]
    assert sum(abs(s.case.predict(found) / s.seconds - 1) for s in products) / len(products) < 0.03


def test_the_fit_finds_the_links_that_made_the_measurements():
    axes = (*cluster_axes(1, 4), *cluster_axes(2, 4)[2:])
    links = {"node": NODE, "nic": NIC}
    cases = sizes.collectives(axes, 2**24)
    points = split(noisy(cases, lambda case: predict(case, links)))
    found = fit_links(points.fitted)
    assert mean_error(held_out_errors(points, lambda case: predict(case, found))) < 0.05
    for kind in sizes.COLLECTIVES:
        for level, truth in links.items():
            one, other = found[level].of(kind), truth.of(kind)
            counts = (2,) if level == "nic" or kind == "send" else (2, 4)
            for count in counts:
                assert one.among(count) == pytest.approx(other.among(count), rel=0.1), (kind, level, count)
            together = one.startup_s + one.latency_s
            assert together == pytest.approx(other.startup_s + other.latency_s, rel=0.5), (kind, level)


def test_a_burst_that_a_link_lets_through_does_not_flatter_what_is_large():
    axes, at_once, rate = cluster_axes(2, 4)[2:], 2.0**18, NIC.of("send").bandwidth_bytes_per_s

    def shaped(case):
        """The first bytes pass ten times as fast, as a shaper's buffer takes them."""
        return predict(case, {"nic": NIC}) - min(case.bytes, at_once) / rate * 0.9

    cases = [case for case in sizes.collectives(axes, 2**24) if case.kind == "send"]
    found = fit_links([Sample(case, shaped(case)) for case in cases])
    for case in cases:
        if case.bytes >= 2**24:
            assert predict(case, found) == pytest.approx(shaped(case), rel=0.03)


def test_one_disturbed_point_does_not_move_the_fit():
    sizes_bytes = [2.0**power for power in range(10, 30, 2)]

    def seconds(figures):
        return [figures["startup"] + size / figures["rate"] for size in sizes_bytes]

    measured = seconds({"startup": 1e-4, "rate": 1e9})
    measured[6] *= 10
    found = fit({"startup": 1e-3, "rate": 1e8}, seconds, measured)
    assert found["rate"] == pytest.approx(1e9, rel=0.1) and found["startup"] == pytest.approx(1e-4, rel=0.1)


def test_what_no_prediction_depends_on_stays_at_its_guess():
    found = fit({"rate": 2.0, "idle": 7.0}, lambda figures: [1 / figures["rate"]], [0.1])
    assert found["idle"] == pytest.approx(7.0) and found["rate"] == pytest.approx(10.0, rel=1e-2)


@given(st.lists(st.integers(1, 10**9), min_size=1, unique=True))
def test_every_second_size_is_held_out_and_the_largest_is_fitted(counts):
    samples = [Sample(Stream("add", count, 3), 1.0) for count in counts]
    points = split(samples)
    assert {*points.fitted, *points.held_out} == {*samples}
    assert len(points.fitted) - len(points.held_out) in (0, 1)
    ordered = [sample.case.work for sample in by_family(samples)["add"]]
    assert [sample.case.work for sample in points.fitted] == ordered[(len(ordered) + 1) % 2 :: 2]


def test_errors_are_shares_of_what_was_measured():
    (only,) = errors({"add": [(1.1, 1.0), (1.4, 2.0)], "none": []})
    assert (only.kind, only.count) == ("add", 2)
    assert only.mean == pytest.approx(0.2) and only.maximum == pytest.approx(0.3)
    assert mean_error([]) == 0.0


def test_a_row_of_the_table_names_its_case():
    axis = cluster_axes(1, 2)[0]
    points = split([Sample(Collective("send", axis, 4096), 1e-3), Sample(Dispatch(), 1e-5)])
    lines = list(rows(points, lambda case: 2e-3))
    assert lines[-1]["kind"] == "send node x2" and lines[-1]["case"] == "bytes=4096"
    assert [line["fitted"] for line in lines] == [1, 1] and lines[0]["predicted_s"] == "0.002"


@settings(max_examples=50)
@given(st.integers(1, 4), st.integers(1, 8))
def test_each_axis_puts_every_rank_in_one_group(nodes, devices_per_node):
    for axis in cluster_axes(nodes, devices_per_node):
        groups = members(axis, nodes * devices_per_node)
        assert sorted(rank for group in groups for rank in group) == list(range(nodes * devices_per_node))
        assert all(len(group) == axis.size for group in groups)
        assert math.prod(count for _, count in axis.levels) == axis.size
        crossing = {rank // devices_per_node for rank in groups[0]}
        assert len(crossing) == dict(axis.levels).get("nic", 1)


def test_the_axes_of_two_nodes_of_four():
    names = [axis.name for axis in cluster_axes(2, 4)]
    assert names == ["node x2", "node x4", "nic x2", "node x4 nic x2"]
    assert [axis.name for axis in cluster_axes(2, 1)] == ["nic x2"]


@given(st.floats(0.1, 1.0), st.floats(0.0, 4.0))
def test_the_slowdown_is_the_one_that_overlapped_takes(comm_s, share):
    compute_s = 2 * comm_s
    both_s = overlapped(compute_s, comm_s, share).seconds
    assert slowdown(comm_s, compute_s, both_s) == pytest.approx(share, abs=1e-9)


def test_devices_that_gain_by_the_others_waiting_share_processors():
    assert sharing(1.0, 1.0, 0.98, 2, 4) == (1, 1.0)
    assert sharing(2.0, 2.0, 1.0, 2, 4) == (4, 2.0)      # within a node
    assert sharing(2.0, 1.0, 1.0, 2, 2) == (4, 2.0)      # two nodes that are parts of one machine


def test_ranks_that_wait_for_their_turns_start_every_collective_and_every_send_later():
    send, gather = Link(1e-4, 1e9, 1e-5), Link(1e-4, 8e8, 2e-5)
    links = {"node": Link(1e-4, 5e8, 2e-4, kinds=(("send", send), ("all-gather", gather)))}
    met = with_start_delay(links, 1e-3, 2e-3)["node"]
    assert send_seconds(2**20, met) - send_seconds(2**20, links["node"]) == pytest.approx(2e-3)
    path, later = ((4, links["node"]),), ((4, met),)
    for kind in ("all-gather", "all-reduce"):
        seconds = COLLECTIVES[kind](2**20, later) - COLLECTIVES[kind](2**20, path)
        assert seconds == pytest.approx(1e-3)
    assert COLLECTIVES["all-reduce"](2**20, ((1, met),)) == 0
    assert with_start_delay(links, 0.0, 0.0) == links
    assert (met.of("send").turn_s, met.of("all-gather").turn_s) == (2e-3, 1e-3)


def test_an_accelerator_without_links_is_refused_before_any_process_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    with pytest.raises(ProfileError, match=r"mps.*Apple's GPU.*shipped profile cpu"):
        join()
