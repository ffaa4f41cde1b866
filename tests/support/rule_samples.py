"""A few small calls of every operator that has a rule, with real tensors: what the property tests split."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from autoplan.ir.graph import Argument, DType
from autoplan.rules.check.case import Sample
from tests.support.rule_operands import GENERATOR, bits, c, ints, positive, s, targets, x
from tests.support.rule_samples_operators import operator_samples
from tests.support.rule_samples_tables import bag_samples

__all__ = ["Argument", "DType", "Sample", "bits", "c", "ints", "positive", "s", "samples", "targets", "x"]


def elementwise_samples() -> list[Sample]:
    unary = "neg clone relu sigmoid tanh exp gelu silu mish elu leaky_relu softplus hardswish hardsigmoid hardtanh abs"
    found = [s(f"aten.{name}.default", x(4, 8)) for name in (unary + " square sin cos erf floor sign").split()]
    found.append(s("aten.detach.default", c(4, 8)))
    found += [s(f"aten.{name}.default", positive(4, 8)) for name in "sqrt rsqrt reciprocal log log1p".split()]
    found += [s(f"aten.{name}.default", c(4, 8)) for name in ("isnan", "isinf")]
    found += [s("aten.gelu.default", x(2, 4, 8), approximate="tanh"), s("aten.neg.default", x())]
    found += [s("aten.logical_not.default", bits(4, 8)), s("aten.bitwise_not.default", bits(4, 8))]
    found += [s("aten.clamp.default", x(4, 8), -0.5, 0.5), s("aten.clamp_min.default", x(4, 8), 0.0)]
    found += [s("aten.clamp_max.default", x(4, 8), 0.0), s("aten.pow.Tensor_Scalar", x(4, 8), 2)]
    found += [s("aten.pow.Scalar", 2.0, x(4, 8)), s("aten.pow.Tensor_Tensor", positive(4, 8), x(8))]
    found += [s("aten.rsub.Scalar", x(4, 8), 1.0), s("aten.remainder.Scalar", ints(9, 4, 8), 4)]
    found += [s("aten.remainder.Tensor", ints(9, 4, 8), 1 + ints(9, 8)), s("aten.maximum.default", x(4, 8), x(4, 1))]
    found += [s("aten.minimum.default", x(4, 8), c(8)), s("aten.floor_divide.default", ints(9, 4, 8), 2)]
    found += [s("aten.div.Tensor_mode", ints(9, 4, 8), 1 + ints(9, 8), rounding_mode="floor")]
    for name in ("add", "sub", "mul"):
        op = f"aten.{name}.Tensor"
        found += [s(op, x(4, 8), x(4, 8)), s(op, x(2, 4, 8), x(8)), s(op, x(4, 1), x(2, 1, 8)), s(op, x(4, 8), 3.0)]
    found += [s("aten.mul.Tensor", x(4, 8), c(1, 8)), s("aten.add.Tensor", x(4, 8), c(4, 8))]
    found += [s("aten.div.Tensor", x(4, 8), positive(8)), s("aten.div.Tensor", x(4, 8), 3.0)]
    return found


def logical_samples() -> list[Sample]:
    found = []
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        found += [s(f"aten.{name}.Tensor", ints(4, 4, 8), ints(4, 4, 1)), s(f"aten.{name}.Scalar", ints(4, 4, 8), 2)]
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__"):
        found += [s(f"aten.{name}.Tensor", bits(4, 8), bits(4, 1)), s(f"aten.{name}.Scalar", ints(8, 4, 8), 3)]
    found += [s(f"aten.logical_{name}.default", bits(4, 8), bits(8)) for name in ("and", "or", "xor")]
    found += [s("aten.to.dtype", x(4, 8), DType("float32")), s("aten.to.dtype", c(4, 8), DType("int64"))]
    found += [s("aten.to.dtype", ints(3, 4, 8), DType("float64")), s("aten.to.dtype", bits(4, 8), DType("int64"))]
    found += [s("aten.to.dtype", ints(3, 4, 8), DType("bool")), s("aten.to.dtype", ints(3), DType("float64"))]
    found += [s("aten.where.self", bits(4, 1), x(4, 8), x(8)), s("aten.where.ScalarOther", bits(4, 8), x(4, 8), 0.0)]
    found += [s("aten.where.ScalarOther", bits(4, 8), x(4, 8), 1.0), s("aten.where.Scalar", bits(4, 8), 0.0, 1.0)]
    found += [s("aten.where.ScalarSelf", bits(4, 8), 0.0, x(4, 8)), s("aten.where.ScalarSelf", bits(4, 8), 2.0, x(8))]
    found += [
        s("aten.masked_fill.Scalar", x(4, 8), bits(4, 1), 0.0),
        s("aten.masked_fill.Scalar", x(8), bits(4, 8), 2.0),
    ]
    found += [s("aten.masked_fill.Tensor", x(4, 8), bits(4, 8), x()), s("autoplan.dropout", x(4, 8, 2), 0.4)]
    found += [s("autoplan.uniform", x(4, 8, 2), 0)]
    return found


def product_samples() -> list[Sample]:
    found = [s("aten.linear.default", x(4, 6, 8), x(12, 8)), s("aten.linear.default", x(8), x(4, 8))]
    found += [s("aten.linear.default", x(4, 8), c(4, 8)), s("aten.matmul.default", x(4, 6, 8), x(8, 12))]
    found += [s("aten.matmul.default", x(2, 4, 6, 8), x(2, 4, 8, 4)), s("aten.matmul.default", x(4, 8), x(8))]
    found += [s("aten.matmul.default", x(4, 1, 6, 8), x(2, 8, 4)), s("aten.matmul.default", x(8), x(8))]
    found += [s("aten.embedding.default", x(12, 8), ints(12, 4, 6)), s("aten.embedding.default", x(12, 8), ints(12, 4))]
    found += [s("aten.embedding.default", x(12, 8), ints(4, 4, 6), 2)]
    return found


def view_samples() -> list[Sample]:
    shapes = [
        ((4, 8, 8), (4, 8, 4, 2)),
        ((4, 8, 4, 2), (4, 8, 8)),
        ((4, 6), (24,)),
        ((8, 4), (4, 8)),
        ((8, 4), (1, 32)),
    ]
    shapes += [((8, 3), (4, 6)), ((4, 6), (6, 4)), ((3, 4), (4, 3)), ((4, 3, 5), (4, 5, 3)), ((1,), ()), ((), (1, 1))]
    found = [s("aten.reshape.default", x(*before), after) for before, after in shapes]
    found += [s("aten.reshape.default", bits(4, 8), (32,)), s("aten.reshape.default", c(4, 8), (4, 2, 4))]
    found += [s("aten.transpose.int", x(2, 4, 8), 1, 2), s("aten.permute.default", x(2, 4, 8), (2, 0, 1))]
    found += [s("aten.unsqueeze.default", x(4, 8), dim) for dim in (0, 1, 2)] + [s("aten.unsqueeze.default", x(), 0)]
    found += [s("aten.squeeze.dim", x(4, 1, 8), 1), s("aten.squeeze.dim", x(1), 0)]
    found += [s("aten.expand.default", x(4, 1, 8), (4, 6, 8)), s("aten.expand.default", x(8), (4, 2, 8))]
    found += [s("aten.expand.default", x(4, 8), (4, 8)), s("aten.expand.default", c(), (4, 2))]
    return found


def slicing_samples() -> list[Sample]:
    found = [s("aten.slice.Tensor", x(4, 8), 1, 2, 6), s("aten.slice.Tensor", x(4, 8), 0, 0, 2)]
    found += [s("aten.slice.Tensor", x(4, 8), 1, 1, 8, 2), s("aten.slice.Tensor", x(4, 8), 0, 0, 4, 3)]
    found += [s("aten.select.int", x(4, 2, 8), 1, 1), s("aten.select.int", x(4), 0, 2)]
    found += [s("aten.cat.default", (x(4, 8), x(4, 4)), 1), s("aten.cat.default", (x(2, 8), c(4, 8), x(2, 8)), 0)]
    found += [s("aten.stack.default", (x(4, 8), x(4, 8)), 1), s("aten.constant_pad_nd.default", x(4, 8), (1, 2), 0.0)]
    found += [s("aten.pad.default", x(4, 2, 6, 8), (1, 2, 1, 0), mode) for mode in ("reflect", "replicate", "circular")]
    found += [s("aten.constant_pad_nd.default", x(4, 2, 8), (0, 0, 1, 1), 3.0), s("aten.cumsum.default", x(4, 8), 1)]
    found += [s("aten.diff.default", ints(9, 4, 8), 1, 1), s("aten.diff.default", x(4, 8), 1, -1, x(4, 1))]
    found += [s("aten.flip.default", x(4, 8), (1,)), s("aten.roll.default", x(4, 8), (1,), (0,))]
    found += [
        s("aten.roll.default", x(4, 8), (3,)),
        s("aten.tril.default", x(2, 4, 4)),
        s("aten.triu.default", x(4, 4), 1),
    ]
    found += [s("aten.repeat.default", x(4, 8), (2, 1, 3)), s("aten.repeat.default", x(4, 8), (1, 1))]
    found += [s("aten.index.Tensor", x(4, 8), (ints(4, 4, 1), ints(8, 1, 8)))]
    found += [s("aten.index.Tensor", x(4, 8, 2), (None, ints(8, 4), None))]
    found += [s("aten.index.Tensor", x(4, 8, 2), (ints(4, 4), None, ints(2, 4)))]
    found += [s("aten.gather.default", x(4, 8), 1, ints(8, 4, 2)), s("aten.gather.default", x(4, 8), 0, ints(4, 2, 4))]
    found += [s("aten.index_select.default", x(4, 8), 1, ints(8, 4))]
    return found


def attention_samples() -> list[Sample]:
    op = "aten.scaled_dot_product_attention.default"

    def qkv(heads: int = 4, kv: int = 4, rows: int = 8, keys: int = 8) -> tuple[Tensor, Tensor, Tensor]:
        return x(2, heads, rows, 4), x(2, kv, keys, 4), x(2, kv, keys, 4)

    found = [s(op, *qkv()), s(op, *qkv(), None, 0.0, True, scale=0.3), s(op, *qkv(rows=4), None, 0.0, False)]
    masks = [bits(2, 1, 8, 8), bits(1, 1, 8, 8), bits(2, 1, 1, 8), bits(8, 8), x(2, 4, 8, 8), x(4, 8, 8), c(1, 4, 1, 8)]
    for mask in masks:
        if mask.dtype == torch.bool:
            mask[..., 0] = True
        found.append(s(op, *qkv(), mask, 0.0, False))
    found.append(s(op, *qkv(heads=8, kv=2), None, 0.0, True, enable_gqa=True))
    found.append(s(op, *qkv(heads=12, kv=2), None, 0.0, False, enable_gqa=True))
    found.append(s(op, *qkv(heads=12, kv=4), None, 0.0, False, enable_gqa=True))
    found.append(s(op, *qkv(heads=12, kv=3), x(2, 12, 8, 8), 0.0, False, enable_gqa=True))
    found.append(s(op, *qkv(heads=4, kv=1, rows=8), None, 0.0, True, enable_gqa=True))
    found += [s(op, *qkv(kv=1), None, 0.0, True), s(op, *qkv(kv=1), masks[0], 0.0, False)]
    found.append(s(op, x(2, 4, 8, 4), x(1, 4, 8, 4), x(1, 4, 8, 4), None, 0.0, False))
    found.append(s(op, x(4, 8, 4), x(4, 8, 4), x(4, 8, 6), None, 0.0, True))
    found.append(s(op, x(8, 4), x(8, 4), x(8, 4)))
    return found


def norm_samples() -> list[Sample]:
    found = [
        s("aten.layer_norm.default", x(4, 6, 8), (8,), x(8), x(8), 1e-5),
        s("aten.layer_norm.default", x(4, 8), (8,)),
    ]
    found += [
        s("aten.layer_norm.default", x(4, 2, 8), (2, 8), x(2, 8), x(2, 8)),
        s("aten.rms_norm.default", x(4, 8), (8,)),
    ]
    found += [s("aten.rms_norm.default", x(4, 6, 8), (8,), x(8), 1e-6), s("aten.softmax.int", x(4, 6, 8), 2)]
    found += [s("aten.softmax.int", x(4, 8), 0), s("aten.log_softmax.int", x(4, 8), -1)]
    found += [s("aten.group_norm.default", x(4, 8, 3, 2), 4, x(8), x(8), 1e-5)]
    found += [s("aten.group_norm.default", x(4, 4, 6), 1, x(4), None, 1e-5), s("aten.group_norm.default", x(4, 8), 2)]
    buffers = (c(4), positive(4).detach(), torch.tensor(3))
    found += [s("autoplan.batch_norm", x(8, 4, 2, 2), x(4), x(4), *buffers, True, 0.1, 1e-5)]
    found += [s("autoplan.batch_norm", x(8, 4, 2, 2), x(4), x(4), *buffers, True, None, 1e-5)]
    found += [s("autoplan.batch_norm", x(8, 4), None, None, *buffers, False, 0.1, 1e-5)]
    found += [s("autoplan.batch_norm", x(8, 4), x(4), x(4), None, None, None, True, 0.1, 1e-5)]
    found += [s("autoplan.read_buffer", c(4, 8)), s("autoplan.update_buffer", c(4, 8), c(4, 8))]
    found += [s("autoplan.update_buffer", torch.tensor(3), torch.tensor(4))]
    return found


def loss_samples() -> list[Sample]:
    count = torch.tensor(7)
    likely, spoken = x(6, 4, 5), ints(4, 4, 3)
    lengths = (torch.tensor([6, 6, 5, 4]), torch.tensor([2, 3, 1, 0]))
    valid = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 1, 0], [0, 0, 0]]).bool()
    found = [s("autoplan.cross_entropy", x(4, 6, 8), targets(8, 4, 6), count, -100, 0.0)]
    found += [s("autoplan.cross_entropy", x(4, 8), targets(8, 4), count, -100, 0.1)]
    found += [s("autoplan.cross_entropy", (50 * c(4, 8)).requires_grad_(), ints(8, 4), count, 3, 0.0)]
    found += [s("autoplan.count_valid", targets(8, 4, 6), -100), s("autoplan.count_classes", targets(8, 4, 6), 8, -100)]
    counts, weight = torch.tensor([3, 0, 2, 5, 1, 1, 0, 4]), c(8).abs()
    op = "autoplan.weighted_cross_entropy"
    found += [s(op, x(4, 6, 8), targets(8, 4, 6), weight, counts, -100, 0.1)]
    found += [s(op, x(4, 8), targets(8, 4), weight, None, -100, 0.0)]
    found += [s(op, x(4, 8), ints(8, 4), weight, None, 2, 0.1)]
    found += [s("autoplan.ctc_losses", likely, spoken, None, *lengths, 4, False)]
    found += [s("autoplan.ctc_losses", likely, spoken, valid, *lengths, 4, True)]
    return found


def experts_samples() -> list[Sample]:
    def experts(
        h: Tensor, choices: int, shape: tuple[int, int, int], parts: int, flags: tuple[bool, bool], few: bool = False
    ) -> Sample:
        """shape: experts, inner dim, result; parts: 2 with gate and up apart, 1 with both in one, 0 without first
        products; few: all tokens have the same experts."""
        transposed, biased = flags
        count, inner, out = shape
        wide, hidden = 2 * inner // max(1, parts), h.shape[-1]
        chosen = [torch.randperm(count, generator=GENERATOR)[:choices] for _ in range(h.numel() // hidden)]
        index = torch.arange(choices).repeat(len(chosen), 1) if few else torch.stack(chosen)
        first = tuple(x(count, hidden, wide) if transposed else x(count, wide, hidden) for _ in range(parts))
        down = x(count, inner, out) if transposed else x(count, out, inner)
        biases = tuple(x(count, wide) for _ in first) if biased else ()
        gate, up = ("gate", "up") if parts == 2 else (f"slice(x, 1, {i}, 9223372036854775807, 2)" for i in (0, 1))
        text = f"mul(silu(clamp({gate}, None, 1.5)), add({up}, 1))"
        text = text if parts else "x"
        lead = h.shape[:-1]
        operands = (h, index.reshape(*lead, choices), x(*lead, choices), first, down, biases)
        return s("autoplan.experts", *operands, text, transposed)

    found = [experts(x(4, 6, 8), 2, (12, 12, 8), 2, (False, False)), experts(x(12, 8), 3, (4, 8, 12), 2, (True, True))]
    found += [experts(x(4, 8), 1, (4, 12, 8), 1, (True, True)), experts(x(4, 8), 4, (8, 4, 8), 1, (False, False))]
    found += [experts(x(12, 8), 2, (4, 4, 8), 2, (False, False), few=True)]
    found += [experts(x(4, 8), 1, (4, 8, 12), 0, (transposed, False)) for transposed in (False, True)]
    found += [s("autoplan.top_indices", x(4, 6, 8), 2, 2, True), s("autoplan.top_indices", c(8, 4), 3, 0, False)]
    found += [s("autoplan.within_capacity", ints(4, 4, 6, 2), x(4, 6, 2), 4, 0.5, by) for by in (False, True)]
    found += [s("autoplan.recurrence", x(4, 8, 2), x(4, 8, 2), 1), s("autoplan.recurrence", c(8, 4), x(8, 4), 0)]
    moves = ("P", "I"), ("P", "R"), ("I", "P"), ("R", "P"), ("I", "R"), ("R", "I"), ("S(1)", "R"), ("S(0)", "I")
    moves += ("S(0)", "S(1)"), ("I", "S(0)"), ("R", "S(1)"), ("P", "S(0)"), ("S(1)", "P")
    found += [s("autoplan.batch_move", x(4, 8), before, after) for before, after in moves]
    found += [s("autoplan.batch_move", c(4, 8), *pair) for pair in moves if "I" not in pair]
    found += [s("autoplan.scattered", ints(6, 4, 8), x(4, 8), 1, 6), s("autoplan.scattered", ints(4, 12), c(12), 0, 4)]
    found += [s("aten.scatter_add.default", x(4, 8), 1, ints(8, 4, 3), x(4, 3))]
    found += [s("aten.scatter_add.default", c(4, 8, 4), 0, ints(4, 6, 8, 4), x(6, 8, 4))]
    return found


def conv_samples() -> list[Sample]:
    def conv(a: Tensor, w: Tensor, b: Tensor | None, transposed: bool, groups: int, dims: int = 2) -> Sample:
        ones, zeros = (1,) * dims, (0,) * dims
        return s("aten.convolution.default", a, w, b, ones, ones, ones, transposed, zeros, groups)

    found = [conv(x(4, 4, 5, 5), x(8, 4, 3, 3), None, False, 1), conv(x(4, 4, 5), x(8, 4, 3), x(8), False, 1, 1)]
    found += [conv(x(4, 8, 5, 5), x(8, 2, 3, 3), None, False, 4), conv(x(2, 8, 5, 5), x(8, 1, 3, 3), x(8), False, 8)]
    found += [conv(x(4, 8, 5, 5), x(8, 4, 3, 3), None, True, 1), conv(x(4, 8, 5, 5), x(8, 2, 3, 3), None, True, 4)]
    found += [
        s("aten.max_pool2d.default", x(4, 4, 6, 6), (2, 2), (2, 2)),
        s("aten.avg_pool2d.default", x(4, 6, 6), (2, 2)),
    ]
    found += [s("aten.adaptive_avg_pool2d.default", x(4, 4, 6, 6), (2, 3))]
    twice = s("aten.convolution.default", x(4, 8, 3, 3), x(8, 4, 2, 2), None, (2, 2), (0, 0), (1, 1), True, (1, 1), 1)
    return [*found, twice, *resize_samples()]


def resize_samples() -> list[Sample]:
    found = []
    for name in ("upsample_nearest", "_upsample_nearest_exact"):
        found += [s(f"aten.{name}{n}d.vec", x(4, 8, *(3,) * n), None, (2.0,) * n) for n in (1, 2, 3)]
    for name, n in (("linear1d", 1), ("bilinear2d", 2), ("trilinear3d", 3), ("bicubic2d", 2)):
        found += [s(f"aten.upsample_{name}.vec", x(4, 8, *(3,) * n), (5,) * n, False, None)]
    return [*found, s("aten.upsample_bilinear2d.vec", x(4, 8, 3, 3), None, True, (2.0, 2.0))]


def reduction_samples() -> list[Sample]:
    found = [s("aten.sum.dim_IntList", x(4, 6, 8), (0, 2)), s("aten.sum.dim_IntList", x(4, 8), (1,), True)]
    found += [s("aten.sum.default", x(4, 8)), s("aten.sum.default", bits(4, 8)), s("aten.mean.default", x(4, 8))]
    found += [s("aten.mean.dim", x(4, 6, 8), (-1,), True), s("aten.mean.dim", x(4, 8), (0, 1))]
    found += [s("aten.amax.default", x(4, 8), (1,), True), s("aten.amax.default", c(4, 8), (1,))]
    found += [
        s("aten.amax.default", c(4, 8)),
        s("aten.amin.default", x(4, 8), (0,)),
        s("aten.var.correction", x(4, 8), (1,)),
    ]
    found += [
        s("aten.any.dim", bits(4, 8), 1),
        s("aten.all.dim", bits(4, 8), 0, True),
        s("aten.any.default", bits(4, 8)),
    ]
    found += [
        s("aten.all.default", bits(4, 8)),
        s("aten.argmax.default", c(4, 8), 1),
        s("aten.argmin.default", c(4, 8)),
    ]
    found += [s("aten.max.default", x(4, 8)), s("aten.min.default", x(4, 8))]
    return found


def constant_samples() -> list[Sample]:
    f64 = {"dtype": DType("float64")}
    found = [s("aten.full.default", (4, 8), 2.5, **f64), s("aten.zeros.default", (4, 8), **f64)]
    found += [s("aten.ones.default", (8,), **f64), s("aten.new_full.default", c(3), (4, 8), 2.0)]
    found += [s("aten.new_zeros.default", c(4, 8), (8,)), s("aten.new_ones.default", c(), (4, 8), dtype=DType("bool"))]
    found += [s("aten.full_like.default", c(4, 8), 3.0), s("aten.zeros_like.default", c(4, 8))]
    found += [s("aten.ones_like.default", c(4, 8), dtype=DType("bool")), s("aten.arange.default", 8)]
    found += [
        s("aten.arange.start", 2, 10),
        s("aten.arange.start_step", 0, 16, 2),
        s("aten.scalar_tensor.default", 2.0),
    ]
    return found


MAKERS: tuple[Callable[[], list[Sample]], ...] = (
    elementwise_samples, logical_samples, product_samples, bag_samples, view_samples, slicing_samples,
    attention_samples, norm_samples, loss_samples, experts_samples, conv_samples, reduction_samples, constant_samples,
    operator_samples,
)  # fmt: skip


def samples() -> list[Sample]:
    return [sample for maker in MAKERS for sample in maker()]
