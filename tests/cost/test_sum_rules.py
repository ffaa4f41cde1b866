"""Which all-reduce sums gradients by the size of their buckets: as text, by brute force, and what each is priced as."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.cluster import ClusterSpec
from autoplan.cost import DataAxis, Prices
from autoplan.cost.mesh_links import tree_links, tree_seconds
from autoplan.errors import ParallelismError
from autoplan.ir.buckets import MOST_BYTES, RULED_BYTES, SumRule, bucket_bytes, by_size, sum_levels
from autoplan.ir.mesh import Mesh
from autoplan.option_values import ALL_REDUCES
from autoplan.options import Parallelism
from autoplan.search.space.one_line import read_text
from cost_models.collective import send_seconds
from cost_models.hardware import Level, Link, Topology

MIB = 2**20
LINES = st.tuples(st.floats(0, 1e-2), st.floats(0, 1e-8))


@given(st.fixed_dictionaries({name: LINES for name in ALL_REDUCES}), st.integers(1, 400 * MIB))
def test_a_rule_takes_what_is_quickest_at_the_size_below(lines: dict[str, tuple[float, float]], total: int) -> None:
    def seconds(name: str, size: int) -> float:
        return lines[name][0] + lines[name][1] * size

    rule = by_size({name: lambda size, name=name: seconds(name, size) for name in ALL_REDUCES})
    bucket = min(total, bucket_bytes(total))
    at = max((size for size in RULED_BYTES if size <= bucket), default=RULED_BYTES[0])
    found = rule.of(total)
    assert seconds(found, at) == min(seconds(name, at) for name in ALL_REDUCES)
    assert SumRule.read(str(rule)) == rule and Parallelism(all_reduce=str(rule)).all_reduce == str(rule)
    for text in (f"all_reduce={rule}", f"{rule} all-reduce", f"{rule} all-reduce".upper()):
        assert read_text(text, ()) == Parallelism(all_reduce=str(rule))


def test_what_is_no_rule_is_refused() -> None:
    for text in ("rings", "tree<64KiB", "tree<64<ring", "", "hierarchical<1MiB<"):
        with pytest.raises(ParallelismError, match=r"one of ring, tree, hierarchical.*give for example 'hierarchical'"):
            Parallelism(all_reduce=text)
    with pytest.raises(ParallelismError, match="all_reduce='rings'"):
        read_text("all_reduce=rings", ())


@pytest.mark.parametrize(
    ("sizes", "node", "axes", "levels"),
    [
        (dict(dp=4), 2, "dp", ("dp.inner2", "dp.outer2")),
        (dict(dp=8), 2, "dp", ("dp.inner2", "dp.outer4")),
        (dict(dp=4, tp=2), 4, "dp", ("dp.inner2", "dp.outer2")),
        (dict(dp=4, tp=2), 4, "dp,tp", ("dp.inner2,tp", "dp.outer2")),
        (dict(dp=2, tp=2), 2, "dp", None),
        (dict(dp=2, tp=2), 2, "dp,tp", ("tp", "dp")),
        (dict(dp=2, cp=2), 2, "dp,cp", ("cp", "dp")),
        (dict(dp=2, ep=2), 2, "dp,ep", ("ep", "dp")),
        (dict(dp=2, ep=2), 2, "dp", None),
        (dict(dp=4, ep=2), 4, "dp", ("dp.inner2", "dp.outer2")),
        (dict(dp=4), 4, "dp", None),
        (dict(dp=6), 4, "dp", None),
        (dict(dp=2, tp=4), 2, "dp,tp", None),
        (dict(pp=2, dp=4), 2, "dp", ("dp.inner2", "dp.outer2")),
        (dict(pp=2, dp=2), 2, "dp", None),
        (dict(dp=4), 0, "dp", None),
        (dict(dp=4, tp=2), 4, "tp", None),
    ],
)
def test_levels_are_the_nodes(sizes: dict[str, int], node: int, axes: str, levels: tuple[str, str] | None) -> None:
    mesh = Mesh.of(**sizes)
    found = sum_levels(axes.split(","), mesh, node)
    assert (found and tuple(map(",".join, found))) == levels
    if found is None:
        return
    inner, outer = found
    for rank in range(mesh.devices):  # ranks that differ along the inner axes alone are of one node, others of none
        for other in range(mesh.devices):
            alike = [n for n in mesh.names if n not in axes.split(",")]
            if all(mesh.coordinate(rank, n) == mesh.coordinate(other, n) for n in (*alike, *outer)):
                assert rank // node == other // node
            if all(mesh.coordinate(rank, n) == mesh.coordinate(other, n) for n in (*alike, *inner)) and rank != other:
                assert rank // node != other // node


def data_axis(cluster: str, all_reduce: str = "", **sizes: int) -> DataAxis:
    prices = Prices(Mesh.of(**sizes), ClusterSpec.parse(cluster).topology(), False, True, 1)
    return DataAxis(0, sizes["dp"], prices, all_reduce=all_reduce)


@pytest.mark.parametrize("size", [4096, MIB, MOST_BYTES])
def test_two_levels_take_what_their_phases_take(size: int) -> None:
    data = data_axis("2x4 cpu", dp=8)
    near = sum(data.prices.collective_s(kind, size, "dp.inner4") for kind in ("reduce-scatter", "all-gather"))
    far = data.prices.collective_s("all-reduce", size // 4, "dp.outer2")
    assert data.sum_s("hierarchical", "dp", size) == pytest.approx(near + far + data.prices.cold_s(2 * size))


def test_a_tree_takes_a_message_each_way_in_every_round() -> None:
    """Over two nodes of four ranks two rounds within a node and one between them, for which a node's whole card is
    there; of two groups beside one another each has half of it."""
    data = data_axis("2x4 cpu", dp=8)
    node, network = data.prices.topology.levels
    links = [node.link, node.link, network.link.scaled(min(network.lone, 4))]
    messages = 2 * sum(float(send_seconds(MIB, link)) for link in links)
    assert data.sum_s("tree", "dp", MIB) == pytest.approx(messages + 3 * data.prices.cold_s(3 * MIB))
    beside = data_axis("2x4 cpu", dp=4, tp=2)
    axes = [beside.prices.mesh.axis("dp")]
    assert [link.bandwidth_bytes_per_s for link in tree_links(beside.prices.topology, axes)][-1] == pytest.approx(
        network.link.scaled(min(network.lone, 2)).bandwidth_bytes_per_s
    )


def test_only_the_first_message_of_a_tree_meets_ranks_that_compute() -> None:
    node, network = Link(1e-4, 1e9, 3e-3, turn_s=2e-3), Link(1e-4, 1e8, 4e-3, turn_s=3e-3)
    levels = (Level("node", 2, node), Level("nic", 2, network))
    topology, axes = Topology(ClusterSpec.parse("1x2 cpu").topology().device, levels), [Mesh.of(dp=4).axis("dp")]
    found = tree_seconds(MIB, topology, axes)
    apart = 2 * sum(float(send_seconds(MIB, link)) for link in (node, network))
    assert found == pytest.approx(apart - 2 * 2e-3 - 3e-3)
    assert tree_seconds(0, topology, axes) == 0


def test_each_message_of_a_tree_begins_with_the_link_s_burst() -> None:
    node, network = Link(1e-4, 5e9), Link(1e-3, 1e8, kinds=(("send", Link(1e-3, 5e7)),))
    device, axes = ClusterSpec.parse("1x2 cpu").topology().device, [Mesh.of(dp=4).axis("dp")]

    def seconds(bytes: float, burst: float) -> float:
        levels = (Level("node", 2, node), Level("nic", 2, replace(network, burst_bytes=burst)))
        return tree_seconds(bytes, Topology(device, levels), axes)

    lone = tree_links(Topology(device, (Level("node", 2, node), Level("nic", 2, network))), axes)[1]
    saved_s = 2 * MIB / 4 * lone.bandwidth_bytes_per_s / 1e8 / lone.of("send").bandwidth_bytes_per_s
    assert seconds(MIB, 0.0) - seconds(MIB, MIB / 4) == pytest.approx(saved_s)
    assert seconds(1e3, 2 * MIB) == pytest.approx(seconds(1e3, MIB))  # no more than the message is


@pytest.mark.parametrize(("nodes", "each"), [(2, 2), (2, 4), (4, 2)])
def test_the_quickest_is_priced_at_each_size(nodes: int, each: int) -> None:
    free = data_axis(f"{nodes}x{each} cpu", dp=nodes * each)
    rule = free.quickest()
    assert "hierarchical" in rule
    chosen = data_axis(f"{nodes}x{each} cpu", rule, dp=nodes * each)
    pinned = [data_axis(f"{nodes}x{each} cpu", name, dp=nodes * each) for name in ALL_REDUCES]
    for power in range(10, 30):
        seconds = [data.buckets_s(2.0**power, "dp") for data in pinned]
        assert chosen.buckets_s(2.0**power, "dp") == pytest.approx(min(seconds), rel=0.01)
        assert not math.isclose(seconds[0], seconds[1]) and seconds[0] == free.buckets_s(2.0**power, "dp")


def test_on_one_node_a_ring_is_quickest() -> None:
    assert data_axis("1x4 cpu", dp=4).quickest() == ""


@pytest.mark.parametrize("zero", [0, 1])
def test_dense_weights_are_summed_over_experts_ranks_as_early_as_over_data_ranks(zero: int) -> None:
    """Beside experts, which have a rank each and no sum. What fully_shard gives follows the backward."""
    h100, size = ClusterSpec.parse("1x4 h100-sxm").topology(), 64.0 * MIB
    mixture, plain = (Prices(mesh, h100, False, True, 1) for mesh in (Mesh.of(dp=1, ep=4), Mesh.of(dp=4)))
    spent_s, hidden_s = DataAxis(0, 4, plain).once_s([size, size], 1.0, 100.0)
    each = {("ep",): size, (): 9 * size}
    found = DataAxis(zero, 1, mixture).beside_s({"ep": 2 * size}, [each, each], 100.0)
    assert found == (pytest.approx(spent_s), pytest.approx(hidden_s * (zero == 0))) and hidden_s > 0
