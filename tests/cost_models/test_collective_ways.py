"""The ways of running a collective one by one, figures by kind and by members, contention, and overlap."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from cost_models.collective import (
    COLLECTIVES,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    hidden_seconds,
    overlapped,
    send_seconds,
)
from cost_models.hardware import Link, Protocol, Switch
from tests.support.sampling import examples

LL = Protocol("LL", 1e-6, 0.25)
PLAIN = Link(10e-6, 100e9, 20e-6)
TIMES = st.floats(0, 10)


def test_a_protocol_serves_small_messages():
    """8 devices: 7 steps of 10 us at 100 GB/s, or of 1 us at 25 GB/s; they meet at 63 us / (7/8 · (1/25 - 1/100))."""
    link, meet = dataclasses.replace(PLAIN, protocols=(LL,)), 63e-6 / (7 / 8 * (1 / 25e9 - 1 / 100e9))
    assert all_gather_seconds(1e3, ((8, link),)) == pytest.approx(20e-6 + 7e-6 + 7 / 8 * 1e3 / 25e9)
    assert all_gather_seconds(1e9, ((8, link),)) == all_gather_seconds(1e9, ((8, PLAIN),))
    before, after = (all_gather_seconds(meet * (1 + d), ((8, link),)) for d in (-1e-9, 1e-9))
    assert before == pytest.approx(after, rel=1e-8) == pytest.approx(all_gather_seconds(meet, ((8, PLAIN),)), rel=1e-8)


def test_one_protocol_runs_on_all_levels():
    """A level that lacks it keeps its own figures."""
    group = ((2, dataclasses.replace(PLAIN, protocols=(LL,))), (2, PLAIN))
    assert all_gather_seconds(4e3, group) == pytest.approx(
        20e-6 + 2 * 1e-6 + 1 * 10e-6 + max(3 / 4 * 1 / 2 * 4e3 / 25e9, 3 / 4 * 1 / 2 * 4e3 / 100e9)
    )


def test_a_tree_serves_small_all_reduces_over_many_nodes():
    """64 members: 126 steps of the ring, 12 hops of the tree, which moves the bytes once up and once down."""
    tree = dataclasses.replace(PLAIN, tree_latency_s=15e-6)
    assert all_reduce_seconds(1e3, ((64, tree),)) == pytest.approx(20e-6 + 12 * 15e-6 + 2 * 1e3 / 100e9)
    assert all_reduce_seconds(1e12, ((64, tree),)) == pytest.approx(20e-6 + 126 * 10e-6 + 2 * 63 / 64 * 10.0)
    assert all_gather_seconds(1e3, ((64, tree),)) == all_gather_seconds(1e3, ((64, PLAIN),))


def test_two_nodes_run_at_the_ring_s_rate():
    """A tree of two would need half of its bytes; it isn't counted on. Few bytes still take its few hops."""
    nodes = dataclasses.replace(PLAIN, bandwidth_bytes_per_s=1e9, tree_latency_s=10e-6)
    path = ((8, PLAIN), (2, nodes))
    plain = ((8, PLAIN), (2, dataclasses.replace(nodes, tree_latency_s=None)))
    assert all_reduce_seconds(8e9, path) == all_reduce_seconds(8e9, plain)
    assert all_reduce_seconds(1e3, path) < all_reduce_seconds(1e3, plain)


def test_a_switch_in_each_node_and_a_tree_between_them():
    node = dataclasses.replace(PLAIN, switch=Switch(50e-6, 60e9))
    nodes = Link(5e-6, 10e9, 30e-6, tree_latency_s=10e-6)
    seconds = all_reduce_seconds(8e6, ((8, node), (4, nodes)))
    assert seconds == pytest.approx(50e-6 + 2 * 2 * 10e-6 + max(8e6 / 60e9, 2 * 1e6 / 10e9))


def test_switches_on_every_level():
    group = ((8, Link(1e-6, 300e9, 0.0, Switch(50e-6, 200e9))), (8, Link(1e-6, 40e9, 0.0, Switch(70e-6, 30e9))))
    assert all_reduce_seconds(8e9, group) == pytest.approx(70e-6 + max(8 / 200, 1 / 30))


def test_few_members_leave_the_switch_alone():
    link = dataclasses.replace(PLAIN, switch=Switch(0.0, 1e12, members=5))
    assert all_reduce_seconds(1e9, ((4, link),)) == all_reduce_seconds(1e9, ((4, PLAIN),))
    assert all_reduce_seconds(1e9, ((5, link),)) == pytest.approx(1e9 / 1e12)


def test_links_to_each_peer_give_a_group_bandwidth_by_its_members():
    mesh = dataclasses.replace(PLAIN, group_bandwidths=((2, 10e9), (8, 70e9)))
    assert [mesh.among(n) for n in (2, 3, 5, 8, 16)] == pytest.approx([10e9, 20e9, 40e9, 70e9, 70e9])
    assert all_gather_seconds(8e9, ((8, mesh),)) == pytest.approx(20e-6 + 70e-6 + 7 / 8 * 8 / 70)
    assert send_seconds(1e9, mesh) == pytest.approx(30e-6 + 0.1)


def test_figures_of_a_kind_replace_the_general_ones():
    slow = Link(1e-3, 1e9, 1e-3)
    link = dataclasses.replace(PLAIN, kinds=(("all-to-all", slow), ("send", slow)))
    for kind, seconds in COLLECTIVES.items():
        assert seconds(1e8, ((8, link),)) == seconds(1e8, ((8, slow if kind == "all-to-all" else PLAIN),))
    assert send_seconds(1e8, link) == send_seconds(1e8, slow)


def test_rings_side_by_side_leave_a_node_by_every_device():
    """What goes round is carried once a hop: of 16 devices on two nodes 1/8 by each card, 7/8 of the rest inside."""
    group = ((8, Link(0.0, 1e12)), (2, Link(0.0, 1e9)))
    assert broadcast_seconds(8e9, group) == pytest.approx(1.0)
    assert all_gather_seconds(8e9, group) == pytest.approx(15 / 16)
    assert all_gather_seconds(8e9, ((8, Link(0.0, 1e9)), (2, Link(0.0, 1e12)))) == pytest.approx(15 / 16 * 7 / 8 * 8)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_groups_that_share_a_level_share_its_bandwidth(kind):
    node = dataclasses.replace(PLAIN, switch=Switch(50e-6, 60e9), group_bandwidths=((4, 80e9),))
    network = Link(1e-6, 1e9, 1e-5, kinds=(("all-gather", Link(1e-6, 2e9, 1e-5)),))
    alone, shared, inside = (
        COLLECTIVES[kind](1e12, path)
        for path in (
            ((4, node), (2, network)), ((4, node), (2, network.scaled(1 / 2))), ((4, node.scaled(1 / 3)), (2, network))
        )
    )  # fmt: skip
    assert shared == pytest.approx(2 * alone, rel=1e-5)
    assert inside >= alone


@examples(50)
@given(compute_s=TIMES, comm_s=TIMES, slowdown=st.floats(0, 2))
def test_overlap_is_between_the_longer_and_the_sum(compute_s, comm_s, slowdown):
    both = overlapped(compute_s, comm_s, slowdown)
    assert both.compute_s >= compute_s and 0 <= both.exposed_s <= comm_s
    assert max(compute_s, comm_s) * (1 - 1e-9) <= both.seconds <= (compute_s + comm_s) * (1 + 1e-9)
    assert hidden_seconds(compute_s, comm_s, slowdown) == pytest.approx(compute_s + comm_s - both.seconds, abs=1e-9)


def test_what_overlap_costs():
    """Compute runs at 1/1.25 of its pace under the collective."""
    hidden = overlapped(2.0, 1.0, 0.25)
    assert (hidden.compute_s, hidden.exposed_s) == (pytest.approx(2.0 + 0.2), 0)
    longer = overlapped(2.0, 4.0, 0.25)
    assert (longer.compute_s, longer.exposed_s) == (pytest.approx(2.5), pytest.approx(1.5))


def test_overlap_takes_arrays_and_symbols():
    compute, comm = sympy.symbols("compute comm", positive=True)
    priced = overlapped(compute, comm, 0.25).seconds
    for comm_s in (1.0, 4.0):
        expected = overlapped(2.0, comm_s, 0.25).seconds
        assert float(priced.subs({compute: 2.0, comm: comm_s})) == pytest.approx(expected)
    np.testing.assert_allclose(overlapped(np.array([2.0, 2.0]), np.array([1.0, 4.0]), 0.25).exposed_s, [0.0, 1.5])


def test_all_to_all_sends_what_leaves_a_node_by_its_own_card():
    group = ((4, Link(0.0, 10e9)), (2, Link(0.0, 1e9)))
    assert all_to_all_seconds(8e9, group) == pytest.approx(max(3 / 8 * 8 / 10, 4 / 8 * 8.0))
