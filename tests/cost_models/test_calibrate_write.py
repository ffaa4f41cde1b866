"""A profile is written whole, and reads back as what was fitted."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cost_models.calibrate.cases import Matmul
from cost_models.calibrate.fit_device import blank_device
from cost_models.calibrate.write import Origin, check_writable, profile_text, table_text, write_profile, write_text
from cost_models.errors import ProfileError
from cost_models.hardware import Link, load_device
from cost_models.hardware.profile import calibrated_on

ORIGIN = Origin("Measured", "2026-11-21", "2x2 processes: mean error 4% on sizes not fitted", "the same, gloo")
DEVICE = replace(
    blank_device("mine", 2**33, 2**29, 1, accelerated=False),
    peaks=(("float32", 8e10), ("float64", 4e10)), matmul_efficiency=0.75, matmul_shares=(("float64", 0.5),),
    attention_efficiency=0.25, memory_bandwidth_bytes_per_s=1e10, memory_efficiency=0.5, cache_bytes=4e6,
    cache_bandwidth_bytes_per_s=2e10, update_efficiency=0.375, kernel_launch_s=4e-6, dispatch_s=6e-6,
    overlap_slowdown=0.5, sharers=4, alone=2.0,
)  # fmt: skip
SEND = Link(1e-4, 1e9, 1e-5)
LINKS = {
    "node": Link(1e-4, 5e8, 2e-4, group_bandwidths=((2, 8e8), (4, 5e8)), kinds=(("send", SEND),)),
    "nic": Link(5e-4, 1.25e7, 3e-4, turn_s=2e-4, burst_bytes=1.5e5),
}


def text(links=LINKS, nodes=2, device=DEVICE):
    return profile_text(device, links, nodes, 2, ORIGIN)


def test_a_profile_reads_back_as_what_was_written(tmp_path):
    path = tmp_path / "mine.toml"
    write_profile(path, text())
    device, links = load_device(path)
    assert calibrated_on(path) == (2, 2)
    node, cluster = links.levels(2, 2)
    assert (node.size, cluster.size) == (2, 2)
    # of the network a device's share, as it was measured
    assert text({"node": node.link, "nic": cluster.link}, device=device) == text()
    assert links.nic.bandwidth_bytes_per_s == pytest.approx(2 * LINKS["nic"].bandwidth_bytes_per_s)
    assert (links.nic.turn_s, links.node.turn_s) == (pytest.approx(2e-4), 0.0)
    assert (links.nic.burst_bytes, links.node.burst_bytes) == (pytest.approx(2 * 1.5e5), 0.0)
    assert [each.name for each in tmp_path.iterdir()] == ["mine.toml"]


def test_every_figure_says_where_it_comes_from():
    lines = [line for line in text().splitlines() if line and line[0] not in "#["]
    assert all(re.search(r'unit = ".+", source = ".+", date = "2026-11-21" }$', line) for line in lines)
    told = [line for line in lines if 'source = "calibrated: ' not in line]
    assert [line.split(" ")[0] for line in told] == ["straggler", "compiles", "blocking", "composes", "own"]


def test_one_node_has_no_network(tmp_path):
    path = tmp_path / "mine.toml"
    write_profile(path, text({"node": LINKS["node"]}, nodes=1))
    links = load_device(path)[1]
    assert [level.size for level in links.levels(1, 2)] == [2]
    with pytest.raises(ProfileError, match=r"2 nodes: the profile has no link between nodes.*Calibrate on several"):
        links.levels(2, 2)


def test_devices_with_processors_of_their_own_have_no_shared_figures(tmp_path):
    path = tmp_path / "mine.toml"
    apart = replace(DEVICE, sharers=1, alone=1.0, cache_bytes=0.0, cache_bandwidth_bytes_per_s=0.0)
    write_profile(path, text(device=apart))
    assert "shared" not in path.read_text() and "cache" not in path.read_text()
    assert text(device=load_device(path)[0]) == text(device=apart)


def test_a_profile_that_cannot_be_read_back_leaves_the_one_before(tmp_path):
    path = tmp_path / "mine.toml"
    write_profile(path, text())
    with pytest.raises(ProfileError):
        write_profile(path, text(device=replace(DEVICE, peaks=())))
    assert path.read_text() == text()
    assert [each.name for each in tmp_path.iterdir()] == ["mine.toml"]


def test_paths_are_refused_before_anything_is_measured(tmp_path):
    check_writable(tmp_path / "mine.toml")
    with pytest.raises(ProfileError, match=r"is no profile's name. Give a path that ends in .toml"):
        check_writable(tmp_path / "mine.csv")
    with pytest.raises(ProfileError, match=r"can't be written \(No such file or directory\)"):
        check_writable(tmp_path / "nowhere" / "mine.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ProfileError, match="is a folder"):
        check_writable(tmp_path / "folder.toml")
    assert [each.name for each in tmp_path.iterdir()] == ["folder.toml"]


def test_the_table_is_csv(tmp_path):
    row = {"kind": Matmul("float32", 2, 3, 4).family, "case": "m=2 n=3 k=4", "measured_s": "1e-06"}
    write_text(tmp_path / "mine.csv", table_text([row]))
    assert (tmp_path / "mine.csv").read_text() == "kind,case,measured_s\nmatmul float32,m=2 n=3 k=4,1e-06\n"
