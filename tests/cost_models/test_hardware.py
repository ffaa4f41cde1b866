"""Profiles, links and the levels that a mesh axis spans."""

from __future__ import annotations

import math
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.compute import peak_flops_per_s
from cost_models.errors import ProfileError
from cost_models.hardware import (
    PROFILES,
    Interconnect,
    Level,
    Link,
    Sourced,
    Topology,
    device_names,
    figures_of,
    load_device,
    read_fabric,
)

NODE, NIC, RAIL = Link(1e-6, 300e9, 2e-5), Link(5e-6, 25e9, 2e-5), Link(1e-5, 10e9, 2e-5)


def topology(*sizes: int) -> Topology:
    """Levels of these sizes, innermost first."""
    device, _ = load_device("cpu")
    links = (NODE, NIC, RAIL)
    return Topology(device, tuple(Level(f"l{i}", size, links[i]) for i, size in enumerate(sizes)))


@pytest.mark.parametrize(
    ("stride", "size", "path"),
    [
        (1, 1, ()),
        (1, 8, ((8, NODE),)),
        (1, 16, ((8, NODE), (2, NIC))),
        (1, 64, ((8, NODE), (8, NIC))),
        (2, 4, ((4, NODE),)),
        (2, 8, ((4, NODE), (2, NIC))),
        (4, 16, ((2, NODE), (8, NIC))),
        (8, 8, ((8, NIC),)),
        (16, 4, ((4, NIC),)),
        (1, 3, ((3, NIC),)),      # groups 0-2, 3-5, 6-8: the third straddles two nodes
        (3, 2, ((2, NIC),)),
        (1, 12, ((12, NIC),)),
        (12, 2, ((2, NIC),)),
    ],
)
def test_an_axis_spans_levels_innermost_first_on_8x8(stride, size, path):
    assert topology(8, 8).axis(stride, size) == path


def test_sizes_that_are_no_powers_of_two_factor_where_they_can():
    assert topology(6, 5).axis(1, 30) == ((6, NODE), (5, NIC))
    assert topology(6, 5).axis(2, 3) == ((3, NODE),)
    assert topology(6, 5).axis(3, 10) == ((2, NODE), (5, NIC))
    assert topology(6, 4).axis(1, 12) == ((6, NODE), (2, NIC))
    assert topology(6, 4).axis(1, 4) == ((4, NIC),)
    assert topology(7, 1).axis(1, 5) == ((5, NODE),)


def test_three_levels():
    three = topology(4, 2, 3)
    assert three.axis(1, 24) == ((4, NODE), (2, NIC), (3, RAIL))
    assert three.axis(4, 6) == ((2, NIC), (3, RAIL))
    assert three.axis(2, 4) == ((2, NODE), (2, NIC))
    assert three.axis(1, 12) == ((12, RAIL),)
    assert three.axis(4, 2) == ((2, NIC),)


@pytest.mark.parametrize(("stride", "size"), [(1, 65), (0, 2), (2, 0), (33, 2)])
def test_an_axis_that_does_not_fit_is_refused(stride, size):
    with pytest.raises(ValueError, match=f"an axis of {size} devices, {stride} apart, does not fit on 64"):
        topology(8, 8).axis(stride, size)


def groups(stride: int, size: int, devices: int):
    for base in range(devices // (stride * size)):
        for offset in range(stride):
            yield [base * stride * size + offset + stride * place for place in range(size)]


def divisors(number: int) -> st.SearchStrategy[int]:
    return st.sampled_from([n for n in range(1, number + 1) if number % n == 0])


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.data())
def test_an_axis_agrees_with_its_groups_counted_out(a, b, c, data):
    """The path's shape is that of every group, or else its one link is the slowest that any group uses."""
    built = topology(a, b, c)
    size = data.draw(divisors(built.devices), label="size")
    stride = data.draw(divisors(built.devices // size), label="stride")
    path = built.axis(stride, size)
    assert math.prod(members for members, _ in path) == size
    extents, used = [1, a, a * b, a * b * c], set()
    for group in groups(stride, size, built.devices):
        for level in range(3):
            inner, outer = extents[level], extents[level + 1]
            if any(x // outer == y // outer and x // inner != y // inner for x in group for y in group):
                used.add(built.levels[level].link)
    if len(path) > 1 or size == 1:
        assert {link for _, link in path} == used
    else:
        assert path[0][1] == min(used, key=lambda link: link.bandwidth_bytes_per_s)


def test_devices_share_the_cards_of_a_node():
    links = Interconnect(NODE, NIC, nics_per_node=4)
    shares = {n: links.levels(2, n)[1].link.bandwidth_bytes_per_s / NIC.bandwidth_bytes_per_s for n in (1, 2, 4, 8, 12)}
    assert shares == {1: 1.0, 2: 1.0, 4: 1.0, 8: 0.5, 12: pytest.approx(1 / 3)}


def test_shipped_devices():
    wanted = {"v100-sxm2-16gb", "v100-sxm2-32gb", "a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb"}
    wanted |= {"h100-sxm", "h100-pcie", "h100-sxm-96gb-500w", "h200", "b200", "gb200", "l40s", "mi300x", "ascend-910b"}
    wanted |= {"b300", "gb300", "mi325x", "ascend-910c"}
    assert {*wanted, "cpu"} == set(device_names())
    a100, links = load_device("a100-sxm-80gb")
    assert a100.peak_flops_per_s["bfloat16"] == 312e12
    assert a100.memory_bandwidth_bytes_per_s == pytest.approx(2.039e12)
    assert links.node == read_fabric("nvswitch-3") and links.nic == read_fabric("ib-hdr")
    cpu, _ = load_device("cpu")
    assert cpu.memory_bytes == 4e9


@pytest.mark.parametrize("name", device_names())
def test_every_shipped_figure_is_plausible_and_hashable(name):
    device, links = load_device(name)
    assert 0 < device.usable_bytes < device.memory_bytes
    shares = device.matmul_efficiency, device.memory_efficiency, device.attention_efficiency
    assert all(0 < share <= 1 for share in shares)
    peaks = device.peak_flops_per_s
    named = {"float64", "float32", "float16", "bfloat16", "float8", "float8-rowwise"}
    assert {"float32", "float16"} <= set(peaks) <= named
    assert peaks.get("float8", math.inf) > peaks["float16"] >= peaks.get("bfloat16", 0) or name == "cpu"
    assert links.nic is not None
    assert links.node.bandwidth_bytes_per_s >= links.nic.bandwidth_bytes_per_s > 0
    assert len({device, load_device(name)[0]}) == 1
    again = pickle.loads(pickle.dumps((device, links)))
    assert again == (device, links)


def test_what_a_part_cannot_do_is_an_error_and_not_another_s_figure():
    v100, _ = load_device("v100-sxm2-16gb")
    with pytest.raises(ProfileError) as caught:
        peak_flops_per_s(v100, "bfloat16")
    assert str(caught.value) == (
        "bfloat16: the profile of v100-sxm2-16gb has no peak for it. Use one of float16, float32, float64."
    )


def test_every_figure_is_told_with_its_source():
    told = {figure.place: figure for figure in figures_of("l40s")}
    assert told["memory.capacity"] == Sourced(
        "memory.capacity", "44.4", "GiB", "total capacity in PyTorch's out-of-memory reports on this part", "2026-11"
    )
    assert told["machine.node"] == Sourced("machine.node", "pcie-4")
    assert figures_of(PROFILES / "l40s.toml") == figures_of("l40s")
    assert {"link.switch.startup", "link.bandwidth"} <= {figure.place for figure in figures_of("nvswitch-4")}
    with pytest.raises(ProfileError, match="nor a known fabric; nearest: nvswitch-3 or nvswitch-4"):
        figures_of("nvswitch")


def by_place(name: str) -> dict[str, Sourced]:
    return {figure.place: figure for figure in figures_of(name)}


@pytest.mark.parametrize("name", device_names())
def test_a_figure_taken_from_another_part_says_so_and_is_that_part_s(name):
    """"assumed as on <part>: why" holds the part's own figure, and no chain of assumptions leads back to it."""
    for place, figure in by_place(name).items():
        if figure.source.startswith("assumed as on "):
            other = re.match(r"assumed as on ([\w-]+): \S", figure.source)
            assert other and other[1] in device_names() and other[1] != name, figure
            theirs = by_place(other[1])[place]
            assert (figure.value, figure.unit) == (theirs.value, theirs.unit), f"{name}: {figure}, {other[1]}: {theirs}"
            assert f"assumed as on {name}" not in theirs.source, place


def test_an_unknown_device_is_never_answered_with_another():
    with pytest.raises(ProfileError) as caught:
        load_device("h100sxm")
    assert str(caught.value) == (
        "h100sxm: is not a known device; nearest: h100-sxm or a100-sxm-80gb. "
        f"Known are {', '.join(device_names())}; or give a profile's path, ending in .toml."
    )
    assert pickle.loads(pickle.dumps(caught.value)).remedy == caught.value.remedy


def edited(tmp_path, old: str, new: str):
    """The CPU's profile with one thing edited."""
    text = (PROFILES / "cpu.toml").read_text(encoding="utf-8")
    assert re.search(old, text, flags=re.MULTILINE)
    path = tmp_path / "edited.toml"
    path.write_text(re.sub(old, new, text, count=1, flags=re.MULTILINE), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (r"^dispatch = .*$", "", "overhead.dispatch is missing"),
        (r"^\[peak\]$", "[summit]", "peak is missing"),
        (r'source = "[^"]*", ', "", "peak.float64 lacks its source"),
        (r'unit = "GFLOP/s"', 'unit = "GB/s"', "peak.float64 is in 'GB/s', which is no unit of flops/s"),
        (r"value = 50,", 'value = "fast",', "peak.float64 has the value 'fast'"),
        (r"value = 50,", "value = 0,", "peak.float64 is 0"),
        (r"value = 50,", "value = -1,", "peak.float64 has the value -1"),
        (r"value = 50,", "value = inf,", "peak.float64 has the value inf"),
        (r"\[\[16, 16, 1.0\]\]", "[[16, 16]]", "matmul.tiles has the value"),
        (r"\[\[16, 16, 1.0\]\]", "[[0.5, 16, 1.0]]", "rows and columns whole"),
        (r"\[\[16, 16, 1.0\]\]", "[[inf, 16, 1.0]]", "rows and columns whole"),
        (r"^cards_per_node = { value = 1,", "cards_per_node = { value = 0.5,", "the value 0.5. Give a whole number"),
        (r"^reserved = { value = 0.5,", "reserved = { value = 4.0,", "memory.reserved leaves nothing"),
        (r"^\[peak\]$", "[peak", "is not TOML"),
    ],
)
def test_a_broken_profile_is_named_with_the_figure(tmp_path, old, new, words):
    path = edited(tmp_path, old, new)
    with pytest.raises(ProfileError) as caught:
        load_device(path)
    assert str(path) in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (r"^blocking = ", "blokcing = ", "blokcing is nothing that is read; nearest: blocking. Under [overhead]"),
        (r"^composes = ", "compose = ", "overhead.compose is nothing that is read; nearest: composes"),
        (r"^\[machine\]$", "[shard]\n[machine]", "shard is nothing that is read; nearest: shared or shares. Known are"),
        (r"^bfloat16 = ", "bfloat61 = ", "peak.bfloat61 is nothing that is read; nearest: bfloat16"),
        (r"^\[machine\]$", "[links.nick]\n[machine]", "links.nick is nothing that is read; nearest: nic"),
        (r"^\[machine\]$", "[memory.updates]\n[machine]", "memory.updates is nothing that is read; nearest: update"),
    ],
)
def test_a_misspelt_key_is_no_key_left_out(tmp_path, old, new, words):
    path = edited(tmp_path, old, new)
    with pytest.raises(ProfileError) as caught:
        load_device(path)
    assert str(path) in str(caught.value) and words in str(caught.value)


def test_units_are_converted(tmp_path):
    path = edited(tmp_path, r'value = 4.0, unit = "GB"', 'value = 3, unit = "GiB"')
    assert load_device(path)[0].memory_bytes == 3 * 2**30


def test_a_missing_file_is_an_error():
    with pytest.raises(ProfileError, match="can't be read"):
        load_device("nowhere.toml")
