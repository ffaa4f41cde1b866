"""Pushes and pulls: the server's link carries what all workers send, and more servers share it out."""

from __future__ import annotations

import math

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.cost import DataAxis, Prices
from autoplan.cost.server_links import ServerLinks
from autoplan.ir.mesh import Mesh

TOPOLOGY = ClusterSpec.parse("2x4 h100-sxm").topology()
PRICES = Prices(Mesh.of(dp=8, mb=1), TOPOLOGY, False, True, 1)
NODE, NETWORK = (level.link.of("send") for level in TOPOLOGY.levels)
LONE = TOPOLOGY.levels[1].lone
TOTAL = 8e8


def links(*shards: float) -> ServerLinks:
    return ServerLinks(shards, 8, TOPOLOGY)


def test_one_server_takes_in_what_all_workers_send() -> None:
    """Four of them over its node's card, three over its own link."""
    outside_s, inside_s = 4 / LONE / NETWORK.bandwidth_bytes_per_s, 3 / NODE.bandwidth_bytes_per_s
    assert links(1.0).seconds_per_byte == pytest.approx(max(outside_s, inside_s))


def test_servers_on_all_workers_send_and_take_in_alike() -> None:
    """Half of all shards cross the network from each device, and three eighths of them a device's own link."""
    outside_s, inside_s = 1 / 2 / NETWORK.bandwidth_bytes_per_s, 3 / 8 / NODE.bandwidth_bytes_per_s
    assert links(*[1 / 8] * 8).seconds_per_byte == pytest.approx(max(outside_s, inside_s))


def test_more_servers_take_no_longer_and_an_uneven_shard_takes_longer() -> None:
    each = [links(*[1 / n] * n).seconds_per_byte for n in (1, 2, 4, 8)]
    assert each == sorted(each, reverse=True) and each[0] > each[1]
    assert links(0.7, 0.3).seconds_per_byte > links(0.5, 0.5).seconds_per_byte


def test_messages_wait_their_turn_in_rounds() -> None:
    rounds = math.ceil(TOTAL / (25 * 2**20))
    wanted = max(link.startup_s + 7 * link.latency_s for link in (NODE, NETWORK))
    assert links(1.0).waits_s(TOTAL) == pytest.approx(rounds * wanted)
    assert links(0.5, 0.5).waits_s(TOTAL) < links(1.0).waits_s(TOTAL) and links(1.0).waits_s(0.0) == 0.0


def test_states_and_updates_are_of_the_fullest_shard() -> None:
    plain, served = DataAxis(0, 8, PRICES), DataAxis(0, 8, PRICES, servers=2, shards=(0.6, 0.4))
    assert served.states_share(2.0) == pytest.approx(0.6 * plain.states_share(2.0))
    assert served.parameter_share == plain.parameter_share and served.gradient_share == plain.gradient_share
    assert DataAxis(0, 8, PRICES, servers=2).updated == 0.5


def test_gradients_are_pushed_under_a_backward_and_stale_weights_pulled_under_a_step() -> None:
    served = DataAxis(0, 8, PRICES, servers=2, shards=(0.5, 0.5))
    push_s, hidden_s = served.once_s([TOTAL / 2, TOTAL / 2], 1.0, 100.0)
    assert push_s == pytest.approx(links(0.5, 0.5).crossing_s(TOTAL)) and 0 < hidden_s < push_s
    stale = DataAxis(0, 8, PRICES, servers=2, shards=(0.5, 0.5), versions=2)
    pushed = push_s, hidden_s
    assert served.with_pulls(pushed, TOTAL, 100.0) == (2 * push_s, hidden_s)
    assert stale.with_pulls(pushed, TOTAL, 100.0)[1] > hidden_s == stale.with_pulls(pushed, TOTAL, hidden_s)[1]
    assert DataAxis(0, 8, PRICES).with_pulls(pushed, TOTAL, 100.0) == pushed
    assert stale.parameter_share == served.parameter_share + 2 and stale.states_share(2) == served.states_share(2)
