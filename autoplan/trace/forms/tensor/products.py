"""Products of vectors and sums of products as matmuls; an einsum stays one operator, with its equation written out."""

import string
from collections.abc import Sequence

from autoplan.trace.canonical_forms import Builder, Ref, form, renamed

renamed("aten.matmul.default", "aten.mv.default", "aten.dot.default")


renamed("aten._conj_physical.default", "aten._conj.default")  # a collective doesn't see that a view is a conjugate


@form("aten.vdot.default")
def vdot(b: Builder, x: Ref, y: Ref) -> Ref:
    if b.type(x).dtype.startswith("complex"):
        x = b.emit("aten._conj_physical.default", x)
    return b.emit("aten.matmul.default", x, y)


@form("aten.outer.default", "aten.ger.default")
def outer(b: Builder, x: Ref, y: Ref) -> Ref:
    return b.emit("aten.mul.Tensor", b.emit("aten.unsqueeze.default", x, 1), y)


def weighted_sum(b: Builder, x: Ref, product: Ref, beta: float, alpha: float) -> Ref:
    """beta * x + alpha * product; beta of zero leaves x out, whatever it holds."""
    product = product if alpha == 1 else b.emit("aten.mul.Tensor", product, alpha)
    if beta == 0:
        return product
    return b.emit("aten.add.Tensor", product, x if beta == 1 else b.emit("aten.mul.Tensor", x, beta))


@form("aten.addmv.default")
def addmv(b: Builder, x: Ref, matrix: Ref, vector: Ref, *, beta: float = 1, alpha: float = 1) -> Ref:
    return weighted_sum(b, x, b.emit("aten.matmul.default", matrix, vector), beta, alpha)


@form("aten.addr.default")
def addr(b: Builder, x: Ref, left: Ref, right: Ref, *, beta: float = 1, alpha: float = 1) -> Ref:
    return weighted_sum(b, x, outer(b, left, right), beta, alpha)


@form("aten.addbmm.default")
def addbmm(b: Builder, x: Ref, left: Ref, right: Ref, *, beta: float = 1, alpha: float = 1) -> Ref:
    product = b.emit("aten.einsum.default", "bnk,bkm->nm", (left, right))
    return weighted_sum(b, x, product, beta, alpha)


@form("aten.einsum.default")
def einsum(b: Builder, equation: str, tensors: Sequence[Ref], path: object = None) -> Ref:
    """Dots become letters, and the result is named. In which order several are multiplied is torch's to choose."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    names = left.split(",")
    ranks = [len(b.shape(x)) - len(name.replace("...", "")) for name, x in zip(names, tensors, strict=True)]
    dotted = [rank for rank, name in zip(ranks, names, strict=True) if "..." in name]
    free = [letter for letter in string.ascii_letters if letter not in equation]
    dots = "".join(free[: max(dotted, default=0)])
    written = [
        name.replace("...", dots[len(dots) - rank :] if rank else "") for name, rank in zip(names, ranks, strict=True)
    ]
    if not arrow:
        once = sorted(letter for letter in set(left) - set("., ") if left.count(letter) == 1)
        result = "..." * bool(dotted) + "".join(once)
    return b.emit("aten.einsum.default", f"{','.join(written)}->{result.replace('...', dots)}", tuple(tensors))


@form("aten.bilinear.default")
def bilinear(b: Builder, x: Ref, y: Ref, weight: Ref, bias: Ref | None = None) -> Ref:
    """x [.., i], y [.., j], weight [o, i, j] -> [.., o]."""
    result = einsum(b, "...i,oij,...j->...o", (x, weight, y))
    return result if bias is None else b.emit("aten.add.Tensor", result, bias)
