"""Writing by tensors of indices: the dims that are indexed are whole, the others split."""

from autoplan.ir.graph import TensorType
from autoplan.rules.registry import Rule, broadcast, letters, rule
from autoplan.rules.tensor.indexing import Indexed
from autoplan.rules.tensor.slicing import along


def beside(dim: int, x: TensorType, *others: TensorType) -> tuple[str, frozenset[str]]:
    """The notation of a scatter along a dim, and its whole factors: a dim splits in which all are of one size."""
    dim %= max(len(x.shape), 1)
    tensors = (x, *others)
    same = [d for d in range(len(x.shape)) if d != dim and len({t.shape[d] for t in tensors}) == 1]
    terms = [" ".join(f"d{d}" if d in same else f"{k}{d}" for d in range(len(x.shape))) for k in "wvu"[: len(tensors)]]
    whole = frozenset(factor for term in terms for factor in term.split() if factor[0] != "d")
    return f"{', '.join(term or '[]' for term in terms)} -> {terms[0] or '[]'}", whole


@rule("aten.scatter.src")
def scatter(x: TensorType, dim: int, index: TensorType, source: TensorType) -> Rule:
    """Linear in both at once: what is overwritten adds nothing."""
    spec, whole = beside(dim, x, index, source)
    return Rule(spec, whole=whole, linear=((0, 2),), saved=(1,))


@rule("aten.scatter.value")
def scatter_number(x: TensorType, dim: int, index: TensorType, value: float) -> Rule:
    spec, whole = beside(dim, x, index)
    return Rule(spec, whole=whole, linear=((0,),) if value == 0 else (), saved=(1,))


@rule("aten.scatter_reduce.two")
def scatter_reduce(
    x: TensorType, dim: int, index: TensorType, source: TensorType, reduce: str, *, include_self: bool = True
) -> Rule:
    spec, whole = beside(dim, x, index, source)
    linear = ((0, 2),) if reduce in ("sum", "mean") else ()
    return Rule(spec, whole=whole, linear=linear, saved=(1,) if reduce == "sum" else (0, 1, 2, "out"))


@rule("aten.index_put.default")
def index_put(
    x: TensorType, indices: tuple[TensorType | None, ...], values: TensorType, accumulate: bool = False
) -> Rule:
    """x[i, :, j] = values: the indices' common dims stand in the values where ``Indexed`` says."""
    at = Indexed.of(x, indices)
    given, shape, terms, chosen, where = at.given, at.shape, at.terms, at.chosen, at.where
    free = [(d, t) for d, t in enumerate(terms) if d not in given]
    written = [*(t for d, t in free if d < where), *chosen, *(t for d, t in free if d >= where)]
    sizes = [*(x.shape[d] for d, _ in free if d < where), *shape, *(x.shape[d] for d, _ in free if d >= where)]
    own = written[len(written) - len(values.shape) :] if values.shape else []
    target = sizes[len(sizes) - len(values.shape) :] if values.shape else []
    put = ["1" if size == 1 and to != 1 else t for t, size, to in zip(own, values.shape, target, strict=True)]
    operands = [" ".join(terms), *(broadcast(t, shape, "i") for t in given.values()), " ".join(put) or "[]"]
    return Rule(
        f"{', '.join(operands)} -> {' '.join(terms)}",
        whole=frozenset({*(f"w{d}" for d in given), *chosen}),
        linear=((0, len(operands) - 1),),
        saved=tuple(range(1, len(operands) - 1)),
    )


@rule("aten.slice_scatter.default")
def slice_scatter(
    x: TensorType, source: TensorType, dim: int, start: int | None = None, stop: int | None = None, step: int = 1
) -> Rule:
    spec, whole = beside(dim, x, source)
    return Rule(spec, whole=whole, linear=((0, 1),))


@rule("aten.masked_scatter.default")
def masked_scatter(x: TensorType, mask: TensorType, source: TensorType) -> Rule:
    """The source's entries in order, wherever the mask is true: how many came before decides, so all is whole."""
    terms = [broadcast(mask, x.shape), letters(source, "s")]
    spec = f"{letters(x)}, {', '.join(terms)} -> {letters(x)}"
    factors = Rule(spec).factors
    return Rule(spec, whole=frozenset(factors), saved=(1,))


@rule("aten.diagonal.default")
def diagonal(x: TensorType, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Rule:
    """Two dims become one, which comes last."""
    rank = len(x.shape)
    both = {dim1 % rank, dim2 % rank}
    before = [f"w{d}" if d in both else f"d{d}" for d in range(rank)]
    after = [f"d{d}" for d in range(rank) if d not in both]
    return Rule(
        f"{' '.join(before)} -> {' '.join([*after, 'v'])}",
        whole=frozenset({"v", *(f"w{d}" for d in both)}),
        linear=((0,),),
        cost="free",
    )


@rule("aten.unfold.default")
def unfold(x: TensorType, dim: int, size: int, step: int) -> Rule:
    """Windows along a dim, laid out in a last one."""
    inside = along(x, (dim % max(len(x.shape), 1),))
    return Rule(f"{inside.spec} v", whole=frozenset({*inside.whole, "v"}), linear=((0,),), cost="free")
