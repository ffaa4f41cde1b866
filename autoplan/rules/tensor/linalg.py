"""Linear algebra: a matrix is whole, in the last two dims; the dims before are of as many matrices. Columns of what is
solved for split, too, and partial sums of them pass."""

from autoplan.ir.graph import TensorType
from autoplan.rules.registry import Rule, letters, rule


def leading(x: TensorType) -> str:
    return letters(len(x.shape) - 2).replace("[]", "")


@rule("aten.linalg_inv.default", "aten.linalg_cholesky.default", "aten.linalg_matrix_exp.default")
def square(x: TensorType, **said: object) -> Rule:
    lead = leading(x)
    return Rule(f"{lead} m n -> {lead} m n", whole=("m", "n"), saved=(0, "out"))


@rule("aten.cholesky_inverse.default")
def cholesky_inverse(x: TensorType, upper: bool = False) -> Rule:
    return square(x)


@rule("aten.linalg_pinv.atol_rtol_tensor")
def pseudo_inverse(x: TensorType, *, atol: object = None, rtol: object = None, hermitian: bool = False) -> Rule:
    lead = leading(x)
    return Rule(f"{lead} m n -> {lead} n m", whole=("m", "n"), saved=(0, "out"))


@rule("aten.linalg_det.default")
def determinant(x: TensorType) -> Rule:
    return Rule(f"{leading(x)} m n -> {leading(x) or '[]'}", whole=("m", "n"), saved=(0, "out"))


@rule("aten.linalg_svdvals.default", "aten.linalg_eigvalsh.default", "aten.linalg_eigvals.default")
def values(x: TensorType, *options: object, **said: object) -> Rule:
    return Rule(f"{leading(x)} m n -> {leading(x)} k", whole=("m", "n", "k"), saved=(0, "out"))


@rule("autoplan.decomposed")
def decomposed(x: TensorType, kind: str, *options: object) -> Rule:
    return Rule(f"{leading(x)} m n -> {leading(x)} p", whole=("m", "n", "p"), saved=(0, "out"))


@rule("aten.linalg_householder_product.default")
def householder(x: TensorType, factors: TensorType) -> Rule:
    lead = leading(x)
    return Rule(f"{lead} m n, {lead} k -> {lead} m n", whole=("m", "n", "k"), saved=(0, 1, "out"))


@rule("aten.linalg_solve.default")
def solve(matrix: TensorType, right: TensorType) -> Rule:
    lead = leading(matrix)
    return Rule(f"{lead} n m, {lead} m k -> {lead} n k", whole=("m", "n"), linear=((1,),), saved=(0, "out"))


@rule("aten.cholesky_solve.default")
def cholesky_solve(right: TensorType, factor: TensorType, upper: bool = False) -> Rule:
    lead = leading(right)
    return Rule(f"{lead} m k, {lead} n m -> {lead} n k", whole=("m", "n"), linear=((0,),), saved=(0, 1, "out"))


@rule("aten.linalg_solve_triangular.default")
def solve_triangular(
    matrix: TensorType, right: TensorType, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Rule:
    lead = leading(matrix)
    sides = f"{lead} m k -> {lead} n k" if left else f"{lead} k m -> {lead} k n"
    return Rule(f"{lead} n m, {sides}", whole=("m", "n"), linear=((1,),), saved=(0, "out"))
