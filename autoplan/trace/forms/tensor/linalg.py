"""Linear algebra as one operator a decomposition, without what torch says of it beside the result."""

import math

import torch

from autoplan.errors import TraceError
from autoplan.ir.graph import TensorType
from autoplan.ops.decompositions import KINDS
from autoplan.trace.builder import dtype_name
from autoplan.trace.canonical_forms import Builder, Ref, form

Parts = tuple[Ref | None, ...]


def parts(b: Builder, x: Ref, kind: str, *options: object) -> tuple[Ref, ...]:
    """The results of a decomposition, cut out of the one operator that gives them."""
    found, lead = KINDS[kind](b.meta(x), *options), b.shape(x)[:-2]
    if len(dtypes := {part.dtype for part in found}) > 1:
        raise TraceError(
            f"torch.linalg.{kind} of complex matrices in module {b.module or 'the root'!r}",
            "it gives real values beside complex vectors, and one operator gives both",
            "take the values alone, by svdvals or eigvalsh",
        )
    sizes = [math.prod(part.shape[len(lead) :]) for part in found]
    type_ = TensorType((*lead, sum(sizes)), dtype_name(dtypes.pop()))
    packed = b.emit("autoplan.decomposed", x, kind, *options, type=type_, hint=kind)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    cuts = [b.slice(packed, len(lead), start, start + size) for start, size in zip(starts, sizes, strict=True)]
    return tuple(b.reshape(cut, part.shape) for cut, part in zip(cuts, found, strict=True))


@form("aten._linalg_svd.default")
def svd(b: Builder, x: Ref, full_matrices: bool = False, compute_uv: bool = True, **_: object) -> Parts:
    if not compute_uv:
        return None, b.emit("aten.linalg_svdvals.default", x), None
    return parts(b, x, "svd", bool(full_matrices))


@form("aten._linalg_eigh.default")
def eigh(b: Builder, x: Ref, triangle: str = "L", compute_v: bool = True) -> Parts:
    if not compute_v:
        return b.emit("aten.linalg_eigvalsh.default", x, triangle), None
    return parts(b, x, "eigh", triangle)


@form("aten.linalg_eig.default")
def eig(b: Builder, x: Ref) -> Parts:
    return parts(b, x, "eig")


@form("aten.linalg_qr.default")
def qr(b: Builder, x: Ref, mode: str = "reduced") -> Parts:
    if mode == "r":
        where = f"torch.linalg.qr(mode='r') in module {b.module or 'the root'!r}"
        raise TraceError(where, "torch has no gradient of it", "leave mode out")
    return parts(b, x, "qr", mode)


@form("aten.linalg_lu.default")
def lu(b: Builder, x: Ref, *, pivot: bool = True) -> Parts:
    return parts(b, x, "lu", bool(pivot))


@form("aten.linalg_lu_factor_ex.default")
def lu_factor(b: Builder, x: Ref, **_: object) -> Parts:
    where = f"torch.linalg.lu_factor in module {b.module or 'the root'!r}"
    cause = "it gives whole numbers, the pivots, beside the factors, and one operator gives both"
    raise TraceError(where, cause, "solve by torch.linalg.solve(a, b), or factor by torch.linalg.lu(a)")


@form("aten._linalg_slogdet.default")
def slogdet(b: Builder, x: Ref) -> Parts:
    return (*parts(b, x, "slogdet"), None, None)


@form("aten._linalg_det.default")
def det(b: Builder, x: Ref) -> Parts:
    return b.emit("aten.linalg_det.default", x), None, None


@form("aten.linalg_inv_ex.default")
def inverse(b: Builder, x: Ref, **_: object) -> Parts:
    return b.emit("aten.linalg_inv.default", x), None


@form("aten.linalg_cholesky_ex.default")
def cholesky(b: Builder, x: Ref, *, upper: bool = False, **_: object) -> Parts:
    return b.emit("aten.linalg_cholesky.default", x, kwargs=(("upper", bool(upper)),)), None


@form("aten._linalg_solve_ex.default")
def solve_checked(b: Builder, matrix: Ref, right: Ref, *, left: bool = True, **_: object) -> Parts:
    return solve(b, matrix, right, left=left), None, None, None


@form("aten.linalg_solve.default")
def solve(b: Builder, matrix: Ref, right: Ref, *, left: bool = True) -> Ref:
    """A X = B; X A = B is Aᵀ Xᵀ = Bᵀ. A vector is a matrix of one column."""
    shape = b.shape(right)
    vector = len(shape) == 1 or shape == b.shape(matrix)[:-1]
    if vector:
        right = b.reshape(right, (*shape, 1))
    if not left:
        matrix, right = swapped(b, matrix), swapped(b, right)
    found = b.emit("aten.linalg_solve.default", *alike(b, matrix, right))
    found = found if left else swapped(b, found)
    return b.reshape(found, b.shape(found)[:-1]) if vector else found


@form("aten.linalg_solve_triangular.default")
def solve_triangular(b: Builder, matrix: Ref, right: Ref, **said: bool) -> Ref:
    return b.emit("aten.linalg_solve_triangular.default", *alike(b, matrix, right), kwargs=tuple(said.items()))


@form("aten.cholesky_solve.default")
def cholesky_solve(b: Builder, right: Ref, factor: Ref, upper: bool = False) -> Ref:
    factor, right = alike(b, factor, right)
    return b.emit("aten.cholesky_solve.default", right, factor, bool(upper))


def swapped(b: Builder, x: Ref) -> Ref:
    return b.emit("aten.transpose.int", x, len(b.shape(x)) - 2, len(b.shape(x)) - 1)


def alike(b: Builder, matrix: Ref, right: Ref) -> tuple[Ref, Ref]:
    """Both with the dims of as many matrices."""
    lead = torch.broadcast_shapes(b.shape(matrix)[:-2], b.shape(right)[:-2])
    return b.expand(matrix, (*lead, *b.shape(matrix)[-2:])), b.expand(right, (*lead, *b.shape(right)[-2:]))
