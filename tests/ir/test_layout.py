"""Layouts: states, their duals, the order of axes in a dim, local shapes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.ir.layout import PMAX, I, Layout, P, R, S, State
from autoplan.ir.mesh import Mesh

MESH = Mesh.of(pp=2, dp=2, tp=4, mb=2)
STATES = st.sampled_from([S(0), S(1), S(2), R, I, P, PMAX])
LAYOUTS = st.fixed_dictionaries({name: STATES for name in MESH.names})


@given(LAYOUTS)
def test_a_layout_remembers_each_axis_state(states):
    layout = Layout.of(3, states, MESH)
    assert layout.states() == states
    assert Layout.of(3, layout.states(), MESH) == layout
    assert layout.axes == set(MESH.names)


@given(LAYOUTS)
def test_local_parts_have_the_elements_of_the_whole(states):
    layout = Layout.of(3, states, MESH)
    ways = {0: 1, 1: 1, 2: 1}
    for axis, state in states.items():
        if state.kind == "S":
            ways[state.dim] *= MESH.size(axis)
    shape = (32, 64, 96)
    assert layout.local_shape(shape, MESH) == tuple(size // ways[dim] for dim, size in enumerate(shape))


@given(st.sampled_from([S(0), S(17), R, I, P, PMAX]))
def test_states_are_read_back(state):
    assert State.parse(str(state)) == state


def test_the_gradient_of_a_gradient_is_in_the_state_of_the_value():
    assert [state.gradient for state in (S(1), R, I, P)] == [S(1), P, I, R]
    assert all(state.gradient.gradient == state for state in (S(0), R, I, P))


def test_microbatches_are_outermost_in_a_dim_and_then_the_mesh_order_holds():
    for order in itertools.permutations(MESH.names):
        layout = Layout.of(1, dict.fromkeys(order, S(0)), MESH)
        assert layout.dims == (("mb", "pp", "dp", "tp"),)


def test_an_axis_not_named_is_replicated():
    assert Layout.of(2, {"tp": S(1)}, MESH).state("dp") == R
    assert str(Layout.of(2, {"tp": S(1), "dp": P}, Mesh.of(dp=2, tp=2))) == "dp: P, tp: S(1)"


def test_what_is_no_layout_is_refused():
    with pytest.raises(ValueError, match=r"S\(2\) on axis tp of a tensor with 2 dims"):
        Layout.of(2, {"tp": S(2)}, MESH)
    with pytest.raises(ValueError, match="'Q' is no state; states are"):
        State.parse("Q")
    with pytest.raises(ValueError, match=r"dim 0 of \(6,\) doesn't divide over tp=4"):
        Layout.of(1, {"tp": S(0)}, MESH).local_shape((6,), MESH)
    with pytest.raises(KeyError, match="says nothing of axis 'ep'"):
        Layout.of(1, {}, MESH).state("ep")
