"""Mixtures of experts: tokens split freely, each expert's inner dim, and the experts in two ways.

Where experts are split, either every rank has all tokens and gives a summand of their results, or each has some of the
tokens, which travel to the ranks that have their experts and back. Both are exact and drop nothing. The search takes
the cheaper (``search.intra_op``).
"""

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import P, R, S
from autoplan.rules.registry import AxisStrategy, Rule, letters, rule


@rule("autoplan.experts")
def experts(
    hidden: TensorType, index: TensorType, scores: TensorType, first: tuple[TensorType, ...], down: TensorType,
    biases: tuple[TensorType, ...], activation: str, transposed: bool, complete: bool = False,
    capacity: float | None = None, chunks: int = 1,
) -> Rule:  # fmt: skip
    """hidden [.., h], index and scores [.., k], first [e, f, h] each, down [e, o, f], biases [e, f] -> [.., o].

    capacity  that a program's tokens, which are of whole rows, were limited to before they travel
    chunks    in which a program's tokens travel
    The inner dim f leaves partial sums; without first products the tokens' own dim h does. Of a weight in which gate
    and up alternate it is the outer part.
    """
    inner = down.shape[1 if transposed else 2]
    width = first[0].shape[2 if transposed else 1] // inner if first else 1
    f, deep = "f" if width == 1 else "(f pair)", "f" if first else "h"
    dims = " ".join(letters(len(hidden.shape) - 1).replace("[]", "").split())
    weights = [f"e h {f}" if transposed else f"e {f} h" for _ in first]
    weights += [f"e {deep} o" if transposed else f"e o {deep}", *(f"e {f}" for _ in biases)]
    operands = [f"{dims} h", f"{dims} k", f"{dims} k", *weights]
    return Rule(
        f"{', '.join(operands)} -> {dims} o",
        sizes={} if width == 1 else {"pair": width, "f": inner},
        whole=("e", "k", *(["h"] if first else []), *([] if width == 1 else ["pair"])),
        linear=((2,), (3 + len(first),), *([] if first or activation != "x" else [(0,)])),
        extra=ways(len(weights), len(hidden.shape) - 1),
        cost="experts",
        saved=(0, 1, 2),
    )


def ways(weights: int, lead: int) -> tuple[AxisStrategy, ...]:
    """The strategies that split the experts: tokens whole, or split by one of their ``lead`` dims."""
    split = [S(0)] * weights
    whole = AxisStrategy((R, R, R, *split), P, body="local_experts")
    routed = [
        AxisStrategy((S(d), S(d), S(d), *split), S(d), body="routed_experts", communicates=True)
        for d in range(lead)
    ]
    return (whole, *routed)


@rule("autoplan.top_indices")
def top_indices(x: TensorType, k: int, dim: int, largest: bool = True) -> Rule:
    """Where the k greatest along a dim stand, which is whole; nothing carries a gradient through it."""
    before = " ".join("w" if d == dim else f"d{d}" for d in range(len(x.shape)))
    after = " ".join("k" if d == dim else f"d{d}" for d in range(len(x.shape)))
    return Rule(f"{before} -> {after}", whole=("w", "k"))


@rule("aten.scatter_add.default")
def scatter_add(x: TensorType, dim: int, index: TensorType, source: TensorType) -> Rule:
    """Adds the source's entries along one dim, which is whole; the other dims are those of the index."""
    dim %= len(x.shape)
    whole = [d for d in range(len(x.shape)) if d == dim or not x.shape[d] == index.shape[d] == source.shape[d]]
    terms = [
        " ".join(f"{letter}{d}" if d in whole else f"d{d}" for d in range(len(x.shape))) for letter in ("w", "v", "u")
    ]
    factors = frozenset(f"{letter}{d}" for d in whole for letter in "wvu")
    return Rule(f"{', '.join(terms)} -> {terms[0]}", whole=factors, linear=((0, 2),), saved=(1,))


@rule("autoplan.within_capacity")
def within_capacity(
    index: TensorType, scores: TensorType, experts: int, capacity: float, by_score: bool = False
) -> Rule:  # fmt: skip
    """The choices that experts take of each row's, whose tokens and choices are whole; no gradient goes through."""
    lead = " ".join(f"d{d}" for d in range(len(index.shape) - 2))
    return Rule(f"{lead} s k, {lead} s k -> {lead} s k", whole=("s", "k"))


@rule("autoplan.scattered")
def scattered(index: TensorType, source: TensorType, dim: int, size: int) -> Rule:
    """Sums of the source's entries that have the same index along a dim, which has ``size`` entries afterwards. Parts
    of the entries give partial sums."""
    before = letters(index)
    after = before.replace(f"d{dim}", "w")
    return Rule(f"{before}, {before} -> {after}", whole="w", linear=((1,),), saved=(0,))
