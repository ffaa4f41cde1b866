"""Transfers between meshes, on all ranks in NumPy: the value bitwise, the gradient by adjointness, prices by bounds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import LayoutError
from autoplan.ir.graph import TensorType
from autoplan.ir.layout import PAVG, PMAX, I, Layout, P, R
from autoplan.ir.mesh import Mesh
from autoplan.redistribution.exchange.boxes import volumes
from autoplan.redistribution.links import AxisLinks
from autoplan.redistribution.meshes.legs import STRATEGIES, Leg, Transfer, transfer
from autoplan.redistribution.meshes.sides import MeshLinks
from autoplan.redistribution.simulate.parts import deal, dual, pairing, whole_of
from tests.support.layouts import numbered, ordered_layouts
from tests.support.mesh_to_mesh import devices_of, execute, received, sent

MESHES = (Mesh.of(x=1), Mesh.of(x=2), Mesh.of(x=3), Mesh.of(x=4), Mesh.of(x=2, y=2), Mesh.of(y=3, x=2))
PAIRS = {
    "2->4": (Mesh.of(x=2), Mesh.of(x=4)),
    "4->2": (Mesh.of(x=4), Mesh.of(x=2)),
    "2x2->3": (Mesh.of(x=2, y=2), Mesh.of(x=3)),
    "1->4": (Mesh.of(x=1), Mesh.of(x=4)),
    "3->2": (Mesh.of(x=3), Mesh.of(x=2)),
    "2->2x2": (Mesh.of(x=2), Mesh.of(x=2, y=2)),
}
FAST_INSIDE = MeshLinks(AxisLinks((), (2e-6, 400e9)), AxisLinks((), (2e-6, 400e9)), 8e-6, 25e9)


def between(
    source: Layout,
    source_mesh: Mesh,
    target: Layout,
    target_mesh: Mesh,
    shape: Sequence[int],
    *,
    carries: bool = True,
    links: MeshLinks | None = None,
    strategy: str = "",
    dtype: str = "float64",
) -> Transfer:
    """Ranks from 0 for the source; for the target from 10, in descending order."""
    here, there = range(source_mesh.devices), range(10 + target_mesh.devices, 10, -1)
    return transfer(
        source, source_mesh, tuple(here), target, target_mesh, tuple(there), TensorType(tuple(shape), dtype),
        carries_gradient=carries, links=links, strategy=strategy,
    )  # fmt: skip


def check(found: Transfer, seed: int = 0) -> None:
    """Forward the value arrives bitwise; backward the gradient does, and <Ax, y> = <x, A^T y>."""
    forward, back = found.forward, found.backward
    (source, here), (target, there) = ((s.layout, devices_of(s.mesh)) for s in (forward.source, forward.target))
    x = numbered(forward.shape)
    values = deal(x, source, here, seed)
    arrived = execute(forward, values)
    equal(whole_of(arrived, target, there, x.shape), x, source)
    if back is None:
        return
    y = np.random.default_rng(seed).integers(-50, 50, x.shape).astype(float)
    gradients = deal(y, dual(target), there, seed + 1)
    returned = execute(back, gradients)
    means = np.prod([here.size(axis) for axis, state in source.rest if state == PAVG])
    equal(whole_of(returned, dual(source), here, x.shape), y / means, source)
    left, right = pairing(arrived, gradients, target, there), pairing(values, returned, source, here)
    assert abs(left - right) <= 1e-12 * max(1.0, float(np.abs(x).ravel() @ np.abs(y).ravel()))


def equal(found: np.ndarray, expected: np.ndarray, source: Layout) -> None:
    """Bitwise; within rounding where a mean of three was taken."""
    means = any(state == PAVG for _, state in source.rest)
    np.testing.assert_allclose(found, expected, rtol=1e-12 if means else 0, atol=1e-10 if means else 0)


def states(mesh: Mesh, rank: int, partial: bool = True) -> list[Layout]:
    return ordered_layouts(rank, mesh, (R, I, P) if partial else (R, I))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", PAIRS)
def test_every_pair_of_layouts_of_a_matrix_that_divides_nowhere(name: str, strategy: str) -> None:
    here, there = PAIRS[name]
    for source, target in itertools.product(states(here, 2), states(there, 2)):
        check(between(source, here, target, there, (5, 3), strategy=strategy, links=FAST_INSIDE))


@pytest.mark.parametrize("name", PAIRS)
def test_every_pair_of_layouts_of_a_vector_that_divides(name: str) -> None:
    here, there = PAIRS[name]
    for source, target in itertools.product(states(here, 1), states(there, 1)):
        check(between(source, here, target, there, (12,)))


@st.composite
def cases(draw: st.DrawFn) -> Transfer:
    here, there = draw(st.sampled_from(MESHES)), draw(st.sampled_from(MESHES))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 7, 12]), max_size=3)))
    carries = draw(st.booleans())
    factors = draw(st.booleans()) and all(size % 4 == 0 for size in shape)
    kinds = draw(st.sampled_from([(R, I, P), (R, PAVG, P)] + [(R, PMAX)] * (not carries)))
    source = draw(st.sampled_from(ordered_layouts(len(shape), here, kinds, factors)))
    target = draw(st.sampled_from(ordered_layouts(len(shape), there, (R, I, P), factors)))
    links = draw(st.sampled_from([None, FAST_INSIDE]))
    strategy = draw(st.sampled_from(["", *STRATEGIES]))
    return between(source, here, target, there, shape, carries=carries, links=links, strategy=strategy)


@settings(max_examples=200)
@given(cases(), st.integers(0, 99))
def test_any_transfer_carries_the_value_and_its_gradient(found: Transfer, seed: int) -> None:
    check(found, seed)


@settings(max_examples=60)
@given(cases())
def test_the_chosen_is_never_dearer_than_any_and_never_below_the_bound(found: Transfer) -> None:
    leg = found.forward
    for links in (MeshLinks(), FAST_INSIDE):
        named = {name: remade(leg, links, name) for name in STRATEGIES}
        chosen = remade(leg, links)
        assert chosen.seconds <= min(other.seconds for other in named.values()) * (1 + 1e-9)
        assert chosen.seconds == named[chosen.strategy].seconds
        # a device that gets its part from outside waits for all of it; together they wait for the tensor once
        elements = 0 if leg.target.holding("P") else int(volumes(leg.target.boxes(leg.shape)).max())
        assert named["direct"].seconds >= 8 * elements / links.bytes_per_s * (1 - 1e-12)
        total = 8 * np.prod(leg.shape) / links.bytes_per_s
        for other in named.values():
            devices = min(len(leg.source.devices), len(leg.target.devices))
            assert other.seconds >= total / devices * (1 - 1e-12)


def remade(leg: Leg, links: MeshLinks, strategy: str = "") -> Leg:
    """The forward leg again, on other links, by another strategy."""
    carries = not any(state == PMAX for _, state in leg.source.layout.rest)
    ends = leg.source.layout, leg.source.mesh, leg.target.layout, leg.target.mesh
    return between(*ends, leg.shape, carries=carries, links=links, strategy=strategy).forward


@settings(max_examples=100)
@given(cases())
def test_senders_are_within_one_piece_of_balance(found: Transfer) -> None:
    """Among the holders of a part the busiest sends its fair share and at most one piece more."""
    for leg in filter(None, (found.forward, found.backward)):
        if leg.strategy == "broadcast":
            continue
        load, boxes = sent(leg), leg.sent.boxes(leg.shape)
        holders: dict[bytes, list[int]] = {}
        for rank, box in zip(leg.sent.devices, boxes, strict=True):
            holders.setdefault(box.tobytes(), []).append(rank)
        for ranks in holders.values():
            pieces = [sizes for rank in ranks for sizes in pieces_of(leg, rank)]
            assert max(load[rank] for rank in ranks) <= sum(pieces) / len(ranks) + max(pieces, default=0)


def pieces_of(leg: Leg, rank: int) -> list[int]:
    return [
        int(np.prod([stop - start for start, stop in m.box]))
        for messages in leg.rounds for m in messages if m.sender == rank != m.receiver
    ]  # fmt: skip


def test_what_crosses_directly_is_what_each_receiver_wants() -> None:
    here, there = Mesh.of(x=3), Mesh.of(x=2, y=2)
    leg = between(
        Layout.ordered([["x"]], here), here, Layout.ordered([["x"]], there), there, (10,), strategy="direct"
    ).forward
    assert received(leg, 8) == {14: 40, 13: 40, 12: 40, 11: 40}


def test_one_sender_broadcasts_a_large_tensor_and_sends_a_small_one() -> None:
    here, there = Mesh.of(x=1), Mesh.of(x=4)
    ends = Layout.ordered([[]], here), here, Layout.ordered([[]], there), there
    links = MeshLinks(target=AxisLinks((), (10e-6, 400e9)), latency_s=8e-6, bytes_per_s=25e9)
    large, small = (between(*ends, (size,), links=links).forward for size in (1 << 24, 2))
    assert (large.strategy, small.strategy) == ("broadcast", "direct")
    slow_s = 8 * (1 << 24) / 25e9
    assert slow_s < large.seconds < 1.05 * slow_s


def test_replicas_send_disjoint_pieces_which_are_gathered() -> None:
    here, there = Mesh.of(x=4), Mesh.of(x=4)
    leg = between(
        Layout.ordered([[], []], here), here, Layout.ordered([[], []], there), there, (1024, 1024), links=FAST_INSIDE
    ).forward
    assert leg.strategy == "gather"
    assert {m.sender for m in leg.rounds[0]} == {0, 1, 2, 3} and {size for size in sent(leg).values()} == {1024 * 256}
    assert [step.op for step in leg.after] == ["all_gather"]


def test_summands_are_reduced_before_they_are_sent() -> None:
    here, there = Mesh.of(x=4), Mesh.of(x=2)
    split = between(Layout.ordered([[]], here, {"x": P}), here, Layout.ordered([[]], there), there, (8,)).forward
    assert [step.op for step in split.before] == ["reduce_scatter"]
    uneven = between(Layout.ordered([[]], here, {"x": P}), here, Layout.ordered([["x"]], there), there, (7,)).forward
    assert [step.op for step in uneven.before] == ["exchange_sum"]
    scalar = between(Layout.ordered([], here, {"x": P}), here, Layout.ordered([], there), there, ()).forward
    assert [step.op for step in scalar.before] == ["all_reduce"]


def test_the_gradient_of_a_replicated_value_is_reduced_then_sent_to_one_replica() -> None:
    here, there = Mesh.of(x=2), Mesh.of(x=4)
    back = between(Layout.ordered([[]], here), here, Layout.ordered([[]], there), there, (8,)).backward
    assert back is not None and [step.op for step in back.before] == ["reduce_scatter"] and not back.after
    assert received(back, 1) == {0: 4, 1: 4}  # each element once, a share each


def test_the_gradient_of_an_invariant_value_comes_from_any_replica_to_all() -> None:
    here, there = Mesh.of(x=2), Mesh.of(x=4)
    ends = Layout.ordered([[]], here, {"x": I}), here, Layout.ordered([[]], there, {"x": I}), there
    back = between(*ends, (8,), strategy="direct").backward
    assert back is not None and not back.before and not back.after and received(back, 1) == {0: 8, 1: 8}
    assert len({m.sender for m in back.rounds[0]}) == 2


def test_ranks_on_both_meshes_keep_what_they_hold() -> None:
    here, there = Mesh.of(x=2), Mesh.of(x=4)
    ends = Layout.ordered([["x"]], here), here, (0, 1), Layout.ordered([["x"]], there), there, (0, 1, 2, 3)
    for strategy in STRATEGIES:
        found = transfer(*ends, TensorType((8,), "float64"), carries_gradient=True, strategy=strategy)
        check(found)
        assert received(found.forward, 1) == {0: 0, 1: 2, 2: 2, 3: 2}


def test_microbatches_stay_apart() -> None:
    here, there = Mesh.of(dp=2, mb=3), Mesh.of(dp=4, mb=3)
    found = between(Layout.ordered([["mb", "dp"]], here), here, Layout.ordered([["mb", "dp"]], there), there, (24,))
    assert found.forward.shape == (8,)
    check(found)
    with pytest.raises(LayoutError, match="axis mb"):
        between(Layout.ordered([["mb", "dp"]], here), here, Layout.ordered([["dp"]], there), there, (24,))


def test_what_cannot_be_transferred_is_named() -> None:
    here, there = Mesh.of(x=2), Mesh.of(x=4)
    whole, maxima = Layout.ordered([[]], here), Layout.ordered([[]], here, {"x": PMAX})
    with pytest.raises(LayoutError, match="passes no gradient"):
        between(maxima, here, Layout.ordered([[]], there), there, (4,))
    with pytest.raises(LayoutError, match="receive it as R"):
        between(whole, here, Layout.ordered([[]], there, {"x": PAVG}), there, (4,))


def test_the_same_transfer_is_found_twice() -> None:
    here, there = Mesh.of(x=2, y=2), Mesh.of(y=3, x=2)
    ends = Layout.ordered([["y"], []], here, {"x": P}), here, Layout.ordered([[], ["x"]], there), there
    assert between(*ends, (9, 4), links=FAST_INSIDE) == between(*ends, (9, 4), links=FAST_INSIDE)
