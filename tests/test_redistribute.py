"""Redistribution: paths that lead from layout to layout, never longer than they need be."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import LayoutError
from autoplan.graph import TensorType
from autoplan.layout import PMAX, I, Layout, P, R, S, State
from autoplan.mesh import Mesh
from autoplan.redistribute import RECEIVED, Search, follow, movable, redistribute, simplify, transition
from autoplan.runtime import collectives
from autoplan.typed import Collective

MESH = Mesh.of(dp=2, tp=2, cp=2, mb=2)
KIND = TensorType((16, 8, 24), "float32")
STATES = st.sampled_from([S(0), S(1), S(2), R, I, P])
LAYOUTS = st.tuples(STATES, STATES, STATES)


def layout(dp: State = R, tp: State = R, cp: State = R, mb: State = R) -> Layout:
    return Layout.of(3, {"dp": dp, "tp": tp, "cp": cp, "mb": mb}, MESH)


def received_bytes(steps: tuple[Collective, ...]) -> float:
    return sum(
        (RECEIVED[s.forward] * s.forward_bytes + RECEIVED[s.backward] * s.backward_bytes) * (1 - 1 / MESH.size(s.axis))
        for s in steps
    )


def steps_between(source: Layout, target: Layout, carries: bool = True) -> tuple[Collective, ...]:
    return redistribute(source, target, KIND, MESH, carries_gradient=carries)


@settings(max_examples=60, deadline=None)
@given(LAYOUTS, LAYOUTS, st.booleans(), st.sampled_from([S(0), R]))
def test_steps_lead_to_the_target_and_never_hold_more_than_both_ends(a, b, carries, mb):
    source, target = layout(*a, mb=mb), layout(*b, mb=mb)
    here, goal = simplify(source, MESH, carries), simplify(target, MESH, carries)
    ends = max(math.prod(end.local_shape(KIND.shape, MESH)) for end in (source, target))
    for step in steps_between(source, target, carries):
        before = math.prod(here.local_shape(KIND.shape, MESH))
        here, same = follow(here, step, KIND, MESH, carries_gradient=carries)
        assert same == step
        after = math.prod(here.local_shape(KIND.shape, MESH))
        assert after <= ends
        assert {step.forward_bytes, step.backward_bytes} <= {0, 4 * max(before, after)}
        assert bool(step.forward) == bool(step.forward_bytes) and bool(step.backward) == bool(step.backward_bytes)
        assert carries or not step.backward
    assert here == goal


@settings(max_examples=40, deadline=None)
@given(LAYOUTS, LAYOUTS, st.booleans())
def test_no_path_is_dearer_than_gathering_all_and_slicing(a, b, carries):
    whole = layout(I, I, I)
    detour = steps_between(layout(*a), whole, carries) + steps_between(whole, layout(*b), carries)
    assert received_bytes(steps_between(layout(*a), layout(*b), carries)) <= received_bytes(detour) * (1 + 1e-12)


def test_where_one_step_leads_no_way_round_is_cheaper():
    mesh = Mesh.of(dp=2, tp=4)
    kind = TensorType((8, 8), "float32")
    layouts = [Layout.of(2, {"dp": a, "tp": b}, mesh) for a, b in itertools.product([S(0), S(1), R, I, P], repeat=2)]
    for source, target, carries in itertools.product(layouts, layouts, (True, False)):
        start, goal = simplify(source, mesh, carries), simplify(target, mesh, carries)
        search = Search(goal, kind, mesh, carries, movable(start, goal, mesh))
        direct = search.direct(start)
        if direct:
            cheapest = search.shortest(start, limit=kind.elements)
            assert cheapest and search.price(direct[0]) == sum(search.price(step) for step in cheapest)


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
            assert not op or callable(getattr(collectives, op)), (source, target)


def test_a_neutral_tensor_is_as_much_i_as_r_and_sends_nothing_back():
    assert transition(R, I, False) == "" == transition(I, R, False)
    assert steps_between(layout(dp=I), layout(tp=I), carries=False) == ()
    assert transition(I, S(0), False) == "shard"
    (step,) = steps_between(layout(tp=P), layout(tp=I), carries=False)
    assert (step.op, step.backward, step.backward_bytes) == ("all_reduce", "", 0)


def test_a_maximum_is_reduced_only_where_no_gradient_passes():
    (step,) = steps_between(layout(tp=PMAX), layout(tp=R), carries=False)
    assert (step.op, step.forward) == ("all_reduce_max", "all-reduce")
    assert transition(PMAX, I, True) is None and transition(R, PMAX, False) is None
    with pytest.raises(LayoutError, match=r"reduce a P\(max\) before a gradient passes through it"):
        steps_between(layout(tp=PMAX), layout(tp=R))


@pytest.mark.parametrize("carries", [True, False])
def test_microbatches_exchange_nothing(carries):
    with pytest.raises(LayoutError, match="microbatches follow one another"):
        steps_between(layout(mb=R), layout(mb=S(0)), carries)


def test_axes_of_one_member_need_no_step():
    mesh = Mesh.of(dp=1, tp=2)
    source = Layout.of(1, {"dp": S(0), "tp": I}, mesh)
    assert redistribute(source, Layout.of(1, {"dp": P, "tp": I}, mesh), KIND, mesh, carries_gradient=True) == ()


def test_an_inner_axis_makes_way_for_an_outer_one():
    """(0: cp) -> (0: dp, cp): cp is alone in dim 0 and must end inside dp."""
    steps = steps_between(layout(cp=S(0)), layout(dp=S(0), cp=S(0)), carries=False)
    assert steps[-1].axis == "cp" and len(steps) > 1
    line = TensorType((16,), "float32")
    source, target = (Layout.of(1, states, MESH) for states in ({"cp": S(0)}, {"dp": S(0), "cp": S(0)}))
    only_way = redistribute(source, target, line, MESH, carries_gradient=False)
    assert [step.op for step in only_way] == ["all_gather", "shard", "shard"]


def test_a_sum_over_two_axes_is_reduced_a_part_at_a_time():
    """Reduce-scatter, all-reduce of the part, all-gather: a hierarchical all-reduce, found and not told."""
    steps = steps_between(layout(dp=P, tp=P), layout(dp=I, tp=I), carries=False)
    assert sorted(step.forward for step in steps) == ["all-gather", "all-reduce", "reduce-scatter"]
    assert received_bytes(steps) < 2 * KIND.bytes
    odd = TensorType((3, 5), "float32")
    source, target = (Layout.of(2, {"dp": s, "tp": s}, MESH) for s in (P, I))
    assert [s.op for s in redistribute(source, target, odd, MESH, carries_gradient=True)] == ["all_reduce"] * 2


def test_every_rank_finds_the_same_path():
    first = steps_between(layout(dp=S(0), tp=S(1)), layout(dp=S(1), tp=S(0)))
    assert all(first == steps_between(layout(dp=S(0), tp=S(1)), layout(dp=S(1), tp=S(0))) for _ in range(3))


def test_a_step_that_can_not_be_taken_is_refused():
    gather = Collective("all_gather", "dp", (0,), "all-gather", "reduce-scatter", 1, 1)
    with pytest.raises(ValueError, match="all_gather over dp: inside it, tp splits dim 0"):
        follow(layout(dp=S(0), tp=S(0)), gather, KIND, MESH, carries_gradient=True)
    with pytest.raises(ValueError, match=r"all_gather over dp with dims \(0,\) does not start from R"):
        follow(layout(), gather, KIND, MESH, carries_gradient=True)
    with pytest.raises(ValueError, match="axis ep holds nothing"):
        follow(layout(), replace(gather, axis="ep"), KIND, MESH, carries_gradient=True)
