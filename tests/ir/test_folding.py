"""Experts folded over the ranks of dense layers: both are unions of the mesh's axes, whatever the sizes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.ir.folding import Folding, fold
from autoplan.ir.mesh import CONTEXTS, TENSOR, Mesh
from autoplan.options import Parallelism

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8])


@given(dp=SIZES, cp=SIZES, tensor=st.lists(SIZES, min_size=1, max_size=3), ep=SIZES, etp=SIZES)
def test_a_folding_is_of_ep_ranks_whose_others_have_the_same(dp, cp, tensor, ep, etp) -> None:
    folding = fold(dp, cp, tuple(tensor), ep, etp)
    if folding is None or ep == 1:
        assert ep == 1 or folding is None
        return
    mesh = Mesh.planned(1, dp // folding.data, folding.data, cp, tuple(tensor), inner=folding.inner)
    assert math.prod(mesh.size(axis) for axis in folding.axes) == ep
    assert math.prod(mesh.size(axis) for axis in TENSOR if axis not in folding.axes) == etp
    edp = mesh.size("dp") * math.prod(mesh.size(axis) for axis in CONTEXTS if axis not in folding.axes)
    assert edp * ep * etp == dp * cp * math.prod(tensor)
    assert list(folding.axes) == [axis for axis in mesh.names if axis in folding.axes], "outermost first"


@pytest.mark.parametrize(
    ("sizes", "ep", "etp", "found"),
    [
        ((4, 1, (2,)), 4, 2, Folding(4)),
        ((4, 1, (2,)), 4, 1, Folding(2, ("tp",))),
        ((4, 2, (2,)), 8, 1, Folding(2, ("cp", "tp"))),
        ((4, 2, (2,)), 2, 2, Folding(1, ("cp",))),
        ((4, 4, (1,)), 2, 1, Folding(1, ("cp2",), 2)),  # half of cp
        ((1, 4, (2,)), 4, 1, Folding(1, ("cp2", "tp"), 2)),
        ((4, 6, (1,)), 4, 1, Folding(4)),  # no part of cp: within dp
        ((2, 6, (1,)), 4, 1, None),  # a part of either: their ranks wouldn't lie together
        ((2, 1, (2, 2)), 4, 2, Folding(2, ("tp",))),
        ((4, 1, (4,)), 4, 2, None),  # etp is no tensor axis
        ((4, 1, (4,)), 2, 1, None),  # fewer than tp
        ((2, 3, (1,)), 4, 1, None),  # neither all of cp nor a part of dp
    ],
)
def test_experts_lie_innermost(sizes, ep, etp, found) -> None:
    assert fold(*sizes, ep, etp) == found


def test_a_parallelism_says_its_mesh() -> None:
    chosen = Parallelism(dp=4, cp=2, tp=2, pp=2, ep=8, etp=1)
    assert str(chosen.mesh(3)) == "pp=2 dp=2 ep=2 cp=2 tp=2 mb=3"
    assert chosen.folding.axes == ("ep", "cp", "tp")
    assert str(Parallelism(dp=4, tp=2).mesh()) == "pp=1 dp=4 tp=2"
    part = Parallelism(dp=2, cp=8, tp=2, ep=4, etp=2)
    assert str(part.mesh(3)) == "pp=1 dp=2 cp=2 cp2=4 tp=2 mb=3" and part.folding.axes == ("cp2",)
