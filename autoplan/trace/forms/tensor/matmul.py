"""Contractions: one linear or matmul that keeps the batch's dims, its bias an addition of its own.

A split contraction leaves a partial sum; the bias is added once, after the reduction.
"""

from collections.abc import Callable

from autoplan.errors import TraceError
from autoplan.redistribution.common_refinement import refine
from autoplan.trace.canonical_forms import Builder, Ref, form


def unflattened(b: Builder, x: Ref) -> Ref:
    """What a two-dim operand was before its leading dims were flattened together (GPT-2's Conv1D does so).

    Flattened, the batch and the sequence are one dim, of which only the outer one could be split. One reshape may merge
    dims of the rows as well, as nn.MultiheadAttention's does: [s, b, h, d] -> [s * b, h * d] was [s, b, h * d].
    """
    before = b.maker(x, "aten.reshape.default")
    if before is None or len(b.shape(x)) != 2:
        return x
    source = before.args[0]
    assert isinstance(source, Ref)
    if len(b.shape(source)) > 2 and b.shape(source)[-1] == b.shape(x)[-1]:
        return source
    refinement = refine(b.shape(source), b.shape(x))
    leading, _ = refinement.after
    if refinement.opaque or len(leading) < 2:
        return x
    return b.reshape(source, (*(piece.size for piece in leading), b.shape(x)[-1]))


def contraction(b: Builder, op: str, x: Ref, weight: Ref, bias: Ref | None) -> Ref:
    whole = unflattened(b, x)
    result = b.emit(op, whole, weight)
    if bias is not None:
        result = b.emit("aten.add.Tensor", result, bias)
    return b.reshape(result, (*b.shape(x)[:-1], b.shape(result)[-1]))


@form("aten.linear.default")
def linear(b: Builder, x: Ref, weight: Ref, bias: Ref | None = None) -> Ref:
    return contraction(b, "aten.linear.default", x, weight, bias)


@form("aten.addmm.default")
def addmm(b: Builder, bias: Ref, x: Ref, weight: Ref, beta: float = 1, alpha: float = 1) -> Ref:
    if (beta, alpha) == (1, 1):
        return contraction(b, "aten.matmul.default", x, weight, bias)
    product = b.emit("aten.mul.Tensor", contraction(b, "aten.matmul.default", x, weight, None), alpha)
    return b.emit("aten.add.Tensor", product, b.emit("aten.mul.Tensor", bias, beta))


@form("aten.baddbmm.default")
def baddbmm(b: Builder, x: Ref, left: Ref, right: Ref, beta: float = 1, alpha: float = 1) -> Ref:
    product = matmul(b, left, right)
    if alpha != 1:
        product = above_reshape(b, product, lambda whole: b.emit("aten.mul.Tensor", whole, alpha))
    if beta == 0:
        return product
    added = x if beta == 1 else b.emit("aten.mul.Tensor", x, beta)
    before = b.maker(product, "aten.reshape.default")
    if before is None or len(b.shape(added)) != 3:
        return b.emit("aten.add.Tensor", product, added)
    (whole, _), size = before.args, b.shape(added)
    assert isinstance(whole, Ref)
    leading = b.shape(whole)[:-2] if size[0] != 1 else (1,) * (len(b.shape(whole)) - 2)
    return b.reshape(b.emit("aten.add.Tensor", whole, b.reshape(added, (*leading, *size[1:]))), b.shape(product))


def above_reshape(b: Builder, x: Ref, change: Callable[[Ref], Ref]) -> Ref:
    """An operator on each element, on what a reshape reads in place of what it makes."""
    before = b.maker(x, "aten.reshape.default")
    if before is None:
        return change(x)
    assert isinstance(before.args[0], Ref)
    return b.reshape(change(before.args[0]), b.shape(x))


def apart(b: Builder, x: Ref) -> Ref:
    """What a three-dim operand was before its leading dims, batch and heads, were merged into one: of that one only the
    batch could be split. The last two may have been transposed since."""
    turned = b.maker(x, "aten.transpose.int")
    if turned is not None and set(turned.args[1:]) == {1, 2}:
        assert isinstance(turned.args[0], Ref)
        before = apart(b, turned.args[0])
        rank = len(b.shape(before))
        return x if before is turned.args[0] else b.emit("aten.transpose.int", before, rank - 2, rank - 1)
    merged = b.maker(x, "aten.reshape.default")
    source = merged.args[0] if merged is not None else x
    assert isinstance(source, Ref)
    return source if len(b.shape(source)) > 3 and b.shape(source)[-2:] == b.shape(x)[-2:] else x


@form("aten.mm.default", "aten.matmul.default", "aten.bmm.default")
def matmul(b: Builder, x: Ref, y: Ref) -> Ref:
    """A product with a transposed matrix is a linear; of merged heads one of heads."""
    if len(b.shape(x)) == len(b.shape(y)) == 3:
        left, right = apart(b, x), apart(b, y)
        if b.shape(left)[:-2] == b.shape(right)[:-2] and left is not x:
            product = b.emit("aten.matmul.default", left, right)
            return b.reshape(product, (b.shape(x)[0], *b.shape(product)[-2:]))
    if len(b.shape(y)) != 2:
        return b.emit("aten.matmul.default", x, y)
    turned = b.maker(y, "aten.transpose.int")
    if turned is not None:
        weight = turned.args[0]
        assert isinstance(weight, Ref)
        return contraction(b, "aten.linear.default", x, weight, None)
    return contraction(b, "aten.matmul.default", x, y, None)


@form("aten.embedding.default")
def embedding(
    b: Builder, weight: Ref, ids: Ref, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Ref:
    """With the padding index, whose row gets no gradient, where there is one. A sparse gradient is made dense, which
    a report tells."""
    if scale_grad_by_freq:
        raise TraceError(
            "nn.Embedding(scale_grad_by_freq=True)",
            "how often an id stands in the whole batch isn't known to a rank that has a part of it",
            "leave it out",
        )
    padding = (padding_idx,) if padding_idx >= 0 else ()
    if sparse:
        b.sparse.add(weight.name)
    return b.emit("aten.embedding.default", weight, ids, *padding)
