"""Running sums and products along a dim, and linear recurrences.

Where the dim of a scan is split each rank scans its part, and takes in what comes before.
"""

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import S
from autoplan.rules.registry import AxisStrategy, Rule, letters, rule


def scanned(x: TensorType, dim: int, body: str = "", linear: bool = False, saved: tuple[int | str, ...] = ()) -> Rule:
    """A scan along one dim; ``body`` runs it where that dim is split, and exchanges the parts' totals."""
    dim %= max(len(x.shape), 1)
    apart = AxisStrategy((S(dim),), S(dim), body=body, communicates=True)
    return Rule(
        f"{letters(x)} -> {letters(x)}",
        whole=f"d{dim}" if x.shape else frozenset(),
        linear=((0,),) if linear else (),
        extra=(apart,) if body and x.shape else (),
        saved=saved,
    )


@rule("aten.cumsum.default")
def cumsum(x: TensorType, dim: int, dtype: object = None) -> Rule:
    return scanned(x, dim, "split_cumsum", linear=True)


@rule("aten.cumprod.default")
def cumprod(x: TensorType, dim: int, dtype: object = None) -> Rule:
    return scanned(x, dim, "split_cumprod", saved=(0, "out"))


@rule("aten.logcumsumexp.default")
def logcumsumexp(x: TensorType, dim: int) -> Rule:
    return scanned(x, dim, "split_logcumsumexp", saved=(0, "out"))


@rule("autoplan.running_extreme")
def running_extreme(x: TensorType, dim: int, largest: bool) -> Rule:
    """Where the greatest (or least) so far stands; no gradient goes through it."""
    return scanned(x, dim)


@rule("autoplan.recurrence")
def recurrence(factor: TensorType, added: TensorType, dim: int) -> Rule:
    """state[t] = factor[t] · state[t - 1] + added[t] along ``dim``: linear in what is added."""
    terms = letters(added)
    return Rule(f"{terms}, {terms} -> {terms}", whole=f"d{dim}", linear=((1,),), saved=(0, "out"))
