"""Pruning: the optimum is the same at every price of bytes, and what is dropped is dominated or composed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.cost import Prices
from autoplan.ir.graph import Model
from autoplan.ir.layout import I, Layout, R, S
from autoplan.ir.mesh import Mesh
from autoplan.search.intra_op.options import formulate, prepare
from autoplan.search.intra_op.problem import Group, Problem, Tensor, build
from autoplan.search.intra_op.pruning import prune
from autoplan.search.intra_op.solve import Weights, solve
from tests.search.test_search_problem import small_models
from tests.support.hand_made import llama, mlp

WEIGHTS = (Weights(), Weights(1e-9, 0.0), Weights(1e-8, 1e-7), Weights(0.0, 1e-6))


def problem_of(model: Model, mesh: Mesh, cluster: str = "1x8 cpu") -> Problem:
    topology = ClusterSpec.parse(cluster).topology()
    prices = Prices(mesh, topology, True, True, mesh.size("mb"), 7.0, direct=len(mesh.tensor_axes) > 1)
    return build(formulate(prepare(model, (), fuses=True, training=True), mesh, prices, split_weights=False))


@settings(max_examples=25, deadline=None)
@given(
    small_models(),
    st.sampled_from([Mesh.of(dp=1, tp=2, mb=1), Mesh.of(dp=1, tp=2, tp2=2, mb=1), Mesh.of(dp=1, tp=4, mb=2)]),
    st.sampled_from(WEIGHTS),
)
def test_the_optimum_is_unchanged(model: Model, mesh: Mesh, weights: Weights) -> None:
    problem = problem_of(model, mesh)
    smaller = prune(problem)
    assert solve(smaller, weights).objective == pytest.approx(solve(problem, weights).objective, rel=1e-9, abs=1e-18)


@pytest.mark.parametrize("model", [mlp(), llama()], ids=["mlp", "llama"])
def test_the_optimum_of_a_whole_model_is_unchanged(model: Model) -> None:
    problem = problem_of(model, Mesh.of(dp=1, tp=4, mb=2))
    smaller = prune(problem)
    assert smaller.variables <= problem.variables
    for weights in WEIGHTS[:3]:
        assert solve(smaller, weights).objective == pytest.approx(solve(problem, weights).objective, rel=1e-9)


def test_dominated_options_of_a_decoder_go() -> None:
    problem = problem_of(llama(batch=8, seq=2048, hidden=1024, ffn=4096), Mesh.of(dp=1, tp=4, mb=2), "1x8 h100-sxm")
    options = [sum(len(g.options) for g in p.groups) for p in (prune(problem), problem)]
    assert options[0] < options[1]


def tiny(time_s: list[float], arc_s: float, kept: list[int]) -> Problem:
    """One operator whose options give the layouts 0 and 1; its reader wants 0, and 1 -> 0 costs ``arc_s``."""
    mesh = Mesh.of(dp=1, tp=2, mb=1)
    layouts = (Layout.of(1, {"tp": S(0)}, mesh), Layout.of(1, {"tp": R}, mesh), Layout.of(1, {"tp": I}, mesh))
    zeros = np.zeros(2)
    one = Group(("node", 0, "one"), layouts[:2], np.array(time_s), zeros, zeros)
    end = Group(("boundary", -1, "0"), layouts[:1], np.zeros(1), np.zeros(1), np.zeros(1))
    out = Tensor(
        0, "one", layouts[:2], 0, np.array([0, 1]), ((1, np.array([0])),), np.array([[1, 0]]), np.array([arc_s]),
        ((0, np.array(kept)),), np.array([8.0, 16.0]),
    )  # fmt: skip
    return Problem((one, end), (out,))


@pytest.mark.parametrize(
    ("time_s", "arc_s", "kept", "left"),
    [
        ([1.0, 5.0], 1.0, [-1, -1], 2),  # the slow one's layout can't be reached from the quick one's
        ([5.0, 1.0], 3.0, [-1, -1], 1),  # quick, and on to where the slow one is: 4 s in place of 5
        ([5.0, 1.0], 4.5, [-1, -1], 2),  # the way there is too dear
        ([5.0, 1.0], 3.0, [0, 1], 2),  # it would keep more bytes
        ([5.0, 1.0], 3.0, [0, -1], 1),  # it keeps none
    ],
)
def test_an_option_goes_where_both_time_and_bytes_dominate(
    time_s: list[float], arc_s: float, kept: list[int], left: int
) -> None:
    assert len(prune(tiny(time_s, arc_s, kept)).groups[0].options) == left
