"""Reading by tensors of indices: the dims that are indexed are whole, the indices split."""

from __future__ import annotations

from autoplan.graph import TensorType
from autoplan.rule import Rule, broadcast, broadcast_shape, letters, rule

PASSES = ((0,),)


@rule("aten.index.Tensor")
def index(x: TensorType, indices: tuple[TensorType | None, ...]) -> Rule:
    """x[i, :, j]: the indices broadcast to one shape, whose dims stand where the indexed ones stood, or first where
    those aren't neighbours. Masks are refused: the size of the result would depend on values."""
    given = {d: t for d, t in enumerate(indices) if t is not None}
    assert all(t.dtype not in ("bool", "uint8") for t in given.values()), "an index by a mask has no shape of its own"
    shape = broadcast_shape(*(t.shape for t in given.values()))
    terms = [f"w{d}" if d in given else f"d{d}" for d in range(len(x.shape))]
    chosen = letters(len(shape), "i").split() if shape else []
    first, last = min(given), max(given)
    where = first if last - first == len(given) - 1 else 0
    before = [t for d, t in enumerate(terms) if d not in given and d < where]
    after = [t for d, t in enumerate(terms) if d not in given and d >= where]
    operands = [" ".join(terms), *(broadcast(t, shape, "i") for t in given.values())]
    return Rule(
        f"{', '.join(operands)} -> {' '.join([*before, *chosen, *after]) or '[]'}",
        whole=frozenset(f"w{d}" for d in given),
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
