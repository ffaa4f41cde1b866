"""Contractions: one linear or matmul that keeps the batch's dims, its bias an addition of its own.

A split contraction leaves a partial sum; the bias is added once, after the reduction.
"""

from __future__ import annotations

from autoplan.errors import TraceError
from autoplan.redistribute.reshape.refinement import refine
from autoplan.trace.table import Builder, Ref, form


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


@form("aten.mm.default", "aten.matmul.default", "aten.bmm.default")
def matmul(b: Builder, x: Ref, y: Ref) -> Ref:
    """A product with a transposed matrix is a linear."""
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
    """With the padding index, whose row gets no gradient, where there is one. A sparse gradient is made dense."""
    if scale_grad_by_freq:
        raise TraceError(
            "nn.Embedding(scale_grad_by_freq=True)",
            "how often an id stands in the whole batch isn't known to a rank that has a part of it",
            "leave it out",
        )
    padding = (padding_idx,) if padding_idx >= 0 else ()
    return b.emit("aten.embedding.default", weight, ids, *padding)
