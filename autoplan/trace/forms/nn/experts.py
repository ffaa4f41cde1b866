"""Experts and the choice of them."""

from collections.abc import Sequence

from autoplan.ir.graph import TensorType
from autoplan.trace.canonical_forms import Builder, Ref, form, positive


@form("autoplan.experts.default")
def experts(
    b: Builder, hidden: Ref, index: Ref, scores: Ref, first: Sequence[Ref], down: Ref, biases: Sequence[Ref],
    activation: str, transposed: bool, complete: bool, keep: bool, keep_activated: bool,
) -> tuple[Ref | None, ...]:  # fmt: skip
    """Tokens keep the dims that they had before they were flattened, so that the batch and the sequence can be split
    apart. Indices that are a choice among all experts name one each."""
    complete = choices_in(b, index, b.shape(down)[0]) is not None
    flat = b.shape(hidden)
    before = b.maker(hidden, "aten.reshape.default")
    if before is not None and isinstance(before.args[0], Ref) and b.shape(before.args[0])[-1] == flat[-1]:
        hidden = before.args[0]
        index, scores = (b.reshape(x, (*b.shape(hidden)[:-1], b.shape(x)[-1])) for x in (index, scores))
    width = b.shape(down)[2 if transposed else 1]
    kind = TensorType((*b.shape(hidden)[:-1], width), b.type(hidden).dtype)
    args = (hidden, index, scores, tuple(first), down, tuple(biases), activation, bool(transposed), complete)
    result = b.emit("autoplan.experts", *args, type=kind, hint="experts")
    return b.reshape(result, (*flat[:-1], width)), None


@form("aten.topk.default")
def topk(
    b: Builder, x: Ref, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Ref, Ref]:
    """Two operators: where the greatest stand, which carries no gradient, and what stands there."""
    dim = positive(dim, len(b.shape(x)))
    shape = tuple(k if d == dim else size for d, size in enumerate(b.shape(x)))
    kind = TensorType(shape, "int64")
    index = b.emit("autoplan.top_indices", x, int(k), dim, bool(largest), type=kind, hint="top_indices")
    return b.emit("aten.gather.default", x, dim, index, hint="top_values"), index


@form("aten.scatter_add.default")
def scatter_add(b: Builder, x: Ref, dim: int, index: Ref, source: Ref) -> Ref:
    """Onto zeros it is a sum of what is scattered, of which ranks may have a part each."""
    shape = b.shape(x)
    dim = positive(dim, len(shape))
    made = b.maker(x, "aten.full.default") or b.maker(x, "aten.zeros.default") or b.maker(x, "aten.new_zeros.default")
    zeros = made is not None and (made.op != "aten.full.default" or made.args[1] == 0)
    fits = b.shape(index) == b.shape(source) == (*shape[:dim], b.shape(index)[dim], *shape[dim + 1 :])
    if zeros and fits:
        return b.emit("autoplan.scattered", index, source, dim, shape[dim], type=b.type(x), hint="scattered")
    return b.emit("aten.scatter_add.default", x, dim, index, source)


@form("aten.histc.default")
def histc(b: Builder, x: Ref, bins: int = 100, min: float = 0, max: float = 0) -> Ref:
    """How often each was chosen, where what is counted are choices among as many as there are bins."""
    index = choices_in(b, x, bins)
    if index is None or (min, max) != (0, bins):
        return b.emit("aten.histc.default", x, bins, min, max)
    dtype = b.type(x).dtype
    ones = b.full(b.shape(x), 1, dtype)
    return b.emit(
        "autoplan.scattered", b.reshape(index, b.shape(x)), ones, 0, bins, type=TensorType((bins,), dtype),
        hint="chosen",
    )  # fmt: skip


def choices_in(b: Builder, x: Ref, among: int) -> Ref | None:
    """The choices among so many that numbers are, cast and reshaped; None where they are something else."""
    while len(b.shape(x)) == 1 or b.type(x).floating:
        made = b.maker(x, "aten.to.dtype") or b.maker(x, "aten.reshape.default")
        if made is None:
            return None
        x = Ref(made.operands[0])
    made = b.maker(x, "autoplan.top_indices")
    if made is None:
        return None
    dim = made.args[2]
    assert isinstance(dim, int)
    return x if b.shape(Ref(made.operands[0]))[dim] == among else None


@form("aten.max.dim")
def max_along(b: Builder, x: Ref, dim: int, keepdim: bool = False) -> tuple[Ref, Ref]:
    """The first of the greatest, and where it stands."""
    return picked(b, *topk(b, x, 1, dim), positive(dim, len(b.shape(x))), keepdim)


def picked(b: Builder, values: Ref, index: Ref, dim: int, keepdim: bool) -> tuple[Ref, Ref]:
    if keepdim:
        return values, index
    return b.emit("aten.squeeze.dim", values, dim), b.emit("aten.squeeze.dim", index, dim)
