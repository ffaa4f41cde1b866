"""The batch over microbatches and ranks: what follows, what stops it, what is split from nothing."""

from __future__ import annotations

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.ir.graph import Block, Buffer, Model, Parameter, Segment, TensorType, Typed
from autoplan.ir.layout import P, R, S
from autoplan.search.space.batch_axes import CONSTANTS, batch_rows, split_batch
from tests.support.hand_made import chain, f32, i64, llama, mlp, node


def test_rows_follow_through_a_decoder() -> None:
    model = llama()
    for virtual in (True, False):
        split = split_batch(model, virtual=virtual)
        assert split.reason == ""
        assert split.batch == (S(0), S(0))
        assert split.states[1, "qt"] == S(0) and split.states[1, "r2"] == S(0)
        assert split.states[2, "loss"] == P
        assert split.states[1, "q.weight"] == R


def test_a_count_is_partial_where_it_is_made_and_whole_where_it_is_read() -> None:
    split = split_batch(llama(), virtual=True)
    assert split.strategies[CONSTANTS, "valid"].output == P
    assert split.states[2, "count"] == R


def test_a_mean_over_rows_is_scaled() -> None:
    split = split_batch(mlp(), virtual=True)
    assert split.strategies[2, "loss"].scaled


def conv_net() -> Model:
    x, c = f32(8, 4, 6, 6), f32(4)
    norm = node(
        "norm", "autoplan.batch_norm", x, "%images", "%w", "%b", "%mean", "%var", None, True, 0.1, 1e-5, module="bn"
    )
    loss = node("loss", "aten.mean.dim", TensorType((), "float32"), "%norm", (0, 1, 2, 3), False)
    block = Block(
        "Net", (), (Typed("images", x),), (Typed("w", c), Typed("b", c)), (Typed("mean", c), Typed("var", c)),
        (norm, loss), ("loss",),
    )  # fmt: skip
    parameters = tuple(Parameter(name, c, name) for name in ("w", "b"))
    buffers = (Buffer("mean", c), Buffer("var", c))
    segment = Segment(0, "", ("w", "b"), ("mean", "var"), ("images",))
    return Model("Net", (Typed("images", x),), parameters, buffers, (), (), (block,), (segment,))


def test_batch_norm_allows_one_microbatch_and_many_ranks() -> None:
    microbatches = split_batch(conv_net(), virtual=True)
    assert "batch_norm" in microbatches.reason
    assert set(microbatches.states.values()) == {R}
    ranks = split_batch(conv_net(), virtual=False)
    assert ranks.reason == ""
    assert ranks.strategies[0, "norm"].communicates


def test_what_is_expanded_over_the_batch_is_split_where_it_is_made() -> None:
    """A class token, and a mask of zeros of the batch's size that meets the rows only inside the block."""
    x, token, both = f32(8, 3, 4), f32(8, 1, 4), f32(8, 4, 4)
    block = Block(
        "Tokens",
        (),
        (Typed("patches", x), Typed("zeros", token)),
        (Typed("cls", f32(1, 1, 4)),),
        (),
        (
            node("expanded", "aten.expand.default", token, "%cls", (8, 1, 4)),
            node("shifted", "aten.add.Tensor", token, "%expanded", "%zeros"),
            node("both", "aten.cat.default", both, ("%shifted", "%patches"), 1),
            node("loss", "aten.mean.dim", TensorType((), "float32"), "%both", (0, 1, 2), False),
        ),
        ("loss",),
    )
    constants = (node("zeros", "aten.full.default", token, (8, 1, 4), 0.0),)
    model = chain("Tokens", (Typed("patches", x),), (block,), (0,), constants=constants)
    split = split_batch(model, virtual=True)
    assert split.reason == ""
    assert split.states[0, "expanded"] == split.states[CONSTANTS, "zeros"] == split.states[0, "both"] == S(0)


def test_a_loss_that_mixes_rows_stops_the_split() -> None:
    x = f32(8, 8)
    block = Block(
        "Contrast", (), (Typed("a", x),), (Typed("w", x),), (),
        (
            node("h", "aten.linear.default", x, "%a", "%w"),
            node("scores", "aten.softmax.int", x, "%h", 0),
            node("loss", "aten.mean.dim", TensorType((), "float32"), "%scores", (0, 1), False),
        ),
        ("loss",),
    )  # fmt: skip
    split = split_batch(chain("Contrast", (Typed("a", x),), (block,), (0,)), virtual=False)
    assert "softmax" in split.reason and "ranks" in split.reason


def test_the_rows_of_a_batch_are_its_commonest_first_size() -> None:
    model = chain("M", (Typed("a", i64(8, 3)), Typed("positions", i64(1, 3)), Typed("b", f32(8))), (), ())
    assert batch_rows(model) == 8


def test_what_is_wanted_split_is_asked_of_operands_along_the_same_dim() -> None:
    """A mask that is computed from two whole tensors: both are split by rows, rather than one of them by keys."""
    x, rows, keys, mask = f32(8, 4, 4), f32(8, 4, 1), f32(8, 1, 4), f32(8, 4, 4)
    block = Block(
        "Masked", (), (Typed("x", x), Typed("mask", mask)), (Typed("w", f32(4)),), (),
        (
            node("weighted", "aten.mul.Tensor", x, "%x", "%w"),
            node("masked", "aten.add.Tensor", x, "%weighted", "%mask"),
            node("loss", "aten.mean.dim", TensorType((), "float32"), "%masked", (0, 1, 2), False),
        ),
        ("loss",),
    )  # fmt: skip
    constants = (
        node("rows", "aten.full.default", rows, (8, 4, 1), 0.0),
        node("keys", "aten.full.default", keys, (8, 1, 4), 0.0),
        node("mask", "aten.le.Tensor", mask, "%rows", "%keys"),
    )
    split = split_batch(chain("Masked", (Typed("x", x),), (block,), (0,), constants=constants), virtual=True)
    assert split.reason == ""
    assert split.states[CONSTANTS, "rows"] == split.states[CONSTANTS, "keys"] == S(0)
