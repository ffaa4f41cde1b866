"""Fabrics by name and by path, and every form that a link's table may take."""

from __future__ import annotations

import pytest

from cost_models.collective import COLLECTIVES, all_reduce_seconds
from cost_models.errors import ProfileError
from cost_models.figures import Figures
from cost_models.hardware import Link, Protocol, Switch, fabric_names, read_fabric
from cost_models.hardware.link import read_link

WANTED = {
    "nvlink2", "nvswitch-3", "nvswitch-4", "nvswitch-5", "nvl72", "pcie-4", "pcie-5", "hccs", "hccs-a3", "xgmi-3",
    "loopback", "ib-edr", "ib-hdr", "ib-ndr", "ib-xdr", "roce-200", "roce-400", "efa-400",
    "ethernet-1g", "ethernet-10g", "ethernet-25g", "ethernet-100g",
}  # fmt: skip


def figure(value: float, unit: str) -> str:
    return f'{{ value = {value}, unit = "{unit}", source = "a test", date = "2026-11" }}'


def table(name: str, latency: float, bandwidth: float, startup: float) -> str:
    return (
        f"[{name}]\nlatency = {figure(latency, 's')}\nbandwidth = {figure(bandwidth, 'GB/s')}\n"
        f"startup = {figure(startup, 's')}\n"
    )


FULL = (
    table("link", 1e-6, 100, 1e-5)
    + f"[link.group_bandwidth]\n8 = {figure(100, 'GB/s')}\n2 = {figure(20, 'GB/s')}\n"
    + f"[link.protocols.LL]\nlatency = {figure(5e-7, 's')}\nshare = {figure(0.25, '1')}\n"
    + f"[link.tree]\nlatency = {figure(3e-6, 's')}\n"
    + f"[link.switch]\nstartup = {figure(4e-5, 's')}\nbandwidth = {figure(60, 'GB/s')}\nmembers = {figure(5, '1')}\n"
    + table("link.all-gather", 2e-6, 80, 2e-5)
)


@pytest.fixture
def fabric(tmp_path):
    def written(text: str) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return written


def test_the_package_has_the_fabrics_that_profiles_name():
    assert set(fabric_names()) >= WANTED


@pytest.mark.parametrize("name", fabric_names())
def test_every_shipped_fabric_prices_every_collective(name):
    """Eight devices on it, from 1 KiB to 1 GiB; two take no longer to send each other a byte than eight to add it."""
    link = read_fabric(name)
    for seconds in COLLECTIVES.values():
        times = [seconds(size, ((8, link),)) for size in (2**10, 2**20, 2**30)]
        assert 1e-6 < times[0] <= times[1] < times[2] < 60
    assert all_reduce_seconds(1, ((2, link),)) <= all_reduce_seconds(1, ((8, link),))


def test_every_form_of_a_table(fabric):
    assert read_fabric(fabric(FULL)) == Link(
        1e-6, 100e9, 1e-5, Switch(4e-5, 60e9, 5), (Protocol("LL", 5e-7, 0.25),), 3e-6, ((2, 20e9), (8, 100e9)),
        (("all-gather", Link(2e-6, 80e9, 2e-5)),),
    )  # fmt: skip


def test_a_profile_may_hold_a_link_inline(fabric, tmp_path):
    text = fabric(FULL.replace("[link", "[links.node"))
    inline = read_link(Figures.read(tmp_path / "mine.toml"), "node")
    assert inline == read_fabric(fabric(FULL))
    assert text.endswith("mine.toml")


@pytest.mark.parametrize(
    ("lacks", "names"),
    [
        ("startup = " + figure(1e-5, "s"), "link.startup is missing"),
        ("share = " + figure(0.25, "1"), "link.protocols.LL.share is missing"),
        ("bandwidth = " + figure(60, "GB/s"), "link.switch.bandwidth is missing"),
        ("bandwidth = " + figure(80, "GB/s"), "link.all-gather.bandwidth is missing"),
    ],
)
def test_a_missing_figure_is_an_error(fabric, lacks, names):
    with pytest.raises(ProfileError, match=names):
        read_fabric(fabric(FULL.replace(lacks, "", 1)))


def test_members_are_numbers(fabric):
    with pytest.raises(ProfileError, match="has the key 'eight'"):
        read_fabric(fabric(FULL.replace("8 = ", "eight = ")))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[link.tree]", "[link.three]", "link.three is nothing that is read; nearest: tree"),
        ("[link.switch]", "[link.swich]", "link.swich is nothing that is read; nearest: switch"),
        ("[link.all-gather]", "[link.allgather]", "link.allgather is nothing that is read; nearest: all-gather"),
        ("[link.group_bandwidth]", "[link.group_bandwidths]", "group_bandwidths is nothing that is read; nearest: "),
        ("members = ", "member = ", "link.switch.member is nothing that is read; nearest: members"),
        ("[link.protocols.LL]", "[link.protocol.LL]", "link.protocol is nothing that is read; nearest: protocols"),
    ],
)
def test_a_misspelt_key_is_no_key_left_out(fabric, old, new, words):
    assert old in FULL
    with pytest.raises(ProfileError) as caught:
        read_fabric(fabric(FULL.replace(old, new, 1)))
    assert words in str(caught.value)


def test_an_unknown_fabric_is_never_another():
    with pytest.raises(ProfileError, match="nearest: nvswitch-"):
        read_fabric("nvswitch-9")


def test_scaling_keeps_latencies_and_divides_every_bandwidth(fabric):
    half = read_fabric(fabric(FULL)).scaled(0.5)
    assert half == Link(
        1e-6, 50e9, 1e-5, Switch(4e-5, 30e9, 5), (Protocol("LL", 5e-7, 0.25),), 3e-6, ((2, 10e9), (8, 50e9)),
        (("all-gather", Link(2e-6, 40e9, 2e-5)),),
    )  # fmt: skip
