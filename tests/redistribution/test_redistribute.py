"""Redistribution: the table of steps, and paths that lead from layout to layout.

Exhaustive proofs in the simulator are in test_redistribute_exhaustive.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.errors import LayoutError
from autoplan.ir.graph import TensorType
from autoplan.ir.layout import PMAX, I, Layout, P, R, S, State
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution import (
    AxisLinks,
    Planner,
    follow,
    redistribute,
    simplify,
    step_seconds,
    transition,
)
from autoplan.redistribution.links import UNIFORM
from autoplan.runtime.collectives import typed
from tests.oracles.redistribution import deal, run
from tests.support.sampling import examples

MESH = Mesh.of(dp=2, tp=2, cp=2, mb=2)
KIND = TensorType((16, 8, 24), "float32")
NODES = AxisLinks.of({"dp": (5e-6, 25e9), "tp": (2e-6, 400e9), "cp": (2e-6, 400e9)})
STATES = st.sampled_from([S(0), S(1), S(2), R, I, P])
LAYOUTS = st.tuples(STATES, STATES, STATES)


def layout(dp: State = R, tp: State = R, cp: State = R, mb: State = R) -> Layout:
    return Layout.of(3, {"dp": dp, "tp": tp, "cp": cp, "mb": mb}, MESH)


@cache
def planner(carries: bool, links: AxisLinks) -> Planner:
    return Planner(KIND, MESH, carries_gradient=carries, links=links)


def steps_between(source: Layout, target: Layout, carries: bool = True, links=UNIFORM) -> tuple[Collective, ...]:
    return planner(carries, links).plan(source, target).collectives


@examples(60)
@given(LAYOUTS, LAYOUTS, st.booleans(), st.sampled_from([S(0), R]), st.sampled_from([UNIFORM, NODES]))
def test_steps_lead_to_the_target_at_the_price_that_is_said(a, b, carries, mb, links):
    source, target = layout(*a, mb=mb), layout(*b, mb=mb)
    here = simplify(source, MESH, carries)
    found = planner(carries, links).plan(source, target)
    seconds = 0.0
    for step in found.collectives:
        here, same = follow(here, step, KIND, MESH, carries_gradient=carries)
        assert same == step
        assert bool(step.forward) == bool(step.forward_bytes) and bool(step.backward) == bool(step.backward_bytes)
        assert carries or not step.backward
        seconds += sum(step_seconds(step, 4, MESH, links))
    assert here == simplify(target, MESH, carries)
    assert seconds == pytest.approx(found.seconds, rel=1e-9, abs=1e-18)


def test_what_comes_from_afar_is_shared_over_the_faster_links():
    """Eight devices hold the same on fast links: each fetches an eighth from the other node, and they gather."""
    mesh = Mesh.of(node=2, gpu=8)
    kind = TensorType((4096, 4096), "bfloat16")
    source, target = (Layout.of(2, {"node": S(d), "gpu": R}, mesh) for d in (0, 1))
    links = AxisLinks.of({"node": (5e-6, 25e9), "gpu": (2e-6, 400e9)})
    steps = redistribute(source, target, kind, mesh, carries_gradient=False, links=links)
    assert [step.axes for step in steps][-1] == ("gpu",) and steps[-1].op == "all_gather"
    alone = Collective("all_to_all", ("node",), (0, 1), "all-to-all", "", kind.bytes // 2, 0)
    assert sum(sum(step_seconds(s, 2, mesh, links)) for s in steps) < 0.4 * sum(step_seconds(alone, 2, mesh, links))


TABLE = [
    (S(0), R, "all_gather", "all-gather", "reduce-scatter"),
    (S(0), I, "all_gather_invariant", "all-gather", ""),
    (R, S(1), "shard", "", ""),
    (I, S(1), "shard_invariant", "", "all-gather"),
    (S(0), S(1), "all_to_all", "all-to-all", "all-to-all"),
    (I, R, "to_replicate", "", "all-reduce"),
    (P, I, "all_reduce", "all-reduce", ""),
    (P, R, "all_reduce_to_replicate", "all-reduce", "all-reduce"),
    (P, S(0), "reduce_scatter", "reduce-scatter", "all-gather"),
    (R, I, "to_invariant", "", ""),
    (R, P, "replicate_to_partial", "", ""),
    (I, P, "invariant_to_partial", "", ""),
    (S(2), P, "shard_to_partial", "", ""),
]


@pytest.mark.parametrize(("source", "target", "op", "forward", "backward"), TABLE)
def test_one_axis_takes_one_step(source, target, op, forward, backward):
    (step,) = steps_between(layout(tp=source), layout(tp=target))
    assert (step.op, step.axis, step.forward, step.backward) == (op, "tp", forward, backward)
    assert step.dims == tuple(s.dim for s in (source, target) if s.kind == "S")
    assert transition(source, target, True) == op


def test_the_sizes_are_those_by_which_a_collective_is_known():
    (gather,) = steps_between(layout(dp=S(0), tp=S(1)), layout(dp=S(0), tp=R))
    assert (gather.forward_bytes, gather.backward_bytes) == (KIND.bytes // 2, KIND.bytes // 2)  # result, operand
    (scatter,) = steps_between(layout(dp=S(0), tp=P), layout(dp=S(0), tp=S(1)))
    assert (scatter.forward_bytes, scatter.backward_bytes) == (KIND.bytes // 2, KIND.bytes // 2)  # operand, result
    (exchange,) = steps_between(layout(dp=S(0), tp=S(1)), layout(dp=S(0), tp=S(2)))
    assert (exchange.forward_bytes, exchange.backward_bytes) == (KIND.bytes // 4, KIND.bytes // 4)


def test_every_step_is_a_function_of_the_runtime():
    for source, target in itertools.permutations([S(0), S(1), R, I, P, PMAX], 2):
        for carries in (True, False):
            op = transition(source, target, carries)
            assert not op or callable(getattr(typed, op)), (source, target)


def test_a_neutral_tensor_is_as_much_i_as_r_and_sends_nothing_back():
    assert transition(R, I, False) == "" == transition(I, R, False)
    assert steps_between(layout(dp=I), layout(tp=I), carries=False) == ()
    assert transition(I, S(0), False) == "shard"
    (step,) = steps_between(layout(tp=P), layout(tp=I), carries=False)
    assert (step.op, step.backward, step.backward_bytes) == ("all_reduce", "", 0)


def test_a_maximum_is_reduced_only_where_no_gradient_passes():
    (step,) = steps_between(layout(tp=PMAX), layout(tp=R), carries=False)
    assert (step.op, step.forward) == ("all_reduce_max", "all-reduce")
    assert transition(PMAX, I, True) is None and transition(R, PMAX, True) is None
    with pytest.raises(LayoutError, match=r"reduce a P\(max\) before a gradient passes through it"):
        steps_between(layout(tp=PMAX), layout(tp=R))


def test_summands_and_operands_of_max_do_not_go_together():
    with pytest.raises(LayoutError, match="a maximum of sums is not a sum of maxima"):
        steps_between(layout(dp=P, tp=PMAX), layout(), carries=False)


@pytest.mark.parametrize("carries", [True, False])
def test_microbatches_exchange_nothing(carries):
    with pytest.raises(LayoutError, match="microbatches follow one another"):
        steps_between(layout(mb=R), layout(mb=S(0)), carries)


def test_axes_of_one_member_need_no_step():
    mesh, line = Mesh.of(dp=1, tp=2), TensorType((16,), "float32")
    source = Layout.of(1, {"dp": S(0), "tp": I}, mesh)
    assert redistribute(source, Layout.of(1, {"dp": P, "tp": I}, mesh), line, mesh, carries_gradient=True) == ()


def test_a_sum_over_two_axes_is_reduced_a_part_at_a_time_where_one_axis_is_slow():
    """Reduce-scatter inside the node, all-reduce of the part across, all-gather inside: found and not told."""
    steps = steps_between(layout(dp=P, tp=P), layout(dp=I, tp=I), False, AxisLinks.of({"dp": (0, 1), "tp": (0, 100)}))
    assert sum(step.forward_bytes for step in steps if "dp" in step.axes) <= KIND.bytes
    together = steps_between(layout(dp=P, tp=P), layout(dp=I, tp=I))
    assert sum(sum(step_seconds(step, 4, MESH, UNIFORM)) for step in together) == 2 * KIND.bytes * 3 / 4


@pytest.mark.parametrize("carries", [True, False])
def test_every_rank_finds_the_same_path_whatever_it_sought_before(carries):
    source, target = layout(dp=S(0), tp=S(1), cp=P), layout(dp=S(1), tp=S(0), cp=R)
    for _ in range(2):
        found = redistribute(source, target, KIND, MESH, carries_gradient=carries, links=NODES)
        assert found == steps_between(source, target, carries, NODES)


def test_a_step_that_can_not_be_taken_is_refused():
    gather = Collective("all_gather", ("dp",), (0,), "all-gather", "reduce-scatter", 1, 1)
    with pytest.raises(ValueError, match="all_gather over dp: dim 0 is split by dp tp"):
        follow(layout(dp=S(0), tp=S(0)), gather, KIND, MESH, carries_gradient=True)
    with pytest.raises(ValueError, match=r"all_gather over dp with dims \(0,\) does not start from R"):
        follow(layout(), gather, KIND, MESH, carries_gradient=True)
    with pytest.raises(ValueError, match="axis ep holds nothing"):
        follow(layout(), replace(gather, axes=("ep",)), KIND, MESH, carries_gradient=True)
    fetch = Collective("exchange", ("dp", "tp"), (), "all-to-all-v", "", 1, 0, "tp, dp, - -> dp, tp, -", (16, 8, 24))
    with pytest.raises(ValueError, match="dim 0 is split by dp, not by tp"):
        follow(layout(dp=S(0), tp=S(1)), fetch, KIND, MESH, carries_gradient=True)


@pytest.mark.parametrize(
    ("dims", "rest", "cause"),
    [
        ([["a"]], {"b": R}, "has 1 dims"),
        ([["z"], []], {"a": R, "b": R}, "no axis z"),
        ([["a.7"], []], {"a": R, "b": R}, "no axis a.7"),
        ([["a"], ["a"]], {"b": R}, "names a.0, a.1 twice"),
        ([["a"], ["a.0"]], {"b": R}, "names a.0 twice"),
        ([["a.0"], []], {"b": R}, "says nothing of a.1"),
        ([["a"], []], {}, "says nothing of b"),
    ],
)
def test_a_layout_that_does_not_fit_the_tensor_and_the_mesh_is_refused(dims, rest, cause):
    mesh, kind = Mesh.of(a=4, b=2), TensorType((16, 8), "float32")
    wrong, right = Layout(tuple(map(tuple, dims)), tuple(rest.items())), Layout.of(2, {}, mesh)
    for ends in ((wrong, right), (right, wrong)):
        with pytest.raises(LayoutError, match=cause):
            redistribute(*ends, kind, mesh, carries_gradient=False)


@pytest.mark.parametrize(
    ("states", "step", "cause"),
    [
        ({}, Collective("to_replicate", ("tp", "tp"), (), "", "", 0, 0), "names an axis twice"),
        ({"dp": S(0)}, Collective("exchange", ("dp",), (), "", "", 0, 0, "dp, - -> dp, dp", (6, 4)), "an axis twice"),
        ({}, Collective("shard", ("dp",), (0,), "", "", 0, 0), "doesn't divide by dp"),
        ({"dp": S(0)}, Collective("all_gather", ("dp",), (0,), "", "", 0, 0), "doesn't divide by dp"),
        ({"dp": S(0)}, Collective("permute", ("dp", "tp"), (), "", "", 0, 0, "dp, - -> tp, -"), "differ in size"),
    ],
)
def test_a_step_that_would_not_run_as_written_is_refused(states, step, cause):
    """An axis named twice is no group; parts of different sizes are moved by exchanges alone."""
    mesh, kind = Mesh.of(dp=2, tp=2), TensorType((5, 4), "float32")
    there = I if step.op == "to_replicate" else R
    start = Layout.of(2, {"dp": there, "tp": there} | states, mesh)
    with pytest.raises(ValueError, match=cause):
        follow(start, step, kind, mesh, carries_gradient=True)


@pytest.mark.parametrize("links", [UNIFORM, NODES])
@pytest.mark.parametrize("axes", ["abcde", "abcdef", "abcdefgh"])
def test_many_axes_are_planned_between_their_ends(axes, links):
    """Too many layouts to search them all: stations between the ends, and the direct exchange among them."""
    mesh = Mesh.of(**dict.fromkeys(axes, 2))
    source = Layout.ordered([["a", "b"], ["c", "e"], ["d"]], mesh)
    target = Layout.ordered([["e", "d"], ["c", "b"], ["a", *axes[5:]]], mesh)
    kind = TensorType((16, 16, 16), "float32")
    steps = redistribute(source, target, kind, mesh, carries_gradient=False, links=links)
    whole = np.arange(16.0**3).reshape(kind.shape)
    found = run(steps, deal(whole, source, mesh), mesh)
    assert all(np.array_equal(x, y) for x, y in zip(found, deal(whole, target, mesh), strict=True))
    most = sum(sum(step_seconds(step, 4, mesh, UNIFORM)) for step in steps)
    assert links != UNIFORM or most <= kind.bytes / 2 ** len(axes[:5])
