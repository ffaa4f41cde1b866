"""Clusters of several levels, on networks of choice, of several kinds of device, and calibrated ones."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cluster import ClusterSpec, NodeGroup, OuterLevel
from autoplan.errors import ClusterError
from cost_models.hardware import PROFILES, load_device, read_fabric

CALIBRATED = """
[cluster]
nodes = {{ value = {nodes}, unit = "1", source = "torchrun", date = "2026-11" }}
devices_per_node = {{ value = {devices}, unit = "1", source = "torchrun", date = "2026-11" }}
"""

fabrics = st.sampled_from(["ib-ndr", "ib-hdr", "roce-400", "ethernet-10g"])
names = st.sampled_from(["h100-sxm", "a100-sxm-80gb", "v100-sxm2-16gb", "cpu"])
bandwidths = st.none() | st.floats(0.01, 900.0) | st.integers(1, 400)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    memory = draw(st.none() | st.integers(1, 10**12))
    network = draw(st.none() | fabrics)
    node = draw(st.none() | st.sampled_from(["nvswitch-4", "pcie-5", "loopback"]))
    if draw(st.booleans()):
        devices = draw(st.lists(names, min_size=2, max_size=3, unique=True))
        groups = [(draw(st.integers(1, 9)), draw(st.sampled_from([2, 4, 8])), device) for device in devices]
        return ClusterSpec(groups=groups, memory_bytes=memory, network=network, node=node)
    sizes = draw(st.lists(st.integers(1, 6), max_size=3))
    levels = [(f"level-{i}", size, draw(fabrics), draw(bandwidths)) for i, size in enumerate(sizes)]
    nodes = math.prod(sizes) if sizes else draw(st.integers(1, 9))
    return ClusterSpec(nodes, draw(st.integers(1, 16)), draw(names), memory, None if levels else network, node, levels)


@settings(deadline=None, max_examples=40)
@given(clusters())
def test_text_and_dict_round_trip(spec):
    assert ClusterSpec.parse(str(spec)) == spec
    assert ClusterSpec.of(spec.to_dict()) == spec
    assert ClusterSpec.of(str(spec)) == spec
    assert hash(spec) == hash(ClusterSpec.parse(str(spec)))
    assert replace(spec, memory_bytes=5_000_000_000).usable_bytes == 5_000_000_000
    assert spec.topology().devices == spec.devices


def test_a_network_of_choice():
    usual, other = (ClusterSpec.parse(text) for text in ("4x8 h100-sxm", "4x8 h100-sxm 60GB network=ethernet-100g"))
    assert other.network == "ethernet-100g" and other.usable_bytes == 60_000_000_000
    between = other.topology().levels[1].link
    assert between == read_fabric("ethernet-100g")
    assert between.bandwidth_bytes_per_s < usual.topology().levels[1].link.bandwidth_bytes_per_s
    assert other.topology().levels[0].link == usual.topology().levels[0].link
    slow = ClusterSpec(4, 8, "h100-sxm", node="pcie-5")
    assert slow.topology().levels[0].link == read_fabric("pcie-5")
    assert str(slow) == "4x8 h100-sxm node=pcie-5"


def test_the_order_of_memory_and_options_is_free():
    expected = ClusterSpec(4, 8, "h100-sxm", 60_000_000_000, network="ib-hdr", node="pcie-5")
    for text in ("4x8 h100-sxm 60GB node=pcie-5 network=ib-hdr", "4x8 h100-sxm network=ib-hdr 60 GB node=pcie-5"):
        assert ClusterSpec.parse(text) == expected
    assert str(expected) == "4x8 h100-sxm 60GB network=ib-hdr node=pcie-5"


def test_pods_under_a_spine():
    spec = ClusterSpec(64, 8, "h100-sxm", levels=[("pod", 16, "ib-ndr"), ("cluster", 4, "ib-ndr", 12.5)])
    assert str(spec) == "64x8 h100-sxm levels=pod:16:ib-ndr,cluster:4:ib-ndr:12.5GB/s"
    node, pod, cluster = spec.topology().levels
    assert (node.size, pod.size, cluster.size) == (8, 16, 4)
    assert pod.link == read_fabric("ib-ndr")
    assert cluster.link.bandwidth_bytes_per_s == pytest.approx(12.5e9)
    assert spec.topology().axis(8, 64) == ((16, pod.link), (4, cluster.link))
    assert spec.levels[0] == OuterLevel("pod", 16, "ib-ndr")


def test_a_rack_of_gb200():
    domains = ClusterSpec.parse("36x4 gb200").topology()
    assert [(level.name, level.size) for level in domains.levels] == [("node", 4), ("domain", 18), ("cluster", 2)]
    assert domains.axis(1, 72) == ((72, read_fabric("nvl72")),)


def test_nodes_of_two_kinds():
    spec = ClusterSpec.parse("2x8 h100-sxm + 4x8 a100-sxm-80gb")
    assert spec.groups == (NodeGroup(2, 8, "h100-sxm"), NodeGroup(4, 8, "a100-sxm-80gb"))
    assert (spec.nodes, spec.devices_per_node, spec.devices) == (6, 8, 48)
    assert spec.device == "h100-sxm + a100-sxm-80gb"
    h100, a100 = load_device("h100-sxm")[0], load_device("a100-sxm-80gb")[0]
    assert spec.usable_bytes == min(h100.usable_bytes, a100.usable_bytes)
    topology = spec.topology()
    assert topology.kinds == ((h100, 16), (a100, 32))
    assert topology.device.name == "h100-sxm + a100-sxm-80gb"
    assert [level.link for level in topology.levels] == [read_fabric("nvswitch-3"), read_fabric("ib-hdr")]
    assert spec.default_precision == "bf16-mixed"
    assert ClusterSpec.parse("2x8 h100-sxm + 2x8 v100-sxm2-16gb").default_precision == "fp32"


def test_the_worst_share_of_cards_holds_for_all():
    """Eight cards for eight H100, four for eight V100: a device of either has half a card of the slower network."""
    spec = ClusterSpec.parse("1x8 h100-sxm + 1x8 v100-sxm2-16gb")
    edr = read_fabric("ib-edr").bandwidth_bytes_per_s
    assert spec.topology().levels[1].link.bandwidth_bytes_per_s == pytest.approx(edr / 2)


def test_nodes_of_two_sizes_are_nodes_of_their_common_size():
    spec = ClusterSpec(groups=[{"nodes": 1, "devices_per_node": 8, "device": "h100-sxm"}, (2, 4, "h100-sxm")])
    assert (spec.nodes, spec.devices_per_node, spec.device) == (4, 4, "h100-sxm")
    assert [level.size for level in spec.topology().levels] == [4, 4]
    assert ClusterSpec.parse(str(spec)) == spec


def test_one_group_is_no_group():
    assert ClusterSpec(groups=[(2, 8, "cpu")]) == ClusterSpec(2, 8, "cpu")


@pytest.mark.parametrize(
    ("text", "nodes", "grown"),
    [
        ("2x8 h100-sxm", 5, "5x8 h100-sxm"),
        ("2x8 h100-sxm + 2x8 a100-sxm-80gb", 7, "2x8 h100-sxm + 5x8 a100-sxm-80gb"),
        ("4x8 h100-sxm levels=pod:2:ib-ndr,all:2:ib-ndr", 7, "8x8 h100-sxm levels=pod:2:ib-ndr,all:4:ib-ndr"),
    ],
)
def test_more_nodes(text, nodes, grown):
    assert ClusterSpec.parse(text).with_nodes(nodes) == ClusterSpec.parse(grown)


def test_a_file_says_the_same(tmp_path):
    (tmp_path / "mine.toml").write_text((PROFILES / "cpu.toml").read_text())
    (tmp_path / "slow.toml").write_text((PROFILES / "fabrics" / "ethernet-1g.toml").read_text())
    path = tmp_path / "cluster.toml"
    path.write_text(
        'memory_gb = 1.5\n'
        '[[groups]]\nnodes = 2\ndevices_per_node = 4\ndevice = "mine.toml"\n'
        '[[groups]]\nnodes = 1\ndevices_per_node = 4\ndevice = "cpu"\n'
        '[[levels]]\nname = "room"\nsize = 3\nnetwork = "slow.toml"\ngb_per_s = 0.05\n'
    )
    spec = ClusterSpec.of(path)
    assert spec.groups[0].device == str(tmp_path / "mine.toml")
    assert spec.levels[0].network == str(tmp_path / "slow.toml")
    assert spec.topology().levels[1].link.bandwidth_bytes_per_s == pytest.approx(0.05e9 / 4)
    assert ClusterSpec.of(str(spec)) == spec == ClusterSpec.of(spec.to_dict())


def test_a_network_beside_levels_is_refused():
    with pytest.raises(ClusterError) as caught:
        ClusterSpec.parse("4x8 h100-sxm network=ib-hdr levels=pod:2:ib-ndr,all:2:ib-ndr")
    assert str(caught.value) == (
        "network = 'ib-hdr': stands beside levels, each of which names its own network. "
        "Leave network out, or give it to a level."
    )


def test_a_cluster_keeps_the_figures_it_was_made_with(tmp_path):
    """Neither another file at the same path nor none changes what is known; a cluster made anew reads again."""
    mine, slow = tmp_path / "mine.toml", tmp_path / "slow.toml"
    mine.write_text((PROFILES / "cpu.toml").read_text())
    slow.write_text((PROFILES / "fabrics" / "ethernet-1g.toml").read_text())
    text = f"2x4 {mine} network={slow}"
    spec = ClusterSpec.parse(text)
    before = spec.topology()
    mine.write_text((PROFILES / "cpu.toml").read_text().replace("value = 4.0", "value = 2.0"))
    slow.write_text((PROFILES / "fabrics" / "ethernet-10g.toml").read_text())
    assert ClusterSpec.parse(text) != spec
    mine.unlink(), slow.unlink()
    assert (spec.topology(), spec.usable_bytes) == (before, before.device.usable_bytes)
    assert spec.with_nodes(3).topology().levels[1].link == before.levels[1].link
    assert ClusterSpec.kept(spec.to_dict(), spec.known) == spec
    with pytest.raises(ClusterError, match="can't be read"):
        ClusterSpec.of(spec.to_dict())
    assert [each.name for each in replace(spec, device="cpu").known.devices] == ["cpu"]


def test_a_path_with_spaces_is_printed_in_quotes(tmp_path):
    path = tmp_path / "my network.toml"
    path.write_text((PROFILES / "fabrics" / "ethernet-1g.toml").read_text())
    spec = ClusterSpec(2, 2, "cpu", network=str(path))
    assert f'network="{path}"' in str(spec) and ClusterSpec.parse(str(spec)) == spec


def test_a_calibrated_profile_is_the_cluster_it_was_calibrated_on(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text((PROFILES / "cpu.toml").read_text() + CALIBRATED.format(nodes=2, devices=3))
    assert ClusterSpec.of(path) == ClusterSpec.of(str(path)) == ClusterSpec(2, 3, str(path))
    assert ClusterSpec.parse(f"1x4 {path}").devices == 4
    bare = tmp_path / "bare.toml"
    bare.write_text((PROFILES / "cpu.toml").read_text())
    with pytest.raises(ClusterError) as caught:
        ClusterSpec.of(bare)
    assert str(caught.value) == (
        f"{bare}: is a device's profile that doesn't say what cluster it was calibrated on. "
        f'Say how many there are: "4x8 {bare}".'
    )
    path.write_text((PROFILES / "cpu.toml").read_text() + CALIBRATED.format(nodes=0, devices=3))
    with pytest.raises(ClusterError, match=r"cluster\.nodes is 0"):
        ClusterSpec.of(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4x8 h100-sxm network=ib-ndx", "ib-ndx: is not a known fabric; nearest: ib-ndr"),
        ("4x8 h100-sxm net=ib-ndr", "net=ib-ndr: is not part of a cluster. Use network=, node=, levels=, bandwidth=,"),
        ("4x8 h100-sxm node=pcie-4 node=pcie-5", "node=pcie-4: is said twice. Say it once."),
        ("4x8 h100-sxm 60GB 50GB", "memory_gb=60: is said twice. Say it once."),
        ("4x8 h100-sxm levels=pod", "levels=pod: is no level. Write name:size:network, such as pod:16:ib-ndr"),
        (
            "4x8 h100-sxm levels=pod:3:ib-ndr",
            "levels of pod:3:ib-ndr: join 3 nodes where there are 4. Give sizes whose product is the nodes.",
        ),
        ("4x8 h100-sxm levels=pod:4:ib-nope", "ib-nope: is not a known fabric"),
        ("2x8 h100-sxm + 2x8 a100", "a100: is not a known device; nearest: a100-pcie-40gb or a100-pcie-80gb or"),
        ("2x8 h100-sxm + 0x8 a100-sxm-80gb", "nodes = 0: is not a count of at least 1"),
        ("2x8 h100-sxm +", "h100-sxm +: is not a known device; nearest: h100-sxm"),
    ],
)
def test_a_text_that_is_wrong_is_told_how(text, said):
    with pytest.raises(ClusterError) as caught:
        ClusterSpec.parse(text)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"groups": "2x8 h100-sxm"}, "groups = '2x8 h100-sxm': expected a list. Give groups as in [(2, 8,"),
        ({"groups": [(2, 8)]}, "groups: (2, 8): doesn't say nodes, devices_per_node, device"),
        ({"groups": [{"nodes": 2, "device": "cpu"}]}, "doesn't say nodes, devices_per_node, device"),
        ({"groups": [(1, 2, "cpu"), (1, 2, "l40s")], "nodes": 3}, "nodes = 3: is not what the groups come to, 2"),
        ({"nodes": 2, "devices_per_node": 2, "device": "cpu", "levels": [("a b", 2, "ib-ndr")]}, "level 'a b'"),
        ({"nodes": 2, "devices_per_node": 2, "device": "cpu", "levels": [("a", 2, "x:y")]}, "x:y: holds one of"),
        ({"nodes": 2, "devices_per_node": 2, "device": "cpu", "levels": [("a", 2, "ib-ndr", -1)]}, "gb_per_s = -1"),
        ({"nodes": 2, "devices_per_node": 2, "device": "cpu", "network": 7}, "network = 7: is not a name"),
        ({"device": "cpu"}, "nodes = 0: is not a count of at least 1"),
    ],
)
def test_fields_that_are_wrong_are_told_how(fields, said):
    with pytest.raises(ClusterError) as caught:
        ClusterSpec(**fields)
    assert said in str(caught.value)
