"""Levels above the node, cards that devices share, and the paths of a mesh's axes over them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cost_models.collective import all_gather_seconds, all_reduce_seconds
from cost_models.errors import ProfileError
from cost_models.hardware import Crossing, Interconnect, Level, Link, Topology, load_device, read_fabric, slower_of

CPU, _ = load_device("cpu")
NODE, NIC, SPINE = Link(1e-6, 300e9, 2e-5), Link(5e-6, 25e9, 2e-5), Link(1e-5, 6e9, 2e-5)
LINKS = (NODE, NIC, SPINE)
sizes = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))


def topology(*extents: int) -> Topology:
    return Topology(CPU, tuple(Level(f"l{i}", extent, LINKS[i]) for i, extent in enumerate(extents)))


@st.composite
def meshes(draw: st.DrawFn) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """Extents of levels, and the sizes of a mesh's axes, innermost first, each a part of one level or whole levels."""
    extents = draw(sizes)
    axes: list[int] = []
    for extent in extents:
        inner = draw(st.sampled_from([d for d in range(1, extent + 1) if extent % d == 0]))
        axes += [inner, extent // inner]
    joined = draw(st.integers(0, 4))        # neighbours that are one axis, over the border of a level or within it
    axes[joined : joined + 2] = [axes[joined] * axes[joined + 1]]
    return extents, tuple(axes)


@given(meshes())
def test_the_axes_of_a_mesh_share_out_each_level(mesh):
    """Over all axes, the members at a level multiply to the level's size, whatever way its devices are shared out."""
    extents, axes = mesh
    built, stride = topology(*extents), 1
    members = dict.fromkeys(LINKS, 1)
    for size in axes:
        for count, link in built.axis(stride, size):
            members[link] *= count
        stride *= size
    assert stride == built.devices
    assert tuple(members[link] for link in LINKS) == extents


@st.composite
def groups(draw: st.DrawFn) -> tuple[Topology, int, int]:
    """A topology, and the stride and size of an axis that lies within it."""
    built = topology(*draw(sizes))
    stride = draw(st.integers(1, min(12, built.devices)))
    return built, stride, draw(st.integers(1, min(24, built.devices // stride)))


@given(groups())
def test_the_members_of_a_path_multiply_to_the_axis(group):
    built, stride, size = group
    path = built.axis(stride, size)
    assert math.prod(count for count, _ in path) == size
    assert all(count > 1 for count, _ in path)
    order = [LINKS.index(link) for _, link in path]
    assert order == sorted(set(order)), "innermost first, each level once"


@given(meshes(), st.sampled_from([1e3, 1e6, 1e9]))
def test_a_quicker_level_never_slows_a_collective(mesh, bytes):
    """All links as quick as the innermost: no axis takes longer."""
    extents, axes = mesh
    built, quick = topology(*extents), Topology(CPU, tuple(Level(f"l{i}", n, NODE) for i, n in enumerate(extents)))
    stride = 1
    for size in axes:
        for seconds in (all_gather_seconds, all_reduce_seconds):
            assert seconds(bytes, quick.axis(stride, size)) <= seconds(bytes, built.axis(stride, size)) * (1 + 1e-12)
        stride *= size


@given(sizes)
def test_levels_on_one_link_are_one_ring(extents):
    same = Topology(CPU, tuple(Level(f"l{i}", n, NODE) for i, n in enumerate(extents)))
    assume(same.devices > 1)
    assert same.axis(1, same.devices) == ((same.devices, NODE),)


@pytest.mark.parametrize(("stride", "size"), [(1, 3), (1, 12), (3, 2), (3, 8), (12, 2)])
def test_groups_that_straddle_a_border_are_carried_by_the_slowest_link_they_span(stride, size):
    """Four devices a node, four nodes a pod: groups of three, six or twelve cross what they don't divide."""
    built = topology(4, 4, 3)
    slowest = SPINE if stride * size > 16 else NIC
    assert built.axis(stride, size)[-1][1] in (slowest, SPINE)
    if stride % 4 or size % 4:
        assert len(built.axis(stride, size)) == 1


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 8))
def test_all_devices_of_a_node_together_get_what_its_cards_carry(devices, cards, nodes):
    """Groups of one device from each node share the cards: together they get all of them, never more."""
    node, *above = Interconnect(NODE, NIC, cards).levels(nodes, devices)
    assert (node.size, node.link) == (devices, NODE)
    for level in above:
        together = devices * level.link.bandwidth_bytes_per_s
        assert together == pytest.approx(min(devices, cards) * NIC.bandwidth_bytes_per_s)


def test_pods_under_an_oversubscribed_spine():
    """A rail's leaf switch joins sixteen nodes at full rate; of what four such pods send, a quarter crosses."""
    links = Interconnect(NODE, NIC, nics_per_node=4)
    levels = links.levels(64, 8, [Level("rail", 16, NIC), Level("spine", 4, NIC.scaled(0.25))])
    assert [(level.name, level.size) for level in levels] == [("node", 8), ("rail", 16), ("spine", 4)]
    assert [level.link.bandwidth_bytes_per_s for level in levels] == [300e9, 12.5e9, 3.125e9]
    built = Topology(CPU, levels)
    assert [count for count, _ in built.axis(8, 64)] == [16, 4]
    assert [count for count, _ in built.axis(8, 16)] == [16]
    level = Topology(CPU, links.levels(64, 8, [Level("rail", 16, NIC), Level("spine", 4, NIC)]))
    assert all_reduce_seconds(1e9, built.axis(128, 4)) > 3.9 * all_reduce_seconds(1e9, level.axis(128, 4))


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [(1, (1, 1)), (16, (16, 1)), (18, (18, 1)), (36, (18, 2)), (32, (16, 2)), (19, (1, 19)), (72, (18, 4))],
)
def test_a_rack_joins_its_nodes_on_their_own_link(nodes, shape):
    """Four devices a node, 72 a domain: domains of equally many nodes, as large as they may be."""
    _, links = load_device("gb200")
    node, domain, cluster = links.levels(nodes, 4)
    assert (node.size, domain.size, cluster.size) == (4, *shape)
    assert node.link == domain.link == read_fabric("nvl72")
    assert cluster.link == read_fabric("ib-ndr")


def test_a_rack_is_one_ring():
    gb200, links = load_device("gb200")
    assert Topology(gb200, links.levels(18, 4)).axis(1, 72) == ((72, links.node),)


@pytest.mark.parametrize(
    ("stride", "size", "share"),
    [
        (1, 32, 1.0),    # all eight of a node: two of them are behind the card's own switch
        (2, 16, 0.25),   # four of a node, each behind a switch of its own
        (4, 8, 0.25),
        (8, 4, 1.0),     # one of a node: the ring enters and leaves by its own card
        (16, 2, 1.0),
    ],
)
def test_without_relays_a_ring_reaches_far_cards_through_the_host(stride, size, share):
    links = Interconnect(NODE, NIC, nics_per_node=4, crossing=Crossing(near=2, share=0.25))
    built = Topology(CPU, links.levels(4, 8))
    relayed, through = built.axis(stride, size), built.axis(stride, size, relayed=False)
    assert through[-1][1] == relayed[-1][1].scaled(share)
    assert through[:-1] == relayed[:-1] and [count for count, _ in through] == [count for count, _ in relayed]
    assert built.axis(1, 8, relayed=False) == built.axis(1, 8)


def test_what_is_left_through_the_host_is_never_guessed():
    built = Topology(CPU, Interconnect(NODE, NIC, nics_per_node=4).levels(4, 8))
    assert built.axis(8, 4, relayed=False) == built.axis(8, 4)
    with pytest.raises(ProfileError, match="through_host: isn't known of this machine"):
        built.axis(2, 16, relayed=False)


def test_between_two_kinds_of_machine_the_slower_link_holds():
    links = slower_of(Interconnect(NODE, SPINE, 8, domain=72), Interconnect(NIC, NODE, 4))
    assert links == Interconnect(NIC, SPINE, 4)


def test_one_node_needs_no_network_and_several_do():
    alone = Interconnect(NODE, None, 1)
    assert [level.name for level in alone.levels(1, 4)] == ["node"]
    with pytest.raises(ProfileError, match="2 nodes: the profile has no link between nodes"):
        alone.levels(2, 4)


def test_devices_are_numbered_through_their_kinds():
    h100, a100 = load_device("h100-sxm")[0], load_device("a100-sxm-80gb")[0]
    both = Topology(a100, (Level("node", 8, NODE), Level("cluster", 3, NIC)), ((h100, 8), (a100, 16)))
    assert [both.at(number).name for number in (0, 7, 8, 23)] == [h100.name, h100.name, a100.name, a100.name]
    assert both.kinds == ((h100, 8), (a100, 16))
    assert topology(4, 2, 1).kinds == ((CPU, 8),)
    with pytest.raises(ValueError, match="there is no device 24 among 24"):
        both.at(24)


@settings(deadline=None)
@given(st.sampled_from(["h100-sxm", "gb200", "v100-sxm2-16gb", "l40s"]), st.integers(1, 40), st.sampled_from([1, 4, 8]))
def test_the_usual_levels_hold_every_device(name, nodes, per_node):
    device, links = load_device(name)
    assert Topology(device, links.levels(nodes, per_node)).devices == nodes * per_node


def test_a_machine_whose_collectives_do_not_relay_crosses_the_host():
    device, links = load_device("a100-sxm-80gb")
    levels = links.levels(4, 8)
    through = Topology(device, levels, relays=False)
    assert through.axis(2, 16) == Topology(device, levels).axis(2, 16, relayed=False)
    assert through.axis(2, 16) != Topology(device, levels).axis(2, 16) == through.axis(2, 16, relayed=True)
    assert not slower_of(links, replace(links, relays=False)).relays
