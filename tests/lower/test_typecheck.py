"""The typechecker: it passes a sound program and names the operator of every fault that is planted in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

import autoplan.rules.builtin  # noqa: F401  importing registers the rules
from autoplan.errors import LayoutError
from autoplan.ir.choice import BlockChoice, Chosen, Predicted, StageChoice, tensor_mesh
from autoplan.ir.graph import Block, Model, Node, TensorType, Typed
from autoplan.ir.layout import I, Layout, P, R, S, State
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective, Compute, Lowered, LoweredBlock, Move, TypedValue
from autoplan.lower.lowering import lower
from autoplan.lower.typecheck import typecheck
from autoplan.options import Parallelism
from autoplan.redistribution import redistribute
from autoplan.rules.registry import AxisStrategy, rule_of
from autoplan.rules.strategies import Strategy, axis_strategies
from autoplan.search.space.batch_axes import split_batch
from tests.support.hand_made import chain, f32, llama, mlp, node
from tests.support.layouts import in_state

MESH = Mesh.of(pp=2, dp=2, tp=2, mb=2)
Wanted = dict[str, tuple[tuple[State, ...], State]]  # node -> its states on tp

MLP: Wanted = {
    "up": ((R, S(0)), S(1)),
    "up_bias": ((S(1), S(0)), S(1)),
    "act": ((S(1),), S(1)),
    "down": ((S(1), S(1)), P),
}
LLAMA: Wanted = {
    **{name: ((R, S(0)), S(2)) for name in ("q", "k", "v", "gate", "up")},
    **{name: ((S(2),), S(2)) for name in ("q4", "k4", "v4", "act")},
    **{name: ((S(2),), S(1)) for name in ("qt", "kt", "vt")},
    "attn": ((S(1), S(1), S(1)), S(1)),
    "at": ((S(1),), S(2)),
    "a2": ((S(2),), S(2)),
    "prod": ((S(2), S(2)), S(2)),
    "o": ((S(2), S(1)), P),
    "down": ((S(2), S(1)), P),
    "embed": ((S(0), R), P),
    "logits": ((R, S(0)), S(2)),
    "loss": ((S(2), R, R), I),
}


def on_tp(node: Node, types: dict[str, TensorType], carries: frozenset[str], wanted: Wanted) -> AxisStrategy:
    """The operator's strategy on tp: the one that is wanted, else everything invariant."""
    live = [name in carries for name in node.operands]
    default = (tuple(I if c else R for c in live), I if any(live) else R)
    states = wanted.get(node.name, default)
    kinds = [types[name] for name in node.operands]
    found = axis_strategies(rule_of(node, types), kinds, live)
    return next(s for s in found if (s.inputs, s.output) == states)


def tensor_parallel(model: Model, wanted: Wanted, mesh: Mesh = MESH, stages: int = 2) -> Lowered:
    """The model with the rows of its batch split over mb and dp, on tp as wanted, cut in one or two stages."""
    flat = tensor_mesh(mesh)
    over = {"mb": split_batch(model, virtual=True), "dp": split_batch(model, virtual=False)}

    def strategy(scope: int, node: Node, types: dict[str, TensorType], carries: frozenset[str]) -> Strategy:
        tp = AxisStrategy(tuple(R for _ in node.operands), R) if scope < 0 else on_tp(node, types, carries, wanted)
        axes = {"tp": tp, **{axis: split.strategies[scope, node.name] for axis, split in over.items()}}
        return Strategy(tuple((axis.name, axes[axis.name]) for axis in flat.axes))

    def layout(rank: int, scope: int, name: str, tp: State) -> Layout:
        return Layout.of(rank, {"tp": tp, **{axis: s.states[scope, name] for axis, s in over.items()}}, flat)

    blocks = []
    for index, block in enumerate(model.blocks):
        types, carries = block.types(), block.carries_gradient()
        chosen = tuple((n.name, strategy(index, n, types, carries)) for n in block.nodes)
        first = {
            name: s.input(i, len(types[name].shape), flat)
            for node, (_, s) in reversed(list(zip(block.nodes, chosen, strict=True)))
            for i, name in enumerate(node.operands)
        }
        blocks.append(
            BlockChoice(
                inputs=tuple(layout(len(v.type.shape), index, v.name, I) for v in block.inputs),
                outputs=tuple(layout(len(types[n].shape), index, n, I) for n in block.outputs),
                parameters=tuple((p.name, first[p.name]) for p in block.parameters),
                externals=tuple((e.name, layout(len(e.type.shape), index, e.name, R)) for e in block.externals),
                strategies=chosen,
                hops=(),
            )
        )
    types = {v.name: v.type for v in model.batch} | {n.name: n.type for n in model.constants}
    cuts = (0, len(model.segments)) if stages == 1 else (0, len(model.segments) // 2, len(model.segments))
    return lower(
        model,
        Chosen(
            mesh=mesh,
            parallelism=Parallelism(),
            microbatches=mesh.size("mb"),
            batch=tuple(layout(len(v.type.shape), -1, v.name, R) for v in model.batch),
            constants=tuple((n.name, strategy(-1, n, types, frozenset())) for n in model.constants),
            blocks=tuple(blocks),
            stages=tuple(StageChoice(first, last) for first, last in itertools.pairwise(cuts)),
            predicted=Predicted(0.0, 0.0, 0.0, (), 0.0, ()),
        ),
    )


@pytest.fixture
def program() -> Lowered:
    return tensor_parallel(mlp(), MLP)


def edit(lowered: Lowered, block: int, name: str, change: Callable[..., Compute | Move | None]) -> Lowered:
    """The program with one statement changed, or left out."""
    body = lowered.blocks[block].body
    assert any(s.value.name == name for s in body), [s.value.name for s in body]
    changed = tuple(change(s) if s.value.name == name else s for s in body)
    kept = tuple(s for s in changed if s is not None)
    blocks = list(lowered.blocks)
    blocks[block] = replace(blocks[block], body=kept)
    return replace(lowered, blocks=tuple(blocks))


def on_axis(compute: Compute, axis: str, strategy: AxisStrategy) -> Compute:
    return replace(compute, strategies=tuple((a, strategy if a == axis else s) for a, s in compute.strategies))


def fault(lowered: Lowered) -> str:
    with pytest.raises(LayoutError) as caught:
        typecheck(lowered)
    return str(caught.value)


def test_megatron_on_an_mlp_passes(program):
    typecheck(program)
    moves = [m for m in program.blocks[1].body if isinstance(m, Move)]
    assert [step.op for m in moves for step in m.collectives] == ["to_replicate", "all_reduce"]
    assert program.parameters[1].reduce_axes == ("dp",)


@pytest.mark.parametrize("tie", [False, True])
def test_megatron_on_a_decoder_passes(tie):
    """With a vocabulary split between the ranks, a count of valid tokens, grouped queries and reshapes."""
    wanted = {**LLAMA, "embed": ((S(0), R), P)}
    typecheck(tensor_parallel(llama(tie=tie), wanted))


def test_an_invariant_value_beside_a_split_one_is_named(program):
    message = fault(edit(program, 1, "up", lambda c: rename(c, "x_replicated", "x")))
    assert message == (
        "Layer: up = aten.linear.default of module layer.up: its operand 'x' comes as I instead of R on axis tp; the "
        "gradient of an I is whole, of an R a summand, and one taken for the other is wrong. "
        "insert to_replicate over axis tp before it."
    )


def rename(compute: Compute, old: str, new: str) -> Compute:
    refs = tuple(replace(a, name=new) if getattr(a, "name", None) == old else a for a in compute.args)
    return replace(compute, args=refs)


def test_a_strategy_that_mixes_i_with_a_split_is_none(program):
    wrong = AxisStrategy((I, S(0)), S(1), "o")
    message = fault(edit(rename_up(program), 1, "up", lambda c: on_axis(c, "tp", wrong)))
    assert "up = aten.linear.default of module layer.up: on axis tp it runs as I, S(0) -> S(1)" in message
    assert "x is an I and may not meet an R, S or P in one operator. insert to_replicate(x) over axis tp" in message


def rename_up(program: Lowered) -> Lowered:
    return edit(program, 1, "up", lambda c: rename(c, "x_replicated", "x"))


def test_a_dropped_all_reduce_is_named(program):
    dropped = edit(program, 1, "down_reduced", lambda m: None)
    message = fault(edit(dropped, 1, "out", lambda c: rename(c, "down_reduced", "down")))
    assert "out = aten.add.Tensor of module layer: its operand 'down' comes as P instead of I on axis tp" in message
    assert "insert all_reduce over axis tp before it" in message
    emptied = fault(edit(program, 1, "down_reduced", lambda m: replace(m, collectives=())))
    assert "down_reduced = down redistributed, the result of aten.linear.default of module layer" in emptied
    assert "insert all_reduce over axis tp" in emptied


def test_an_all_reduce_over_another_axis_is_named(program):
    def astray(move: Move) -> Move:
        return replace(move, collectives=tuple(replace(c, axes=("dp",)) for c in move.collectives))

    message = fault(edit(program, 1, "down_reduced", astray))
    assert "down_reduced = down redistributed, the result of aten.linear.default" in message
    assert "all_reduce over dp" in message


def test_a_collective_over_microbatches_is_named(program):
    gather = Collective("all_gather", ("mb",), (0,), "all-gather", "reduce-scatter", 0, 0)
    message = fault(edit(program, 1, "down_reduced", lambda m: replace(m, collectives=(gather,))))
    assert "all_gather over mb: microbatches can exchange nothing" in message


def test_a_size_that_would_not_run_is_named(program):
    def larger(move: Move) -> Move:
        return replace(move, collectives=tuple(replace(c, forward_bytes=c.forward_bytes * 2) for c in move.collectives))

    assert "is written where" in fault(edit(program, 1, "down_reduced", larger))


def test_an_i_for_an_r_as_the_end_of_a_redistribution_is_named(program):
    """P -> R instead of P -> I: the residual sum would then meet an I and an R."""

    def to_replicate(move: Move) -> Move:
        (step,) = move.collectives
        wrong = replace(step, op="all_reduce_to_replicate", backward="all-reduce", backward_bytes=step.forward_bytes)
        flat = tensor_mesh(program.mesh)
        value = replace(move.value, layout=in_state(move.value.layout, "tp", R, flat))
        return replace(move, value=value, collectives=(wrong,))

    message = fault(edit(program, 1, "down_reduced", to_replicate))
    assert "out = aten.add.Tensor of module layer: its operand 'down_reduced' comes as R instead of I" in message


def test_a_wrong_order_of_axes_in_a_dim_is_named(program):
    flat = tensor_mesh(program.mesh)
    source = program.blocks[1].inputs[0]
    both = Layout.of(2, {"mb": S(0), "dp": S(0), "tp": S(0)}, flat)
    swapped = Layout((("mb", "tp", "dp"), ()), both.rest)
    step = Collective("shard_invariant", ("tp",), (0,), "", "all-gather", 0, source.type.bytes // 4)
    value = replace(source, name="part", layout=swapped, local_shape=(4, 64))
    blocks = list(program.blocks)
    blocks[1] = replace(blocks[1], body=(Move(value, "x", (step,)), *blocks[1].body))
    message = fault(replace(program, blocks=tuple(blocks)))
    assert "part = x redistributed" in message
    assert "dim 0 split in the order ('mb', 'dp', 'tp'), not ('mb', 'tp', 'dp')" in message


def test_an_exchange_with_its_axes_in_the_wrong_order_is_named(program):
    """The activation's dims are to trade their axes: rows over tp, features over dp."""
    flat = tensor_mesh(program.mesh)
    act = next(s.value for s in program.blocks[1].body if s.value.name == "act")
    traded = Layout((("mb", "tp"), ("dp",)), act.layout.rest)
    steps = redistribute(act.layout, traded, act.type, flat, carries_gradient=True)
    assert steps[0].op == "permute"
    value = replace(act, name="traded", layout=traded, local_shape=traded.local_shape(act.type.shape, flat))
    blocks = list(program.blocks)

    def with_move(move: Move) -> Lowered:
        body = [s for statement in blocks[1].body for s in (statement, *([move] if statement.value == act else []))]
        return replace(program, blocks=(blocks[0], replace(blocks[1], body=tuple(body)), *blocks[2:]))

    typecheck(with_move(Move(value, "act", steps)))
    backwards = replace(steps[0], spec="tp, dp -> dp, tp")
    message = fault(with_move(Move(value, "act", (backwards, *steps[1:]))))
    assert "traded = act redistributed, the result of aten." in message
    assert "dim 0 is split by mb dp, not by tp" in message
    stays = replace(steps[0], spec="dp, tp -> dp, tp")
    message = fault(with_move(Move(value, "act", (stays, *steps[1:]))))
    assert "traded = act redistributed, the result of aten." in message


def test_a_local_size_in_the_arguments_is_checked():
    program = tensor_parallel(llama(), LLAMA)
    message = fault(edit(program, 1, "q4", lambda c: replace(c, args=(c.args[0], (2, 64, 8, 8)))))
    assert "q4 = aten.reshape.default: its arguments don't fit the shapes" in message


def test_a_result_that_does_not_follow_is_named(program):
    flat = tensor_mesh(program.mesh)

    def whole(compute: Compute) -> Compute:
        return replace(compute, value=replace(compute.value, layout=in_state(compute.value.layout, "tp", I, flat)))

    message = fault(edit(program, 1, "down", whole))
    assert "down = aten.linear.default of module layer.down: its result is said to be" in message
    assert "P instead of I on axis tp. insert all_reduce over axis tp after it" in message


def test_a_mean_that_is_not_divided_is_named(program):
    message = fault(edit(program, 2, "loss", lambda c: replace(c, divisor=1)))
    assert "loss = aten.mean.dim: it is divided by 1, a mean over these axes by 4" in message


def test_a_name_that_is_not_there_is_named(program):
    message = fault(edit(program, 1, "up_bias", lambda c: rename(c, "up", "nothing")))
    assert "up_bias = aten.add.Tensor of module layer.up: it reads 'nothing', which doesn't exist there" in message


def stored(program: Lowered, name: str, **changes: object) -> Lowered:
    assert any(p.name == name for p in program.parameters)
    parameters = tuple(replace(p, **changes) if p.name == name else p for p in program.parameters)
    return replace(program, parameters=parameters)


def test_a_gradient_that_is_never_summed_or_summed_twice_is_named(program):
    message = fault(stored(program, "1.up.weight", reduce_axes=()))
    assert "1: up.weight, parameter 1.up.weight: used as R on axis dp" in message
    assert "add dp to its reduce_axes" in message
    assert "drop tp from its reduce_axes" in fault(stored(program, "0.weight", reduce_axes=("dp", "tp")))


def test_a_parameter_stored_in_another_way_than_used_is_named(program):
    flat = tensor_mesh(program.mesh)
    message = fault(
        stored(program, "1.up.weight", layout=Layout.of(2, {"tp": S(1), "dp": I}, flat), local_shape=(256, 32))
    )
    assert "parameter 1.up.weight: it is split as" in message
    replicated = Layout.of(2, {"tp": R, "dp": I}, flat)
    assert "used as I and stored as R, not I" in fault(stored(program, "0.weight", layout=replicated))
    assert "stages (0, 1) hold it, stages (0,) use it" in fault(stored(program, "0.weight", stages=(0, 1)))


def test_segments_and_stages_hand_over_what_the_next_one_takes(program):
    flat = tensor_mesh(program.mesh)
    block = program.blocks[2]
    split = tuple(replace(v, layout=in_state(v.layout, "tp", S(1), flat), local_shape=(8, 32)) for v in block.inputs)
    blocks = (*program.blocks[:2], replace(block, inputs=split, body=()))
    message = fault(replace(program, blocks=blocks))
    assert "Loss: output loss: it reads 'loss'" in message
    stages = (program.stages[0], replace(program.stages[1], inputs=split))
    assert "stage 1, inputs: x is given as" in fault(replace(program, stages=stages))
    gap = (program.stages[0], replace(program.stages[1], first=4))
    assert "stage 1: it holds segments [4, 6), not [3, 6)" in fault(replace(program, stages=gap))


def test_a_stage_has_the_constants_that_it_reads():
    model = tensor_parallel(mlp(), MLP)
    segments = (replace(model.segments[0], externals=("elsewhere",)), *model.segments[1:])
    assert "it reads 'elsewhere', which is no constant" in fault(replace(model, segments=segments))


def test_a_loss_that_every_rank_would_count_is_named(program):
    flat = tensor_mesh(program.mesh)

    def replicate(value: TypedValue) -> TypedValue:
        return replace(value, layout=in_state(value.layout, "tp", R, flat))

    def replicated(compute: Compute) -> Compute:
        whole = AxisStrategy(tuple(R for _ in compute.strategies[0][1].inputs), R)
        return replace(rename(on_axis(compute, "tp", whole), "x", "x_replicated"), value=replicate(compute.value))

    block = program.blocks[2]
    step = Collective("to_replicate", ("tp",), (), "", "all-reduce", 0, 8 * 64 * 4)
    move = Move(replicate(replace(block.inputs[0], name="x_replicated")), "x", (step,))
    outputs = tuple(replicate(v) for v in block.outputs)
    block = replace(block, body=(move, *(replicated(c) for c in block.body)), outputs=outputs)
    stages = (program.stages[0], replace(program.stages[1], outputs=outputs))
    message = fault(replace(program, blocks=(*program.blocks[:2], block), stages=stages))
    assert "Loss: result loss: the loss is R on axis tp, so its gradient would be counted on every rank" in message


def convolutional(groups: int) -> Model:
    """A grouped convolution, an operator that has no rule, and a mean."""
    x, w, y = f32(8, 8, 6, 6), f32(8, 8 // groups, 3, 3), f32(8, 8, 4, 4)
    unit, none = (1, 1), (0, 0)
    block = Block(
        "Conv", (), (Typed("images", x),), (Typed("w", w),), (),
        (
            node("conv", "aten.convolution.default", y, "%images", "%w", None, unit, none, unit, False, none, groups),
            node("loss", "aten.mean.dim", f32(), "%conv", (0, 1, 2, 3), False),
        ),
        ("loss",),
    )  # fmt: skip
    return chain("Net", (Typed("images", x),), (block,), (0,))


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_of_a_convolution_become_local(groups):
    wanted: Wanted = {"conv": ((S(1), S(0)), S(1)), "loss": ((S(1),), P)}
    program = tensor_parallel(convolutional(groups), wanted, stages=1)
    typecheck(program)
    conv = next(s for s in program.blocks[0].body if s.value.name == "conv")
    assert isinstance(conv, Compute) and conv.args[8] == groups // 2
    message = fault(edit(program, 0, "conv", lambda c: replace(c, args=(*c.args[:8], groups))))
    assert "conv = aten.convolution.default: its arguments don't fit the shapes" in message


def test_an_operator_without_a_rule_runs_whole_and_not_otherwise(program):
    unknown = replace(program, blocks=(*program.blocks[:2], without_rule(program, "pow")))
    assert "square = mine.pow: on axis dp it runs as S(0) -> S(0), which its rule doesn't give" in fault(unknown)
    alone = tensor_parallel(mlp(), MLP, Mesh.of(pp=2, tp=2))
    typecheck(replace(alone, blocks=(*alone.blocks[:2], without_rule(alone, "pow"))))


def without_rule(program: Lowered, name: str) -> LoweredBlock:
    block = program.blocks[2]
    body = tuple(replace(s, op=f"mine.{name}") if f".{name}." in getattr(s, "op", "") else s for s in block.body)
    assert body != block.body
    return replace(block, body=body)
