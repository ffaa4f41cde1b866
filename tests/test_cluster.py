"""What a user may say of a cluster, and what is answered to what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cluster import ClusterSpec
from autoplan.errors import ClusterError
from cost_models.hardware import PROFILES, device_names


def test_a_text_says_nodes_devices_and_device():
    spec = ClusterSpec.parse("4x8 h100-sxm")
    assert spec == ClusterSpec(nodes=4, devices_per_node=8, device="h100-sxm")
    assert spec.devices == 32


@settings(deadline=None)
@given(
    nodes=st.integers(1, 9999),
    devices=st.integers(1, 99),
    device=st.sampled_from(["cpu", "h100-sxm", "a100-sxm-80gb"]),
    memory=st.none() | st.integers(1, 10**13),
)
def test_text_and_dict_round_trip(nodes, devices, device, memory):
    spec = ClusterSpec(nodes, devices, device, memory)
    assert ClusterSpec.parse(str(spec)) == spec
    assert ClusterSpec.of(str(spec)) == spec
    assert ClusterSpec.of(spec.to_dict()) == spec
    assert ClusterSpec.of(spec) is spec


def test_text_is_as_a_user_writes_it():
    assert str(ClusterSpec.parse(" 4 X 8   h100-sxm  60 GB ")) == "4x8 h100-sxm 60GB"
    assert str(ClusterSpec(1, 4, "cpu", 2_500_000_000)) == "1x4 cpu 2.5GB"


def test_the_wall_is_the_profile_s_or_the_user_s():
    device, _ = ClusterSpec.parse("1x1 h100-sxm").profile()
    assert ClusterSpec.parse("1x1 h100-sxm").usable_bytes == device.memory_bytes - device.reserved_bytes
    assert ClusterSpec.parse("1x1 h100-sxm 40GB").usable_bytes == 40_000_000_000
    assert 70e9 < device.usable_bytes < 80 * 2**30


def test_a_file_says_the_same(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('nodes = 2\ndevices_per_node = 4\ndevice = "cpu"\nmemory_gb = 1.5\n')
    expected = ClusterSpec(2, 4, "cpu", 1_500_000_000)
    assert ClusterSpec.of(path) == expected
    assert ClusterSpec.of(str(path)) == expected


def test_a_device_may_be_a_profile_of_one_s_own(tmp_path):
    (tmp_path / "mine.toml").write_text((PROFILES / "cpu.toml").read_text())
    (tmp_path / "cluster.toml").write_text('nodes = 1\ndevices_per_node = 2\ndevice = "mine.toml"\n')
    spec = ClusterSpec.of(tmp_path / "cluster.toml")
    assert spec.profile()[0].name == "mine"
    assert ClusterSpec.of(f"1x2 {tmp_path / 'mine.toml'}") == spec
    assert ClusterSpec.parse(str(spec)) == spec


def test_the_topology_has_the_node_inside_the_cluster():
    topology = ClusterSpec.parse("3x8 h100-sxm").topology()
    assert [(level.name, level.size) for level in topology.levels] == [("node", 8), ("cluster", 3)]
    assert topology.devices == 24
    inside, between = (level.link for level in topology.levels)
    assert inside.bandwidth_bytes_per_s > between.bandwidth_bytes_per_s


def error_text(spec) -> str:
    with pytest.raises(ClusterError) as caught:
        ClusterSpec.of(spec)
    return str(caught.value)


def test_an_unknown_device_is_named_with_the_nearest_and_the_known():
    text = error_text("4x8 h100")
    assert text == (
        f"h100: is not a known device; nearest: {' or '.join(n for n in device_names() if n.startswith('h100'))}. "
        f"Known are {', '.join(device_names())}; or give a profile's path, ending in .toml."
    )
    assert "nearest" not in error_text("4x8 zzzzz")


@pytest.mark.parametrize("text", ["0x8 h100-sxm", "-1x8 h100-sxm"])
def test_a_cluster_has_nodes(text):
    nodes = text.split("x")[0]
    assert error_text(text) == f"nodes = {nodes}: is not a count of at least 1. Give a positive whole number."


@pytest.mark.parametrize("text", ["", "8", "h100-sxm", "4x h100-sxm", "4x8", "four by eight", "4*8 cpu", "4.0x8 cpu"])
def test_a_malformed_text_is_told_the_form(text):
    message = error_text(text)
    assert message.startswith(repr(text)) and '"4x8 h100-sxm"' in message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodes": 1, "device": "cpu"}, "lacks devices_per_node"),
        ({"nodes": 1, "devices_per_node": 1, "device": "cpu", "gpus": 3}, "has gpus"),
        ({"nodes": 1.5, "devices_per_node": 1, "device": "cpu"}, "nodes = 1.5"),
        ({"nodes": True, "devices_per_node": 1, "device": "cpu"}, "nodes = True"),
        ({"nodes": 1, "devices_per_node": 1, "device": 7}, "device = 7"),
        ({"nodes": 1, "devices_per_node": 1, "device": "cpu", "memory_gb": "lots"}, "memory_gb = 'lots'"),
        ({"nodes": 1, "devices_per_node": 1, "device": "cpu", "memory_gb": 0}, "is no memory"),
        ({"nodes": 1, "devices_per_node": 1, "device": "cpu", "memory_gb": float("nan")}, "memory_gb = nan"),
        (17, "is a int, not a cluster"),
        ("nowhere.toml", "can't be read"),
        (Path("nowhere"), "can't be read"),
    ],
)
def test_other_mistakes_are_named(spec, words):
    assert words in error_text(spec)


def test_a_broken_file_is_named(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("nodes = = 2")
    assert "is not TOML" in error_text(path)
    path.write_text("[cluster]\nnodes = 2")
    assert str(path) in error_text(path)


@pytest.mark.parametrize(("device", "precision"), [("cpu", "fp32"), ("h100-sxm", "bf16-mixed")])
def test_the_precision_is_the_one_that_the_device_is_quick_in(device: str, precision: str) -> None:
    assert ClusterSpec(1, 1, device).default_precision == precision
