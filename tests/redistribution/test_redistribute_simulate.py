"""The simulator of redistributions: what it deals out, and that every operator's backward is its adjoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoplan.ir.layout import PMAX, I, Layout, P, R, S, State
from autoplan.ir.typed_program import Collective
from autoplan.redistribution import Redistribution
from autoplan.redistribution.exchange.boxes import boxes, volumes
from autoplan.redistribution.exchange.messages import parse_spec, senders, write_spec
from autoplan.redistribution.steps import EXCHANGES, NEUTRAL_STEPS, STEPS
from tests.oracles.redistribution import (
    deal,
    dual,
    execute,
    execute_backward,
    groups,
    pairing,
    run,
    run_backward,
    whole_of,
)
from tests.oracles.redistribution.group import OPERATORS
from tests.oracles.redistribution.messages import messages
from tests.support.layouts import CUBE, GRID, MESHES, ODD, SQUARE, cut, mindspore_layouts, numbered, ordered_layouts
from tests.support.redistribution import Judge
from tests.support.sampling import examples

ALL_STATES = (R, I, P)


def test_layouts_are_counted_right():
    assert len(ordered_layouts(3, CUBE)) == 106 and len(set(ordered_layouts(3, CUBE))) == 106
    assert len(mindspore_layouts(3, CUBE)) == 34
    assert len(ordered_layouts(3, CUBE, (R, I, P))) == 276
    assert len(ordered_layouts(2, GRID, factors=True)) == len(ordered_layouts(2, CUBE))
    for rank, mesh in ((1, CUBE), (2, SQUARE), (3, ODD)):
        axes = len(mesh.names)
        ways = [math.perm(axes, k) * math.comb(k + rank - 1, rank - 1) * 2 ** (axes - k) for k in range(axes + 1)]
        assert len(ordered_layouts(rank, mesh, (R, P))) == sum(ways)
    assert ordered_layouts(0, SQUARE) == [Layout((), (("x", R), ("y", R)))]


@pytest.mark.parametrize("shape", [(16, 8), (17, 5), (1, 0), (3, 2)])
@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_parts_are_those_of_torch_chunk(mesh, shape):
    whole = numbered(shape)
    for layout in ordered_layouts(2, mesh, factors=mesh is GRID):
        for rank, part in enumerate(deal(whole, layout, mesh)):
            expected = torch.from_numpy(whole)
            for dim, axes in enumerate(layout.dims):
                for axis in axes:
                    # chunk leaves out empty tails
                    chunks = expected.chunk(mesh.size(axis), dim)
                    at = mesh.coordinate(rank, axis)
                    expected = chunks[at] if at < len(chunks) else expected.narrow(dim, 0, 0)
            assert np.array_equal(part, expected.numpy())


def test_parts_make_the_whole_again_and_partial_ones_are_not_it():
    whole = numbered((7, 6))
    for states in ((*ALL_STATES,), (R, PMAX)):
        for layout in ordered_layouts(2, SQUARE, states):
            parts = deal(whole, layout, SQUARE)
            assert np.array_equal(whole_of(parts, layout, SQUARE, whole.shape), whole)
            slices = deal(whole, Layout.ordered(layout.dims, SQUARE), SQUARE)
            partial = any(state.kind == "P" for _, state in layout.rest)
            assert partial != all(np.array_equal(a, b) for a, b in zip(parts, slices, strict=True))


def test_replicas_that_differ_and_parts_of_another_shape_are_refused():
    whole, layout = numbered((4, 4)), Layout.ordered((("x",), ()), SQUARE)
    parts = deal(whole, layout, SQUARE)
    parts[3] = parts[3] + 1
    with pytest.raises(ValueError, match="ranks 2 and 3 hold different values"):
        whole_of(parts, layout, SQUARE, whole.shape)
    with pytest.raises(ValueError, match=r"rank 0 holds \(2, 4\)"):
        whole_of(parts, Layout.ordered(((), ("x",)), SQUARE), SQUARE, whole.shape)
    with pytest.raises(ValueError, match="a maximum of sums"):
        deal(whole, Layout.ordered(((), ()), SQUARE, {"x": P, "y": PMAX}), SQUARE)


def test_groups_are_row_major_in_the_order_in_which_axes_are_named():
    assert groups(("x", "y"), SQUARE) == [[0, 1, 2, 3]] and groups(("y", "x"), SQUARE) == [[0, 2, 1, 3]]
    assert groups(("y",), CUBE) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups(("x.1", "y"), GRID) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups(("y", "x.0"), GRID) == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert groups((), SQUARE) == [[0], [1], [2], [3]]


@dataclass(frozen=True)
class Sample:
    """An operator, and the layouts between which it leads on any group of axes in any state beside them."""

    op: str
    source: State
    target: State
    carries: bool = True


SAMPLES = [
    Sample("all_gather", S(0), R),
    Sample("all_gather_invariant", S(1), I),
    Sample("shard", R, S(0)),
    Sample("shard_invariant", I, S(1)),
    Sample("all_to_all", S(0), S(1)),
    Sample("all_to_all", S(1), S(0)),
    Sample("to_replicate", I, R),
    Sample("to_invariant", R, I),
    Sample("all_reduce", P, I),
    Sample("all_reduce_to_replicate", P, R),
    Sample("all_reduce_max", PMAX, R, False),
    Sample("reduce_scatter", P, S(1)),
    Sample("reduce_scatter_max", PMAX, S(0), False),
    Sample("replicate_to_max", R, PMAX, False),
    Sample("replicate_to_partial", R, P),
    Sample("invariant_to_partial", I, P),
    Sample("shard_to_partial", S(0), P),
]
GROUPS = [("x",), ("y",), ("x.1",), ("x", "y"), ("y", "x"), ("y", "x.0"), ("x.1", "y", "x.0")]


def step_of(sample: Sample, axes: tuple[str, ...]) -> Collective:
    dims = tuple(state.dim for state in (sample.source, sample.target) if state.kind == "S")
    return Collective(sample.op, axes, dims, "", "", 0, 0)


def ends(sample: Sample, axes: tuple[str, ...]) -> tuple[Layout, Layout]:
    """Source and target on GRID: the group's axes innermost in their dims, a factor left over outside them."""
    mine = [factor for axis in axes for factor in (GRID.factors(axis) if axis in GRID else (axis,))]
    factors = [factor for axis in GRID.names for factor in GRID.factors(axis)]
    outer = [factor for factor in factors if factor not in mine][:1]

    def end(state: State) -> Layout:
        dims: list[tuple[str, ...]] = [(), tuple(outer)]
        if state.kind == "S":
            dims[state.dim] += tuple(mine)
        split = {name for names in dims for name in names}
        rest = [(factor, state if factor in mine else R) for factor in factors if factor not in split]
        return Layout(tuple(dims), tuple(rest))

    return end(sample.source), end(sample.target)


@pytest.mark.parametrize("axes", GROUPS, ids=",".join)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.op}-{s.source}-{s.target}")
def test_every_operator_leads_where_its_types_say_and_its_backward_is_the_adjoint(sample, axes):
    source, target = ends(sample, axes)
    whole, step = numbered((16, 16)), step_of(sample, axes)
    parts = deal(whole, source, GRID)
    results = run([step], parts, GRID)
    assert np.array_equal(whole_of(results, target, GRID, whole.shape), whole)
    if OPERATORS[sample.op][1] is None:
        with pytest.raises(ValueError, match=f"{sample.op} passes no gradient"):
            run_backward([step], results, GRID)
    if not sample.carries:
        return
    gradients = deal(numbered((16, 16))[::-1] * 64, dual(target), GRID, seed=1)
    back = run_backward([step], gradients, GRID)
    assert pairing(results, gradients, target, GRID) == pairing(parts, back, source, GRID)
    whole_of(back, dual(source), GRID, whole.shape)  # replicas of a gradient agree


SQUARE_LAYOUTS = ordered_layouts(2, SQUARE)


@pytest.mark.parametrize("shape", [(4, 8), (5, 3), (1, 2), (0, 3)])
@pytest.mark.parametrize(("op", "beside"), [("exchange", R), ("exchange_invariant", I), ("exchange_sum", P)])
def test_every_exchange_leads_where_its_spec_says_and_its_backward_is_the_adjoint(op, beside, shape):
    whole = numbered(shape)
    for source, target in permutations(SQUARE_LAYOUTS, 2):
        if op == "exchange_sum" and target.rest:
            continue  # nothing says what the summands would be
        spec = write_spec(source.dims, target.dims)
        step = Collective(op, ("x", "y"), (), "all-to-all-v", "all-to-all-v", 0, 0, spec, shape)
        source, target = (Layout(end.dims, tuple((axis, beside) for axis, _ in end.rest)) for end in (source, target))
        parts = deal(whole, source, SQUARE)
        results = run([step], parts, SQUARE)
        for part, expected in zip(results, deal(whole, target, SQUARE), strict=True):
            assert np.array_equal(part, expected)
        gradients = deal(whole + 3, dual(target), SQUARE, seed=1)
        back = run_backward([step], gradients, SQUARE)
        assert pairing(results, gradients, target, SQUARE) == pairing(parts, back, source, SQUARE)
        assert np.array_equal(whole_of(back, dual(source), SQUARE, shape), whole + 3)


@pytest.mark.parametrize("beside", [R, I, P], ids=str)
def test_every_permute_leads_where_its_spec_says_and_its_backward_is_the_adjoint(beside):
    whole, seen = numbered((8, 8)), 0
    for source, target in permutations(ordered_layouts(2, CUBE), 2):
        if any(len(a) != len(b) for a, b in zip(source.dims, target.dims, strict=True)):
            continue
        seen += 1
        step = Collective("permute", ("z", "x", "y"), (), "", "", 0, 0, write_spec(source.dims, target.dims), ())
        source, target = (Layout(end.dims, tuple((axis, beside) for axis, _ in end.rest)) for end in (source, target))
        parts = deal(whole, source, CUBE)
        done = execute([step], parts, CUBE)
        assert np.array_equal(whole_of(done.parts, target, CUBE, whole.shape), whole)
        gradients = deal(whole * 2, dual(target), CUBE, seed=1)
        back = execute_backward([step], gradients, CUBE)
        assert pairing(done.parts, gradients, target, CUBE) == pairing(parts, back.parts, source, CUBE)
        assert np.array_equal(whole_of(back.parts, dual(source), CUBE, whole.shape), whole * 2)
        assert done.received.max() == parts[0].size and np.array_equal(done.received, back.sent)
    assert seen > 100


AXES = st.permutations(["x", "y", "z"])


@examples(150)
@given(st.data())
def test_messages_tile_every_receivers_part_once_and_senders_hold_what_they_send(data):
    sizes = {axis: data.draw(st.integers(1, 4)) for axis in "xyz"}
    shape = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    axes = data.draw(AXES)
    before, after = (
        data.draw(st.sampled_from(list(cut(data.draw(AXES)[: data.draw(st.integers(0, 3))], len(shape)))))
        for _ in range(2)
    )
    held, wanted = (boxes(dims, shape, axes, sizes) for dims in (before, after))
    counts = [np.zeros(shape, int) for _ in wanted]
    got_from_others = np.zeros((len(held), len(held)), int)
    for message in messages(write_spec(before, after), shape, axes, sizes):
        where = tuple(slice(*pair) for pair in message.box)
        assert counts[0][where].size, "no message is empty"
        counts[message.receiver][where] += 1
        own = held[message.sender]
        assert all(lo <= start and stop <= hi for (start, stop), (lo, hi) in zip(message.box, own, strict=True))
        got_from_others[message.sender, message.receiver] += counts[0][where].size
    for member, count in enumerate(counts):
        expected = np.zeros(shape, int)
        expected[tuple(slice(*pair) for pair in wanted[member])] = 1
        assert np.array_equal(count, expected), "each element of the part after, once"
        both = np.stack([np.maximum(held[member, :, 0], wanted[member, :, 0]),
                         np.minimum(held[member, :, 1], wanted[member, :, 1])], axis=-1)  # fmt: skip
        assert got_from_others[member, member] == volumes(both), "what a member holds stays with it"


@examples(100)
@given(st.data())
def test_a_permutes_senders_are_a_permutation_and_hold_what_is_wanted(data):
    order, other = data.draw(AXES), data.draw(AXES)
    before = data.draw(st.sampled_from(list(cut(order[: data.draw(st.integers(0, 3))], 2))))
    lengths = [len(split) for split in before]
    after = (tuple(other[: lengths[0]]), tuple(other[lengths[0] : sum(lengths)]))
    sizes, axes = {"x": 2, "y": 2, "z": 2}, data.draw(AXES)
    found = senders(write_spec(before, after), axes, sizes)
    assert sorted(found) == list(range(8))
    held, wanted = (boxes(dims, (8, 8), axes, sizes) for dims in (before, after))
    for member, sender in enumerate(found):
        assert np.array_equal(held[sender], wanted[member])
        assert sender == member or not np.array_equal(held[member], wanted[member]), "who can keep its part does"


def test_what_is_measured_is_what_crosses_the_links():
    parts = deal(numbered((8, 4)), Layout.ordered((("x",), ()), GRID), GRID)
    gather = Collective("all_gather", ("x",), (0,), "all-gather", "reduce-scatter", 0, 0)
    done = execute([gather], parts, GRID)
    assert done.received.tolist() == [[24.0] * 8] and done.held == 32 and done.received_elements == 24
    back = execute_backward([gather], done.parts, GRID)
    assert back.received.tolist() == [[24.0] * 8] and back.busy_elements == 24
    reduce = Collective("all_reduce", ("y",), (), "all-reduce", "", 0, 0)
    assert execute([reduce], parts, GRID).received.tolist() == [[8.0] * 8]
    assert execute([], parts, GRID).received_elements == 0 and execute([], parts, GRID).held == 8
    # five rows over four ranks are 2, 2, 1, 0, and all that a rank lacks comes from the other three
    uneven = deal(numbered((5, 3)), Layout.ordered((("x",), ()), GRID), GRID)
    fetch = Collective("exchange", ("x",), (), "all-to-all-v", "all-to-all-v", 0, 0, "x, - -> -, -", (5, 3))
    done = execute([fetch], uneven, GRID)
    assert done.received[0].tolist() == [9, 9, 9, 9, 12, 12, 15, 15]
    assert done.sent[0].tolist() == [18, 18, 18, 18, 9, 9, 0, 0]
    assert (done.received_elements, done.busy_elements, done.held) == (15, 18, 15)


def test_every_operator_of_the_tables_is_simulated():
    tables = (STEPS, NEUTRAL_STEPS, EXCHANGES)
    named = {step.op for table in tables for step in table.values()}
    assert named == set(OPERATORS) and named == {s.op for s in SAMPLES} | set(EXCHANGES)


def test_a_step_that_does_not_divide_is_refused():
    shard = Collective("shard", ("x",), (0,), "", "", 0, 0)
    with pytest.raises(ValueError, match=r"dim 0 of \(5, 3\) doesn't divide by 4"):
        run([shard], deal(numbered((5, 3)), Layout.ordered(((), ()), GRID), GRID), GRID)


def test_a_spec_reads_as_it_is_written():
    for source, target in permutations(SQUARE_LAYOUTS, 2):
        assert parse_spec(write_spec(source.dims, target.dims)) == (source.dims, target.dims)


FAULTS = [
    ("axes in another order", "all_gather", ("y", "x"), (0,), ({"dims": (("x", "y"), ())}, {})),
    ("an I for an R", "all_reduce", ("x", "y"), (), ({"rest": {"x": P, "y": P}}, {})),
    ("an R for an I", "all_reduce_to_replicate", ("x",), (), ({"rest": {"x": P}}, {"rest": {"x": I}})),
    ("one axis of two", "all_reduce_to_replicate", ("y",), (), ({"rest": {"x": P, "y": P}}, {})),
    ("another dim", "shard", ("x", "y"), (1,), ({}, {"dims": (("x", "y"), ())})),
    ("more than the ends", "exchange", ("x", "y"), (), ({"dims": (("x", "y"), ())}, {"dims": (("y", "x"), ())})),
]


@pytest.mark.parametrize(("op", "axes", "dims", "ends"), [fault[1:] for fault in FAULTS], ids=[f[0] for f in FAULTS])
def test_the_judge_sees_a_wrong_plan(op, axes, dims, ends, monkeypatch):
    court = Judge((4, 4), SQUARE, carries=True)
    source, target = (Layout.ordered(end.get("dims", ((), ())), SQUARE, end.get("rest")) for end in ends)
    court.check(source, target)
    steps = [Collective(op, axes, dims, "", "", 0, 0)]
    if op == "exchange":  # what it does is right, but by way of the whole
        whole = write_spec(source.dims, ((), ())), write_spec(((), ()), target.dims)
        steps = [Collective(op, axes, (), "", "", 0, 0, spec, (4, 4)) for spec in whole]
    monkeypatch.setattr(court.planner, "plan", lambda *ends: Redistribution(tuple(steps), 0.0))
    with pytest.raises((AssertionError, ValueError), match=r"holds|backward of|->|different values"):
        court.check(source, target)
