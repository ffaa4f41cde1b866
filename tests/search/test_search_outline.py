"""What is shared between operator problems is what each would have found for itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoplan.cluster import ClusterSpec
from autoplan.cost import Prices
from autoplan.ir.choice import tensor_mesh
from autoplan.ir.graph import TensorType
from autoplan.ir.layout import I, Layout, P, R, S
from autoplan.ir.mesh import Mesh
from autoplan.options import Parallelism, Training
from autoplan.search.intra_op.operator_options import divisibility, formulate, split_sizes
from autoplan.search.intra_op.problem import Problem, build
from autoplan.search.intra_op.problem_inputs import OperatorInputs, Prepared, prepare
from autoplan.search.intra_op.template import template_of
from autoplan.search.space.candidates import Candidate
from autoplan.search.state import begin
from tests.support.hand_made import llama, mlp

MESHES = [tensor_mesh(Mesh.of(dp=dp, tp=tp, mb=mb)) for dp in (1, 2) for tp in (1, 2, 4, 8) for mb in (1, 2, 4)]
PREPARED = {
    name: prepare(model, (), fuses=True, training=True) for name, model in (("llama", llama()), ("mlp", mlp(batch=8)))
}


def price_list(mesh: Mesh, cluster: str = "2x8 h100-sxm", *, direct: bool = False) -> Prices:
    return Prices(mesh, ClusterSpec.parse(cluster).topology(), True, True, mesh.size("mb"), 7.0, direct=direct)


def formulated(prepared: Prepared, mesh: Mesh, split: bool) -> OperatorInputs:
    return formulate(prepared, mesh, price_list(mesh), split_weights=split)


def arrays(problem: Problem) -> list[np.ndarray]:
    found = [a for g in problem.groups for a in (g.time_s, g.state_bytes, g.kept_bytes)]
    for t in problem.tensors:
        found += [t.given, t.arcs, t.arc_s, t.kept_bytes, *(taken for _, taken in (*t.sinks, *t.keepers))]
    return found


def alike(name: str, one: Mesh, other: Mesh) -> bool:
    """Whether what divides one mesh's problem divides the other's."""
    sizes = split_sizes(PREPARED[name])
    return divisibility(sizes, one) == divisibility(sizes, other) and (one.size("tp") > 1) == (other.size("tp") > 1)


ALIKE = [(name, one, other) for name in PREPARED for one in MESHES for other in MESHES if alike(name, one, other)]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(ALIKE), st.booleans())
def test_where_the_same_divides_a_problem_is_the_outline_of_another(given: tuple[str, Mesh, Mesh], split: bool) -> None:
    name, one, other = given
    prepared = PREPARED[name]
    first, own = formulated(prepared, one, split), formulated(prepared, other, split)
    assert own.options == first.options
    alone, shared = build(own), build(own, template_of(first))
    assert [(g.key, g.options) for g in shared.groups] == [(g.key, g.options) for g in alone.groups]
    assert [t.layouts for t in shared.tensors] == [t.layouts for t in alone.tensors]
    for found, expected in zip(arrays(shared), arrays(alone), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_rows_that_the_tensor_axis_does_not_divide_are_told_apart() -> None:
    sizes = split_sizes(PREPARED["mlp"])
    one, other, more = (tensor_mesh(Mesh.of(dp=1, tp=4, mb=mb)) for mb in (1, 2, 4))
    assert divisibility(sizes, one) == divisibility(sizes, other)
    assert divisibility(sizes, more) != divisibility(sizes, one)
    assert divisibility(sizes, tensor_mesh(Mesh.of(dp=3, tp=4, mb=1))) is None


STATES = (S(0), S(1), R, I, P)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([Mesh.of(dp=2, tp=4, mb=1), Mesh.of(dp=4, tp=2, mb=2), Mesh.of(dp=1, tp=16, mb=1)]),
    st.lists(
        st.tuples(*(st.sampled_from(STATES) for _ in range(3)), st.sampled_from([16, 64, 1 << 12]), st.booleans()),
        min_size=2, max_size=6,
    ),
    st.booleans(),
)  # fmt: skip
@example(Mesh.of(dp=2, tp=4, mb=1), [(S(0), S(0), S(0), 16, False), (S(0), S(0), S(1), 16, False)], False)
def test_moves_that_are_alike_cost_what_each_costs_by_itself(mesh: Mesh, asked: list, direct: bool) -> None:
    together = price_list(mesh, direct=direct)
    for data, here, there, size, carries in asked:
        kind = TensorType((size, 64), "float32")
        source, target = (Layout.of(2, {"dp": data, "tp": state}, mesh) for state in (here, there))
        alone = price_list(mesh, direct=direct).move(kind, source, target, carries)
        assert together.move_s(kind, source, target, carries) == (None if alone is None else alone[0].seconds)


@pytest.mark.parametrize("sequence", [None, True, False])
def test_what_is_best_where_less_is_asked_is_best_where_it_does_what_is_asked(sequence: bool | None) -> None:
    operators = begin(llama(), ClusterSpec.parse("1x4 cpu"), Training(), Parallelism()).operators
    candidate = Candidate(pp=1, dp=1, tp=4, micro_batch=8, microbatches=1, zero=0, schedule="1f1b", recompute="auto")
    free = operators.fastest(candidate)
    pinned = operators.pinned_to(Parallelism(tp=4, sequence_parallel=sequence))
    found, alone = pinned.fastest(candidate), replace(pinned, wider=None, known={}).fastest(candidate)
    assert found.solution.objective == pytest.approx(alone.solution.objective, rel=1e-9)
    assert (found is free) == (free.solution.objective == pytest.approx(alone.solution.objective, rel=1e-9))
