"""What lies in the host's memory: its figures, what it costs, which plans use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_models.errors import ProfileError
from cost_models.hardware import PROFILES, Host, device_names, load_device, slowest_of
from cost_models.offload import host_update_seconds, link_seconds

H100, _ = load_device("h100-sxm")
A100, _ = load_device("a100-sxm-80gb")
CPU, _ = load_device("cpu")


def test_every_accelerator_knows_its_host_and_a_cpu_has_none() -> None:
    for name in device_names():
        host = load_device(name)[0].host
        assert (host is None) == (name == "cpu")
        if host is not None:
            device = load_device(name)[0]
            assert host.memory_bytes >= device.memory_bytes / 2
            assert host.link_bytes_per_s < device.memory_bandwidth_bytes_per_s / 10
            assert host.bandwidth_bytes_per_s < device.memory_bandwidth_bytes_per_s / 10


def test_several_kinds_have_the_least_host_and_none_where_one_has_none() -> None:
    assert H100.host is not None and A100.host is not None
    assert slowest_of([H100, A100]).host == Host(
        min(H100.host.memory_bytes, A100.host.memory_bytes), A100.host.link_bytes_per_s, A100.host.bandwidth_bytes_per_s
    )
    assert slowest_of([CPU, H100]).host is None


def test_half_a_host_is_an_error_that_names_the_figure(tmp_path: Path) -> None:
    text = (PROFILES / "h100-sxm.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("link = ")]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(lines))
    with pytest.raises(ProfileError, match=r"host\.link is missing"):
        load_device(path)


def test_seconds_are_bytes_over_the_hosts_rates() -> None:
    host = Host(1, 50e9, 100e9)
    assert link_seconds(100e9, host) == 2 and host_update_seconds(100e9, host) == 1
