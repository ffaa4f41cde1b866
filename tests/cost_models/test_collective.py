"""A collective's time: against published measurements, and as algebra."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.collective import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    group_size,
    reduce_scatter_seconds,
    send_seconds,
)
from cost_models.hardware import Link, Protocol, Switch, Topology, load_device
from cost_models.hardware.link import KINDS

COLLECTIVES = [all_reduce_seconds, all_gather_seconds, reduce_scatter_seconds, all_to_all_seconds, broadcast_seconds]
latencies, rates = st.floats(0, 1e-3), st.floats(1e6, 1e12)
plain_links = st.builds(
    Link, latencies, rates, latencies, st.none() | st.builds(Switch, latencies, rates, st.integers(2, 8)),
    st.lists(st.builds(Protocol, st.sampled_from(["LL", "LL128"]), latencies, st.floats(0.01, 1)), max_size=2,
             unique_by=lambda protocol: protocol.name).map(tuple),
    st.none() | latencies,
)  # fmt: skip
by_members = st.dictionaries(st.integers(2, 16), rates, max_size=3).map(lambda given: tuple(sorted(given.items())))
meshes = st.builds(dataclasses.replace, plain_links, group_bandwidths=by_members)
own = st.dictionaries(st.sampled_from(KINDS), meshes, max_size=2).map(lambda given: tuple(given.items()))
links = st.builds(dataclasses.replace, meshes, kinds=own)
paths = st.lists(st.tuples(st.integers(1, 64), links), max_size=3).map(tuple)
plain_paths = st.lists(st.tuples(st.integers(1, 64), meshes), max_size=3).map(tuple)
sizes = st.floats(1, 1e12)
few = settings(max_examples=25, deadline=None)
GIB, MIB = 2**30, 2**20


def path(device: str, nodes: int, per_node: int, stride: int, size: int):
    profile, interconnect = load_device(device)
    return Topology(profile, interconnect.levels(nodes, per_node)).axis(stride, size)


@pytest.mark.parametrize("collective", COLLECTIVES)
@few
@given(group=paths, bytes=sizes, more=sizes)
def test_every_collective_is_free_for_one_rank_and_monotone_in_bytes(collective, group, bytes, more):
    seconds = collective(bytes, group)
    assert collective(0, group) == 0
    if group_size(group) == 1:
        assert seconds == 0 == collective(bytes, ())
    else:
        assert 0 < seconds <= collective(bytes + more, group)


@pytest.mark.parametrize("collective", COLLECTIVES)
@few
@given(group=paths, bytes=st.lists(sizes | st.just(0.0), min_size=1, max_size=5))
def test_arrays_price_as_numbers_do(collective, group, bytes):
    np.testing.assert_allclose(collective(np.array(bytes), group), [collective(one, group) for one in bytes])


@pytest.mark.parametrize("collective", COLLECTIVES)
@few
@given(group=paths, bytes=sizes, other=sizes)
def test_concave_in_bytes_so_without_a_jump(collective, group, bytes, other):
    """The shortest of straight lines bends down only, and has no jump where the choice of a way changes."""
    middle = collective((bytes + other) / 2, group)
    assert middle >= (collective(bytes, group) + collective(other, group)) / 2 * (1 - 1e-9)


@pytest.mark.parametrize("collective", COLLECTIVES)
@few
@given(group=paths, bytes=sizes)
def test_symbols_price_as_numbers_do(collective, group, bytes):
    """Bytes as a symbol, and the figures of the innermost level's link too."""
    size, latency, bandwidth = sympy.symbols("bytes latency bandwidth", positive=True)
    seconds = collective(bytes, group)
    assert float(sympy.sympify(collective(size, group)).subs(size, bytes)) == pytest.approx(seconds)
    known = [(members, dataclasses.replace(link, kinds=(), group_bandwidths=())) for members, link in group]
    if known and known[0][1].latency_s:
        members, link = known[0]
        symbols = dataclasses.replace(link, latency_s=latency, bandwidth_bytes_per_s=bandwidth)
        priced = sympy.sympify(collective(size, ((members, symbols), *known[1:])))
        values = {size: bytes, latency: link.latency_s, bandwidth: link.bandwidth_bytes_per_s}
        assert float(priced.subs(values)) == pytest.approx(collective(bytes, tuple(known)))


@few
@given(link=links, bytes=sizes, more=sizes)
def test_a_send_is_monotone_and_alike_for_numbers_arrays_and_symbols(link, bytes, more):
    size = sympy.Symbol("bytes", positive=True)
    seconds = send_seconds(bytes, link)
    assert 0 < seconds <= send_seconds(bytes + more, link)
    np.testing.assert_allclose(send_seconds(np.array([0.0, bytes]), link), [0.0, seconds])
    assert float(send_seconds(size, link).subs(size, bytes)) == pytest.approx(seconds)


@few
@given(group=plain_paths, bytes=sizes)
def test_an_all_reduce_is_its_halves(group, bytes):
    """No longer than a reduce-scatter and an all-gather; the same transfers, so twice one of them without latencies."""
    halves = reduce_scatter_seconds(bytes, group), all_gather_seconds(bytes, group)
    assert all_reduce_seconds(bytes, group) <= sum(halves) * (1 + 1e-9)
    at_once = tuple((members, Link(0.0, link.among(members))) for members, link in group)
    assert all_reduce_seconds(bytes, at_once) == pytest.approx(2 * all_gather_seconds(bytes, at_once))


@pytest.mark.parametrize("collective", COLLECTIVES)
@few
@given(group=paths, bytes=sizes, at=st.integers(0, 3))
def test_a_level_of_one_member_changes_nothing(collective, group, bytes, at):
    longer = (*group[:at], (1, Link(1.0, 1.0, 1.0)), *group[at:])
    assert collective(bytes, longer) == collective(bytes, group)


@pytest.mark.parametrize("collective", COLLECTIVES)
@few
@given(members=st.integers(8, 64), link=plain_links, bytes=sizes)
def test_more_members_take_no_less(collective, members, link, bytes):
    """On links to a switch. On links to peers more members may have more bandwidth, and below the members for which a
    switch adds, one more may turn it on."""
    assert collective(bytes, ((members + 1, link),)) >= collective(bytes, ((members, link),)) * (1 - 1e-12)


def test_the_ring_s_formula():
    link = Link(1e-6, 1e9, 1e-5)
    assert all_gather_seconds(8e9, ((4, link),)) == pytest.approx(1e-5 + 3e-6 + 6.0)
    assert all_reduce_seconds(8e9, ((4, link),)) == pytest.approx(1e-5 + 6e-6 + 12.0)
    assert all_to_all_seconds(8e9, ((4, link),)) == pytest.approx(1e-5 + 3e-6 + 6.0)
    assert send_seconds(8e9, link) == pytest.approx(1e-5 + 1e-6 + 8.0)
    assert send_seconds(0, link) == 0


def test_levels_run_at_the_same_time():
    """Two nodes of four: four rings, each of which passes 3 steps of 4 inside a node, at 10 GB/s, and leaves it by a
    device of its own, at 1 GB/s; 7/8 of the data go round."""
    group = ((4, Link(0, 10e9)), (2, Link(0, 1e9)))
    assert all_gather_seconds(8e9, group) == pytest.approx(max(7 / 8 * 0.6, 7 / 8 * 2.0))
    assert all_reduce_seconds(8e9, group) == pytest.approx(2 * 7 / 8 * 2.0)
    assert all_to_all_seconds(8e9, group) == pytest.approx(max(0.3, 4.0))


@pytest.mark.parametrize(
    ("devices", "measured_us"),
    [
        (2, {MIB: 44.21, 16 * MIB: 131.9, 128 * MIB: 763.6, GIB: 5442.8}),
        (8, {MIB: 92.79, 16 * MIB: 232.4, 128 * MIB: 1162.0, GIB: 8193.0}),
    ],
)
def test_all_reduce_in_an_a100_node(devices, measured_us):
    """nccl-tests, VIA-Research/vTrain@f8dda847 trace/a100."""
    group = path("a100-sxm-80gb", 1, 8, 1, devices)
    errors = [abs(all_reduce_seconds(size, group) * 1e6 / us - 1) for size, us in measured_us.items()]
    assert np.mean(errors) < 0.12 and max(errors) < 0.20


@pytest.mark.parametrize(
    ("size", "measured_us"),
    [(MIB, 45.9), (4 * MIB, 68.5), (16 * MIB, 133.5), (64 * MIB, 338.9), (256 * MIB, 1077.1), (GIB, 4053.4)],
)
def test_all_reduce_in_a_node_whose_switch_adds(size, measured_us):
    """Eight H200 on an HGX NVLink4 board, stas00/ml-engineering@744d01e1 network/README.md."""
    seconds = all_reduce_seconds(size, path("h100-sxm", 1, 8, 1, 8))
    assert seconds * 1e6 == pytest.approx(measured_us, rel=0.2)


def test_without_a_switch_that_adds_the_ring_is_taken():
    adds = Link(1e-6, 100e9, 1e-5, Switch(5e-5, 80e9))
    plain = dataclasses.replace(adds, switch=None)
    assert all_reduce_seconds(GIB, ((8, adds),)) == pytest.approx(5e-5 + GIB / 80e9)
    assert all_reduce_seconds(GIB, ((8, adds),)) < all_reduce_seconds(GIB, ((8, plain),))
    assert all_reduce_seconds(GIB, ((2, adds),)) == all_reduce_seconds(GIB, ((2, plain),))
    assert all_gather_seconds(GIB, ((8, adds),)) == all_gather_seconds(GIB, ((8, plain),))


@pytest.mark.parametrize(("device", "bus_gb_per_s"), [("a100-sxm-80gb", 192), ("h100-sxm", 380)])
def test_all_reduce_over_nodes_reaches_the_published_bus_bandwidth(device, bus_gb_per_s):
    """NVIDIA GTC24 S62129 slide 12: eight cards a node, large messages."""
    ranks, size = 64, 16 * GIB
    seconds = all_reduce_seconds(size, path(device, 8, 8, 1, ranks))
    assert 2 * (ranks - 1) / ranks * size / seconds / 1e9 == pytest.approx(bus_gb_per_s, rel=0.15)


@pytest.mark.parametrize(("device", "bus_gb_per_s"), [("a100-sxm-80gb", 24), ("h100-sxm", 48)])
def test_all_to_all_over_nodes_is_bound_by_the_cards(device, bus_gb_per_s):
    """NVIDIA GTC25 slide 13: 32 devices, each with a card; a quarter of the peers share the node."""
    seconds = all_to_all_seconds(16 * GIB, path(device, 4, 8, 1, 32))
    assert 31 / 32 * 16 * GIB / seconds / 1e9 == pytest.approx(bus_gb_per_s, rel=0.35)


def test_an_axis_over_nodes_is_slower_than_one_inside():
    inside, between = path("h100-sxm", 8, 8, 1, 8), path("h100-sxm", 8, 8, 8, 8)
    for collective in COLLECTIVES:
        assert collective(64 * MIB, between) > 4 * collective(64 * MIB, inside)
