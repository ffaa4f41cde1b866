"""Tensor parallelism over two and three axes: what named systems ask, the problem over several axes, equal to one
device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autoplan.cluster import ClusterSpec
from autoplan.cost import Operator, Prices, operators_of
from autoplan.errors import ParallelismError
from autoplan.ir.choice import Chosen
from autoplan.ir.graph import Model
from autoplan.ir.layout import Layout, S, State
from autoplan.ir.mesh import Mesh
from autoplan.options import Parallelism, Training
from autoplan.rules.strategies import Strategy
from autoplan.search.block_cost.account import price_block
from autoplan.search.entry import search
from autoplan.search.explain.dp_axis_check import checked
from autoplan.search.further.factoring import parts_that_divide
from autoplan.search.intra_op.flows import ways_of
from autoplan.search.intra_op.intra_op_plan import block_choices
from autoplan.search.intra_op.operator_options import formulate
from autoplan.search.intra_op.problem import build
from autoplan.search.intra_op.problem_inputs import OperatorInputs, prepare
from autoplan.search.intra_op.solve import solve
from autoplan.search.space.candidates import SpaceLimits, factorings
from autoplan.search.space.systems import resolve
from autoplan.search.space.tensor_axes import SYSTEMS, product_role, system_factors
from tests.support.hand_made import f32, llama, mlp
from tests.support.planning import alone, parallelize_alone
from tests.support.zoo import small

DEVICES = {"2d": 4, "2.5d": 8, "3d": 8}


def plan(model: Model, parallelism: str | Parallelism, devices: int) -> Chosen:
    cluster = ClusterSpec.parse(f"1x{devices} cpu")
    pinned = replace(resolve(parallelism, cluster), micro_batch=4)
    with alone():
        return search(model, cluster, Training(), pinned, (), "fast")[0]


def formulation(model: Model, mesh: Mesh, free: str = "", *, split: bool = False) -> OperatorInputs:
    topology = ClusterSpec.parse("1x8 cpu").topology()
    prices = Prices(mesh, topology, True, True, mesh.size("mb"), 7.0, direct=True)
    prepared = prepare(model, (), fuses=True, training=True)
    return formulate(prepared, mesh, prices, split_weights=split, free=free)


def products(model: Model, chosen: Chosen) -> Iterator[tuple[Operator, Strategy, Layout]]:
    """Every product with a weight: how it runs, and how the weight is stored."""
    for block, choice in zip(model.blocks, chosen.blocks, strict=True):
        known, stored = operators_of(block, fuses=True), dict(choice.parameters)
        for name, strategy in choice.strategies:
            operands = known[name].node.operands
            if known[name].rule.cost == "matmul" and operands[1] in stored:
                yield known[name], strategy, stored[operands[1]]


@pytest.mark.parametrize("name", ["2d", "2.5d", "3d"])
def test_a_named_system_uses_each_of_its_axes(name: str) -> None:
    model, system = mlp(), SYSTEMS[name]
    chosen = plan(model, name, DEVICES[name])
    assert chosen.mesh.operator_axes == ("tp", "tp2", "tp3")[: len(system.axes)]
    assert all(chosen.mesh.size(axis) == 2 for axis in system.axes)
    assert (chosen.parallelism.tensor_system, chosen.parallelism.tp) == (name, DEVICES[name])
    for operator, strategy, stored in products(model, chosen):
        assert {axis for axis in system.axes if stored.state(axis).kind == "S"} == set(system.weights)
        roles = {axis: product_role(operator, strategy.on(axis)) for axis in system.axes}
        assert sorted(roles[axis] for axis in system.axes if axis not in system.whole) == ["k", "n"]
        assert all(roles[axis] == "m" for axis in system.whole)
    for layout in (x for block in chosen.blocks for x in block.inputs):
        assert layout.state(system.features) == S(1) and all(layout.state(axis) == S(0) for axis in system.rows)


def test_a_three_dimensional_plan_gathers_weights_in_each_microbatch() -> None:
    chosen = plan(mlp(), "3d", 8)
    steps = [s for b in chosen.blocks for h in b.hops if h.value.endswith("weight") for s in h.steps or ()]
    assert steps and {(s.op, s.axes) for s in steps} == {("all_gather", ("tp3",))}


@pytest.mark.parametrize(
    ("name", "devices", "factors"),
    [("2d", 4, (2, 2)), ("2d", 8, (2, 2)), ("2d", 16, (4, 4)), ("2.5d", 8, (2, 2, 2)), ("2.5d", 4, ()),
     ("2.5d", 32, (2, 4, 4)), ("3d", 8, (2, 2, 2)), ("3d", 16, (2, 2, 2)), ("3d", 4, ())],
)  # fmt: skip
def test_the_grid_of_a_system(name: str, devices: int, factors: tuple[int, ...]) -> None:
    assert system_factors(name, devices) == factors


def test_a_grid_that_devices_can_not_make_is_refused() -> None:
    with pytest.raises(ParallelismError, match="4 devices make no grid of l x l x l"):
        resolve("3d", ClusterSpec.parse("1x4 cpu"))
    with pytest.raises(ParallelismError, match="it multiplies to 8, and tp is 4"):
        Parallelism(tp=4, tensor=(2, 4))


def test_factors_may_be_pinned() -> None:
    chosen = plan(mlp(batch=4), Parallelism(tensor=(2, 2), zero=0), 4)
    assert str(chosen.mesh) == "pp=1 dp=1 tp=2 tp2=2 mb=1"
    used = {axis for b in chosen.blocks for _, x in b.parameters for axis, s in x.states().items() if s.kind == "S"}
    assert used == {"tp", "tp2"}


def test_a_tensor_axis_over_nodes_is_tried_whole_and_factored_at_their_border() -> None:
    limits = SpaceLimits(devices=16, node=8, rows=16, segments=4)
    assert factorings(limits, Parallelism(tp=16), 16) == [(), (2, 8)]
    assert factorings(limits, Parallelism(), 8) == [()]
    assert factorings(limits, Parallelism(tensor=(4, 4)), 16) == [(4, 4)]


def test_a_tensor_axis_is_worth_factoring_where_heads_divide_by_a_part_of_it() -> None:
    for kv, parts in ((2, {2}), (8, set())):
        model = llama(batch=8, seq=64, hidden=64, heads=8, kv=kv)
        prepared = prepare(model, (), fuses=True, training=True)
        assert set(parts_that_divide(prepared, 8)) == parts


def test_an_axis_of_one_member_changes_nothing() -> None:
    model = llama(batch=4, seq=16, layers=2)
    one = solve(build(formulation(model, Mesh.of(dp=1, tp=2, mb=1), split=True)))
    two = solve(build(formulation(model, Mesh.of(dp=1, tp=2, tp2=1, mb=1), split=True)))
    assert one.objective == pytest.approx(two.objective, rel=1e-9)


def test_the_objective_over_two_axes_is_the_sum_of_what_is_emitted() -> None:
    model = mlp()
    form = formulation(model, Mesh.of(dp=1, tp=2, tp2=2, mb=2), split=True)
    problem = build(form)
    found = solve(problem)
    assert isinstance(form.prices, Prices)
    total = sum(float(g.time_s[o]) for g, o in zip(problem.groups, found.options, strict=True) if g.key[0] == "stored")
    for index, (block, choice) in enumerate(zip(model.blocks, block_choices(form, problem, found), strict=True)):
        price = price_block(block, choice, form.operators[index], form.prices)
        total += sum(s.block == index for s in model.segments) * (price.forward_s + price.backward_s)
    assert found.time_s == pytest.approx(total, rel=1e-9)


def test_ways_over_two_axes_are_composed_of_arcs_that_change_one_or_both_alike() -> None:
    mesh = Mesh.of(dp=1, tp=2, tp2=2, mb=1)

    def layout(one: State, other: State) -> Layout:
        return Layout.of(2, {"tp": one, "tp2": other}, mesh)

    given, taken = layout(S(0), S(1)), layout(S(1), S(0))
    flow = ways_of(f32(4, 4), [given], [taken], True, None, ("tp", "tp2"), mesh)
    assert set(flow.layouts) == {layout(a, b) for a in (S(0), S(1)) for b in (S(0), S(1))}
    for here, there in flow.arcs.tolist():
        before, after = flow.layouts[here].states(), flow.layouts[there].states()
        changes = {(before[a], after[a]) for a in before if before[a] != after[a]}
        assert len(changes) == 1


def test_with_the_data_axis_free_nothing_is_dearer() -> None:
    mesh = Mesh.of(dp=2, tp=2, mb=1)
    model = mlp(batch=64, width=64, hidden=256)
    pinned, free = formulation(model, mesh), formulation(model, mesh, "dp")
    assert free.searched == ("dp", "tp")
    result = checked(pinned, solve(build(pinned)), free)
    assert result.free_s <= result.pinned_s * (1 + 1e-9)
    assert str(result).startswith("with the data axis free: ")
    assert bool(result.leaving) or result.free_s == pytest.approx(result.pinned_s)


@pytest.mark.parametrize(
    ("model", "name"),
    [("mlp", "2d"), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in
                      (("llama", "2d"), ("mlp", "3d"), ("llama", "2.5d"), ("llama", "3d")))],
)  # fmt: skip
def test_a_named_system_equals_one_device(model: str, name: str) -> None:
    module, batch, loss = small(model)
    cluster = f"1x{DEVICES[name]} cpu"
    made = parallelize_alone(module, cluster, batch, loss_fn=loss, parallelism=name)
    assert made.verify().passed
