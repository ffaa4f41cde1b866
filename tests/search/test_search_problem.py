"""The operator problem: equal to trying everything on small graphs, and Megatron's pattern on a decoder block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.cost import Prices, operators_of
from autoplan.errors import ParallelismError
from autoplan.ir.choice import tensor_mesh
from autoplan.ir.graph import Block, Model, TensorType, Typed
from autoplan.ir.mesh import Mesh
from autoplan.options import Parallelism, Training
from autoplan.redistribution.steiner_tree import cheapest_tree
from autoplan.search.block_cost.account import price_block
from autoplan.search.entry import search
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan, block_choices
from autoplan.search.intra_op.milp import summands_of
from autoplan.search.intra_op.operator_options import formulate
from autoplan.search.intra_op.operator_problem import OperatorProblem
from autoplan.search.intra_op.problem import Problem, Tensor, build, operators_s
from autoplan.search.intra_op.problem_inputs import OperatorInputs, prepare
from autoplan.search.intra_op.shared_decisions import alike_operators
from autoplan.search.intra_op.solve import OutOfTime, Solver, Weights, kept_layouts, solve
from autoplan.search.operator_problems import OperatorProblems
from autoplan.search.space.candidates import Candidate
from autoplan.search.space.systems import resolve
from tests.support.hand_made import chain, f32, llama, mlp, node

MESH = Mesh.of(dp=2, tp=2, mb=2)


def formulation(
    model: Model, mesh: Mesh = MESH, cluster: str = "1x4 cpu", *, split_weights: bool = False
) -> OperatorInputs:
    mesh = tensor_mesh(mesh)
    prices = Prices(mesh, ClusterSpec.parse(cluster).topology(), True, True, mesh.size("mb"), 7.0)
    return formulate(prepare(model, (), fuses=True, training=True), mesh, prices, split_weights=split_weights)


def assignments(problem: Problem) -> int:
    return math.prod(len(g.options) for g in problem.groups)


def brute_force(problem: Problem, weights: Weights) -> tuple[float, int]:
    """(the least objective over every assignment, each tensor by its cheapest tree; the fewest summands of those that
    come to exactly that)."""
    known: dict[tuple[int, int, frozenset[int]], float] = {}

    def tree_s(index: int, tensor: Tensor, root: int, wanted: frozenset[int]) -> float:
        arcs = {(int(a), int(b)): float(c) for (a, b), c in zip(tensor.arcs, tensor.arc_s, strict=True)}
        tree = cheapest_tree(root, wanted, arcs)
        known[index, root, wanted] = math.inf if tree is None else sum(arcs[arc] for arc in tree)
        return known[index, root, wanted]

    def objective(picked: tuple[int, ...]) -> float:
        total = sum(
            g.time_s[o] + weights.state * g.state_bytes[o] + weights.kept * g.kept_bytes[o]
            for g, o in zip(problem.groups, picked, strict=True)
        )
        for index, tensor in enumerate(problem.tensors):
            root = int(tensor.given[picked[tensor.source]])
            wanted = frozenset(int(taken[picked[group]]) for group, taken in tensor.sinks)
            total += known.get((index, root, wanted), -1.0)
            if (index, root, wanted) not in known:
                total += 1.0 + tree_s(index, tensor, root, wanted)
            total += weights.kept * sum(tensor.kept_bytes[at] for at in kept_layouts(tensor, picked))
        return float(total)

    every = itertools.product(*(range(len(g.options)) for g in problem.groups))
    return min((round_off(objective(picked)), summands(problem, picked)) for picked in every)


def round_off(seconds: float) -> float:
    """Sums of the same numbers in another order are equal."""
    return float(f"{seconds:.11e}")


def summands(problem: Problem, picked: Sequence[int]) -> int:
    """Values that an assignment takes as summands, and gradients that it is given so."""
    return sum(summands_of(g.options[o]) for g, o in zip(problem.groups, picked, strict=True))


@st.composite
def small_models(draw: st.DrawFn) -> Model:
    """Three to five operators over square tensors, any of which may read any earlier value; then a mean."""
    rows, width = 8, draw(st.sampled_from([4, 6, 64]))
    x = f32(rows, width)
    values, nodes, weights = ["x"], [], []
    for i in range(draw(st.integers(1, 2))):
        one, other = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["linear", "add", "relu"]))
        if kind == "linear" and not weights:
            weights.append(Typed(f"w{i}", f32(width, width)))
            nodes.append(node(f"n{i}", "aten.linear.default", x, f"%{one}", f"%w{i}"))
        elif kind == "add":
            nodes.append(node(f"n{i}", "aten.add.Tensor", x, f"%{one}", f"%{other}"))
        else:
            nodes.append(node(f"n{i}", "aten.relu.default", x, f"%{one}"))
        values.append(f"n{i}")
    weights.append(Typed("scale", f32(width)))
    first = node("x", "aten.mul.Tensor", x, "%data", "%scale")
    loss = node("loss", "aten.mean.dim", TensorType((), "float32"), f"%{values[-1]}", (0, 1), False)
    block = Block("Small", (), (Typed("data", x),), tuple(weights), (), (first, *nodes, loss), ("loss",))
    return chain("Small", (Typed("data", x),), (block,), (0,))


@settings(max_examples=20, deadline=None)
@given(small_models(), st.sampled_from([Weights(), Weights(1e-9, 0.0), Weights(1e-8, 1e-7), Weights(0.0, 1e-6)]))
def test_the_solver_finds_what_trying_everything_finds(model: Model, weights: Weights) -> None:
    problem = build(formulation(model, Mesh.of(dp=1, tp=2, mb=1)))
    assume(assignments(problem) <= 6000)
    found, (least, fewest) = solve(problem, weights), brute_force(problem, weights)
    assert found.objective == pytest.approx(least, rel=1e-6, abs=1e-15)
    assert summands(problem, found.options) <= fewest
    assert found.bound <= found.objective * (1 + 1e-9)


def test_of_equal_assignments_that_with_fewest_summands_is_taken() -> None:
    """A gradient is summed before the elementwise operator that it would pass as a summand on each rank."""
    problem = build(formulation(mlp(), Mesh.of(dp=1, tp=2, mb=1), split_weights=True))
    with patch("autoplan.search.intra_op.solve.SUMMAND", 0.0):
        any_ = solve(problem)
    found = solve(problem)
    assert found.objective == pytest.approx(any_.objective, rel=1e-9)
    assert summands(problem, found.options) == 0


def states(model: Model, block: int, *, cluster: str = "1x8 h100-sxm", mesh: Mesh) -> dict[str, str]:
    form = formulation(model, mesh, cluster, split_weights=True)
    problem = build(form)
    choice = block_choices(form, problem, solve(problem))[block]
    return {name: str(layout.state("tp")) for name, layout in choice.parameters}


def test_a_decoder_block_is_split_by_columns_then_rows() -> None:
    model = llama(batch=8, seq=2048, hidden=4096, ffn=14336, heads=32, kv=8, vocab=32000, layers=8, dtype="bfloat16")
    found = states(model, 1, mesh=Mesh.of(dp=1, tp=8, mb=8))
    columns = {found[f"{name}.weight"] for name in ("q", "k", "v", "gate", "up")}
    rows = {found[f"{name}.weight"] for name in ("o", "down")}
    assert (columns, rows) == ({"S(0)"}, {"S(1)"})


def test_a_boundary_is_one_layout_for_both_of_its_sides() -> None:
    form = formulation(llama(), split_weights=True)
    problem = build(form)
    embed, layer, head = block_choices(form, problem, solve(problem))
    assert embed.outputs == layer.inputs == layer.outputs == head.inputs


def test_a_tied_parameter_is_stored_in_one_layout() -> None:
    form = formulation(llama(tie=True), split_weights=True)
    problem = build(form)
    embed, _, head = block_choices(form, problem, solve(problem))
    assert dict(embed.parameters)["weight"] == dict(head.parameters)["weight"]
    assert dict(head.parameters)["weight"].state("tp").kind == "S"


@pytest.mark.parametrize("model", [mlp(), llama(), llama(tie=True)], ids=["mlp", "llama", "tied"])
@pytest.mark.parametrize("cluster", ["1x4 cpu", "1x4 h100-sxm"])
def test_the_objective_is_the_sum_of_what_is_emitted(model: Model, cluster: str) -> None:
    """On a GPU what weights' gradients hide of the inputs' sums is left out of both."""
    form = formulation(model, cluster=cluster, split_weights=True)
    problem = build(form)
    found = solve(problem)
    assert isinstance(form.prices, Prices)
    stored = sum(
        float(g.time_s[o]) for g, o in zip(problem.groups, found.options, strict=True) if g.key[0] == "stored"
    )
    emitted = sum(
        (price := price_block(block, choice, form.operators[i], form.prices)).forward_s * uses(model, i)
        + price.backward_s * uses(model, i)
        for i, (block, choice) in enumerate(zip(model.blocks, block_choices(form, problem, found), strict=True))
    )
    kept = sum(
        price_block(block, choice, form.operators[i], form.prices).kept_bytes * uses(model, i)
        for i, (block, choice) in enumerate(zip(model.blocks, block_choices(form, problem, found), strict=True))
    )
    assert found.time_s == pytest.approx(emitted + stored, rel=1e-9)
    assert found.kept_bytes == pytest.approx(kept, rel=1e-9)


def uses(model: Model, block: int) -> int:
    return sum(segment.block == block for segment in model.segments)


@pytest.mark.parametrize("model", [mlp(), llama()], ids=["mlp", "llama"])
def test_hops_lead_from_where_a_value_is_to_where_it_is_wanted(model: Model) -> None:
    form = formulation(model, split_weights=True)
    problem = build(form)
    for block, choice in zip(model.blocks, block_choices(form, problem, solve(problem)), strict=True):
        where = {v.name: {layout} for v, layout in zip(block.inputs, choice.inputs, strict=True)}
        where |= {name: {layout} for name, layout in (*choice.parameters, *choice.externals)}
        types, chosen = block.types(), dict(choice.strategies)
        where |= {n.name: {chosen[n.name].output(len(n.type.shape), form.mesh)} for n in block.nodes}
        for hop in choice.hops:
            assert hop.source in where[hop.value] and hop.target not in where[hop.value]
            where[hop.value].add(hop.target)
        for n in block.nodes:
            for i, name in enumerate(n.operands):
                assert chosen[n.name].input(i, len(types[name].shape), form.mesh) in where[name]
        assert all(layout in where[name] for name, layout in zip(block.outputs, choice.outputs, strict=True))


def test_leaner_points_hold_fewer_bytes() -> None:
    problem = build(formulation(llama(batch=8, seq=256, hidden=256, ffn=1024)))
    fastest = solve(problem)
    lean = solve(problem, Weights(1.0, 1.0))
    assert lean.state_bytes + lean.kept_bytes < fastest.state_bytes + fastest.kept_bytes
    assert lean.time_s >= fastest.time_s


def test_operators_that_are_alike_cost_the_same_whatever_they_are_called() -> None:
    """T5's two stacks have first, repeated and last layers of the same operators; one that reads a value twice, or
    takes another number, is another operator."""
    x = f32(8, 4)
    blocks = [
        Block(name, (Typed("x", x), Typed("y", x)), (), (), (), (one, other), (other.name,))
        for name, one, other in (
            ("A", node("a", "aten.add.Tensor", x, "%x", "%y"), node("b", "aten.mul.Tensor", x, "%a", 2.0)),
            ("B", node("p", "aten.add.Tensor", x, "%y", "%x"), node("q", "aten.mul.Tensor", x, "%p", 2.0)),
            ("C", node("p", "aten.add.Tensor", x, "%x", "%x"), node("q", "aten.mul.Tensor", x, "%p", 3.0)),
        )
    ]
    alike = alike_operators([operators_of(block, fuses=False) for block in blocks])
    assert alike[1, "p"] == (0, "a") and alike[1, "q"] == (0, "b")
    assert alike[2, "p"] == (2, "p") and alike[2, "q"] == (2, "q")


def test_prices_of_alike_operators_are_each_its_own() -> None:
    form = formulation(llama(), cluster="1x4 a100-sxm-80gb")
    seconds = operators_s(form, form.prices)
    assert any(form.prepared.alike[key] != key for key in seconds)
    for (index, name), found in seconds.items():
        own = form.prices.operators_s(form.operators[index][name], form.options[index, name])
        assert found.tolist() == own.tolist()
        first = form.prepared.alike[index, name]
        assert form.options[first] == form.options[index, name]


@pytest.mark.parametrize("pinned", [Parallelism(tp=2), "2d"])
def test_a_solver_out_of_time_is_not_blamed_on_sizes_or_constraints(pinned: str | Parallelism) -> None:
    cluster = ClusterSpec.parse("1x4 cpu")
    with patch.object(Solver, "run", return_value=(None, 0.0)), pytest.raises(ParallelismError) as error:
        search(llama(), cluster, Training(), resolve(pinned, cluster))
    assert "the solver found nothing within 300 s. pin other sizes, or fewer tensor axes" in str(error.value)


def test_a_pin_that_runs_out_of_time_is_not_loosened() -> None:
    """Without the pin the same problem would be solved."""
    cluster, made, solved = ClusterSpec.parse("1x4 cpu"), OperatorProblems.made, OperatorProblem.solve
    splitting: set[OperatorProblem] = set()

    def noted(
        self: OperatorProblems, candidate: Candidate, split_weights: bool, strict: bool = True
    ) -> OperatorProblem:
        found = made(self, candidate, split_weights, strict)
        splitting.update([found] if split_weights else [])
        return found

    def late(self: OperatorProblem, weights: Weights) -> IntraOpPlan:
        if self in splitting:
            raise OutOfTime("the solver found nothing within 300 s")
        return solved(self, weights)

    with (
        patch.object(OperatorProblems, "made", noted), patch.object(OperatorProblem, "solve", late),
        pytest.raises(ParallelismError, match="tensor=2: the solver found nothing within 300 s"),
    ):  # fmt: skip
        search(llama(), cluster, Training(), Parallelism(tp=2))


def test_axes_whose_operators_are_not_found_in_time_are_told() -> None:
    """And they bound nothing: another plan may be quicker by as much as the closed form allows."""
    cluster, run = ClusterSpec.parse("1x4 cpu"), Solver.run

    def late(self: Solver, *given: Any, **named: Any) -> tuple[np.ndarray | None, float]:
        is_open = any(len(group.options) > 1 for group in self.problem.groups)
        return (None, 0.0) if is_open else run(self, *given, **named)

    _, _, before = search(llama(), cluster, Training(), Parallelism(dp=2))
    with patch.object(Solver, "run", late):
        _, _, report = search(llama(), cluster, Training(), Parallelism(dp=2))
    assert not any("in time" in told for told in before.left_out)
    (told,) = (told for told in report.left_out if "in time" in told)
    assert "tensor=2" in told and told.endswith(", whose operators the solver didn't find in time")
    assert report.optimality_gap > before.optimality_gap
