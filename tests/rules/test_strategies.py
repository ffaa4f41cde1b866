"""From a rule to the ways to run an operator on a mesh."""

from __future__ import annotations

import pytest

from autoplan.ir.graph import Node, Ref, TensorType
from autoplan.ir.layout import PMAX, I, P, R, S
from autoplan.ir.mesh import Mesh
from autoplan.rules.nn.attention import attention
from autoplan.rules.nn.convolution import convolution
from autoplan.rules.nn.embedding import embedding
from autoplan.rules.nn.loss import cross_entropy
from autoplan.rules.registry import AxisStrategy, Rule
from autoplan.rules.strategies import Strategy, axis_strategies, bodies_agree, local_arguments, strategies
from autoplan.rules.tensor.elementwise import TABLE, elementwise, masked_fill
from autoplan.rules.tensor.matmul import linear
from autoplan.rules.tensor.reduction import amax, mean_dims
from autoplan.rules.tensor.view import reshape


def tensor(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtype)


X, W, Y = tensor(4, 6, 8), tensor(12, 8), tensor(4, 6, 12)


def states(rule: Rule, operands: list[TensorType], carries: list[bool]) -> set[tuple]:
    return {(*s.inputs, s.output) for s in axis_strategies(rule, operands, carries)}


def test_every_way_of_a_linear() -> None:
    assert states(linear(X, W), [X, W], [True, True]) == {
        (R, R, R),
        (I, I, I),
        (S(0), R, S(0)),  # batch
        (S(1), R, S(1)),  # sequence
        (R, S(0), S(2)),  # column
        (S(2), S(1), P),  # row
        (P, R, P),
        (R, P, P),
    }


def test_constants_are_neutral() -> None:
    rule = elementwise_mul()
    assert (I, R, I) in states(rule, [X, X], [True, False])
    assert all(I not in s for s in states(rule, [X, X], [False, False]))


def elementwise_mul() -> Rule:
    return Rule("a b c, a b c -> a b c", linear=((0,), (1,)))


def test_truth_values_do_not_add_up() -> None:
    mask = tensor(4, 8, dtype="bool")
    assert all(P not in s for s in states(reshape(mask, (32,)), [mask], [False]))


def test_only_the_outermost_factor_of_a_compound_dim_splits() -> None:
    x = tensor(4, 8)
    assert states(reshape(x, (4, 2, 4)), [x], [False]) == {(R, R), (S(0), S(0)), (S(1), S(1)), (P, P)}
    y = tensor(4, 2, 4)
    assert states(reshape(y, (4, 8)), [y], [False]) == {(R, R), (S(0), S(0)), (S(1), S(1)), (P, P)}


def test_a_mean_over_a_split_dim_is_scaled() -> None:
    found = [s for s in axis_strategies(mean_dims(X, (2,)), [X], [True]) if s.inputs == (S(2),)]
    assert [(s.output, s.scaled) for s in found] == [(P, True)]


def test_a_partial_maximum_has_no_gradient() -> None:
    rule = amax(X, (2,))
    assert (S(2), PMAX) in states(rule, [X], [False])
    assert (S(2), PMAX) not in states(rule, [X], [True])


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_fill_passes_partial_sums_only_with_zero(value: float) -> None:
    x, mask = tensor(4, 8), tensor(4, 1, dtype="bool")
    rule = masked_fill(x, mask, value)
    assert ((P, R, P) in states(rule, [x, mask], [True, False])) == (value == 0)
    assert (S(1), R, S(1)) in states(rule, [x, mask], [True, False])


def test_a_number_added_to_a_partial_sum_would_be_added_by_each() -> None:
    assert all(P not in s for s in states(elementwise(TABLE["aten.add.Tensor"], X, 1.0), [X], [True]))


def test_vocabulary_of_embedding_and_loss() -> None:
    table, ids = tensor(12, 8), tensor(4, 6, dtype="int64")
    found = {(*s.inputs, s.output): s for s in axis_strategies(embedding(table, ids), [table, ids], [True, False])}
    assert found[S(0), R, P].body == "vocab_parallel_embedding"
    assert found[S(1), R, S(2)].body == ""
    operands = [tensor(4, 6, 12), ids, tensor(dtype="int64")]
    loss = {(*s.inputs, s.output): s for s in axis_strategies(cross_entropy(*operands), operands, [True, False, False])}
    assert loss[S(2), R, R, I].communicates
    assert loss[S(0), S(0), R, P].body == loss[S(1), S(1), R, P].body == ""


def test_heads_and_rows_of_attention() -> None:
    q, k = tensor(2, 8, 16, 4), tensor(2, 2, 16, 4)
    rule = attention(q, k, k, None, 0.0, True, enable_gqa=True)
    found = {(*s.inputs, s.output): s.body for s in axis_strategies(rule, [q, k, k], [True] * 3)}
    assert found == {
        (R, R, R, R): "",
        (I, I, I, I): "",
        (S(0), S(0), S(0), S(0)): "",
        (S(1), S(1), S(1), S(1)): "",
        (S(1), R, R, S(1)): "grouped_attention",
        (S(2), R, R, S(2)): "causal_attention_rows",
        (S(2), S(2), S(2), S(2)): "ring_attention",
    }
    eight = strategies(rule, [q, k, k], q, [True] * 3, Mesh.of(tp=8))
    assert {s.on("tp").body for s in eight if s.on("tp").output == S(1)} == {"grouped_attention"}


def test_sizes_must_divide_by_all_axes_together() -> None:
    mesh = Mesh.of(dp=2, tp=2)
    found = strategies(linear(X, W), [X, W], Y, [True, True], mesh)
    both = [s for s in found if s.on("dp").factor == s.on("tp").factor != ""]
    assert {s.on("dp").factor for s in both} == {"d0", "n", "k"}  # 4, 12 and 8, not the 6


def test_a_body_shares_neither_dims_nor_place() -> None:
    heads = AxisStrategy((S(1), R, R), S(1), body="grouped_attention")
    rows = AxisStrategy((S(2), R, R), S(2), body="causal_attention_rows")
    groups = AxisStrategy((S(1), S(1), S(1)), S(1), "g")
    batch = AxisStrategy((S(0), S(0), S(0)), S(0), "b0")
    assert bodies_agree([heads, heads, batch])
    assert not bodies_agree([heads, rows])
    assert not bodies_agree([heads, groups])


def test_no_body_on_the_microbatches() -> None:
    table, ids = tensor(12, 8), tensor(4, 6, dtype="int64")
    mesh = Mesh.of(tp=2, mb=2)
    found = strategies(embedding(table, ids), [table, ids], tensor(4, 6, 8), [True, False], mesh)
    assert {s.on("mb").body for s in found} == {""}
    assert {s.on("tp").body for s in found} == {"", "vocab_parallel_embedding"}


def test_an_axis_may_be_pinned() -> None:
    batch = AxisStrategy((S(0), R), S(0), "d0")
    found = strategies(linear(X, W), [X, W], Y, [True, True], Mesh.of(dp=2, tp=2), {"dp": batch})
    assert {s.on("dp") for s in found} == {batch}
    assert len({s.on("tp") for s in found}) > 4


def test_layouts_of_a_strategy() -> None:
    mesh = Mesh.of(dp=2, tp=2)
    batch, row = AxisStrategy((S(0), R), S(0), "d0"), AxisStrategy((S(2), S(1)), P, "k")
    strategy = Strategy((("dp", batch), ("tp", row)))
    assert strategy.input(0, 3, mesh).local_shape((4, 6, 8), mesh) == (2, 6, 4)
    assert str(strategy.output(3, mesh)) == "dp: S(0), tp: P"


def test_sizes_become_local() -> None:
    node = Node("y", "aten.reshape.default", (Ref("x"), (4, 2, 4)), (), tensor(4, 2, 4))
    rule = reshape(tensor(4, 8), (4, 2, 4))
    assert local_arguments(rule, node, (2, 1, 4)) == ((Ref("x"), (2, 1, 4)), ())


def test_groups_of_a_convolution_become_local() -> None:
    x, w = tensor(2, 8, 5, 5), tensor(16, 2, 3, 3)
    options = ((1, 1), (0, 0), (1, 1), False, (0, 0), 4)
    node = Node("y", "aten.convolution.default", (Ref("x"), Ref("w"), None, *options), (), tensor(2, 16, 3, 3))
    args, _ = local_arguments(convolution(x, w, None, *options), node, (2, 8, 3, 3))
    assert args[8] == 2
