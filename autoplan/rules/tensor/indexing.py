"""Reading by tensors of indices: the dims that are indexed are whole, the indices split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.ir.graph import TensorType
from autoplan.rules.registry import Rule, broadcast, broadcast_shape, letters, rule

PASSES = ((0,),)


@dataclass(frozen=True)
class Indexed:
    """Some dims of a tensor read, or written, at tensors of indices.

    given   the indices by the dim that they index
    shape   that they broadcast to
    terms   of the tensor: w and the dim's number where it is indexed, d and its number where not
    chosen  terms of the common shape
    where   the dim in front of which they stand: where the indexed ones stood, or first where those aren't neighbours
    """

    given: Mapping[int, TensorType]
    shape: tuple[int, ...]
    terms: tuple[str, ...]
    chosen: tuple[str, ...]
    where: int

    @staticmethod
    def of(x: TensorType, indices: Sequence[TensorType | None]) -> Indexed:
        """Masks are refused: how many values they choose depends on values."""
        given = {d: t for d, t in enumerate(indices) if t is not None}
        assert all(t.dtype not in ("bool", "uint8") for t in given.values()), "what a mask chooses has no shape"
        shape = broadcast_shape(*(t.shape for t in given.values()))
        terms = tuple(f"w{d}" if d in given else f"d{d}" for d in range(len(x.shape)))
        chosen = tuple(letters(len(shape), "i").split()) if shape else ()
        first, last = min(given), max(given)
        return Indexed(given, shape, terms, chosen, first if last - first == len(given) - 1 else 0)


@rule("aten.index.Tensor")
def index(x: TensorType, indices: tuple[TensorType | None, ...]) -> Rule:
    """x[i, :, j]: the indices broadcast to one shape, whose dims stand where ``Indexed`` says."""
    at = Indexed.of(x, indices)
    before = [t for d, t in enumerate(at.terms) if d not in at.given and d < at.where]
    after = [t for d, t in enumerate(at.terms) if d not in at.given and d >= at.where]
    operands = [" ".join(at.terms), *(broadcast(t, at.shape, "i") for t in at.given.values())]
    return Rule(
        f"{', '.join(operands)} -> {' '.join([*before, *at.chosen, *after]) or '[]'}",
        whole=frozenset(f"w{d}" for d in at.given),
        linear=PASSES,
        saved=tuple(range(1, len(operands))),
    )


@rule("aten.gather.default")
def gather(x: TensorType, dim: int, indices: TensorType) -> Rule:
    """A dim in which the indices are fewer than x has is whole in x; along ``dim`` the indices split."""
    dim %= len(x.shape)
    own = [i for i in range(len(x.shape)) if i == dim or x.shape[i] != indices.shape[i]]
    before = [f"w{i}" if i in own else f"d{i}" for i in range(len(x.shape))]
    after = [f"v{i}" if i in own and i != dim else f"d{i}" for i in range(len(x.shape))]
    whole = frozenset(f"{letter}{i}" for i in own for letter in "wv")
    spec = f"{' '.join(before) or '[]'}, {' '.join(after) or '[]'} -> {' '.join(after) or '[]'}"
    return Rule(spec, whole=whole, linear=PASSES, saved=(1,))


@rule("aten.index_select.default")
def index_select(x: TensorType, dim: int, indices: TensorType) -> Rule:
    dim %= len(x.shape)
    terms = [f"d{i}" for i in range(len(x.shape))]
    before = " ".join([*terms[:dim], "w", *terms[dim + 1 :]])
    after = " ".join([*terms[:dim], "n", *terms[dim + 1 :]])
    return Rule(f"{before}, n -> {after}", whole="w", linear=PASSES, saved=(1,))
