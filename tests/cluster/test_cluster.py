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


def test_the_margin_is_a_share_of_the_wall():
    spec = ClusterSpec.parse("1x1 h100-sxm 40GB")
    assert spec.memory_margin > 0 and spec.aimed_bytes == round(40e9 * (1 - spec.memory_margin))
    wider = ClusterSpec.parse("1x1 h100-sxm 40GB memory_margin=0.03")
    assert wider.aimed_bytes == round(40e9 * 0.97) and wider.usable_bytes == spec.usable_bytes
    for other in (wider, ClusterSpec(1, 1, "h100-sxm", memory_margin=0)):
        assert ClusterSpec.parse(str(other)) == other == ClusterSpec.of(other.to_dict())
    for wrong in (1, -0.01, "much", True, None):
        with pytest.raises(ClusterError, match="memory_margin"):
            ClusterSpec(1, 1, "h100-sxm", memory_margin=wrong)


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


def test_an_unknown_device_is_named_with_the_nearest_or_the_known():
    near = [name for name in device_names() if name.startswith("h100")]
    whole = " or ".join(f'"4x8 {name}"' for name in near)
    assert error_text("4x8 h100") == f"h100: is not a known device; nearest: {' or '.join(near)}. Write {whole}."
    assert error_text("4x8 zzzzz") == (
        f"zzzzz: is not a known device. Known are {', '.join(device_names())}; "
        "or give a profile's path, ending in .toml."
    )


def test_apple_s_gpu_is_refused_with_what_to_plan_for():
    assert error_text("1x1 mps") == (
        "mps: is one device a machine without a collective library, and a plan's ranks need several that talk. "
        'Write "1x4 cpu" for processes of its CPU.'
    )


@pytest.mark.parametrize("text", ["0x8 h100-sxm", "-1x8 h100-sxm"])
def test_a_cluster_has_nodes(text):
    nodes = text.split("x")[0]
    assert error_text(text) == f"nodes = {nodes}: is not a count of at least 1. Give a positive whole number."


@pytest.mark.parametrize("text", ["", "8", "four by eight", "4.0x8 cpu", "x", "examples"])
def test_a_malformed_text_is_told_the_form(text):
    message = error_text(text)
    assert message.startswith(repr(text)) and '"4x8 h100-sxm"' in message


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8xH200", "1x8 h200"), ("h200x8", "1x8 h200"), ("8 h200", "1x8 h200"), ("cpu x 4", "1x4 cpu"),
        ("1x4CPU", "1x4 cpu"), ("2x8xh100-sxm", "2x8 h100-sxm"), ("4x h100-sxm", "1x4 h100-sxm"),
        ("4*8 cpu", "4x8 cpu"),
        ("8x8 H100 SXM", "8x8 h100-sxm"), ("2x8 H200 + 1x4 L40S", "2x8 h200 + 1x4 l40s"), ("mi300x:8", "1x8 mi300x"),
        ("8xH200 100GB", "1x8 h200 100GB"),
    ],
)  # fmt: skip
def test_a_clear_text_is_taken_however_it_is_written(text, meant):
    assert str(ClusterSpec.of(text)) == meant and ClusterSpec.of(text) == ClusterSpec.of(meant)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8xH100", 'H100: is not a known device; nearest: h100-pcie or h100-sxm or h100-sxm-96gb-500w. Write "1x8 h'),
        ("64xA100", '"8x8 a100-pcie-40gb" or "8x8 a100-pcie-80gb" or "8x8 a100-sxm-40gb" or "8x8 a100-sxm-80gb".'),
        ("h100x8", 'or "1x8 h100-sxm" or'),
        ("8xA100-80GB", 'Write "1x8 a100-pcie-80gb" or "1x8 a100-sxm-80gb".'),
        ("8xmi300", 'nearest: mi300x. Write "1x8 mi300x".'),
        ("64xh200", """machines: one usually holds 8 h200. Write "8x8 h200" or "1x64 h200"."""),
        ("8xcpu", 'Write "2x4 cpu" or "1x8 cpu".'),
        ("0xcpu", "devices_per_node = 0"),
        ("h100-sxm", """'h100-sxm': doesn't say how many devices there are. Write "1x8 h100-sxm"."""),
        ("h100", 'Write "1x8 h100-pcie" or "1x8 h100-sxm"'),
        ("4x8", """'4x8': names no device. Write "4x8 NAME" with one of a100"""),
        ("1x4 cpu network=", "network= in '1x4 cpu network=': is not part of a cluster"),
        ("99999999999x8 h200", "799,999,999,992 devices: is more than 1,000,000"),
        (4, "4: is of type int, not a cluster"),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_told_and_never_guessed(text, said):
    assert said in error_text(text)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodes": 1, "device": "cpu"}, "lacks devices_per_node"),
        ({"nodes": 1, "devices_per_node": 1, "device": "cpu", "gpus": 3}, "has gpus"),
        ({"groups": [{"nodes": 2, "devices_per_node": 8, "device": "cpu", "memory": 4}]}, "has no memory. Give groups"),
        ({"nodes": 1.5, "devices_per_node": 1, "device": "cpu"}, "nodes = 1.5"),
        ({"nodes": True, "devices_per_node": 1, "device": "cpu"}, "nodes = True"),
        ({"nodes": 1, "devices_per_node": 1, "device": 7}, "device = 7"),
        ({"nodes": 1, "devices_per_node": 1, "device": "cpu", "memory_gb": "lots"}, "memory_gb = 'lots'"),
        ({"nodes": 1, "devices_per_node": 1, "device": "cpu", "memory_gb": 0}, "is no memory"),
        ({"nodes": 1, "devices_per_node": 1, "device": "cpu", "memory_gb": float("nan")}, "memory_gb = nan"),
        (17, "is of type int, not a cluster"),
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
