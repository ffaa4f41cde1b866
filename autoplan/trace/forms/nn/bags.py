"""Bags of a table's rows: of one length each, whose rows of the batch can be split, or as offsets say."""

from autoplan.ir.graph import TensorType
from autoplan.trace.canonical_forms import Builder, Ref, form

MODES = ("sum", "mean", "max")


@form("aten.embedding_bag.padding_idx", "aten.embedding_bag.default")
def embedding_bag(
    b: Builder, weight: Ref, indices: Ref, offsets: Ref, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, scales: Ref | None = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Ref | None, ...]:  # fmt: skip
    """Pooled rows; what else ATen returns it keeps for itself. Gradients are dense, also where ``sparse`` asks for
    others, which a report tells; one that is scaled by how often an index stands in the batch is left as an operator
    without a rule."""
    if scale_grad_by_freq:
        given = (weight, indices, offsets, scale_grad_by_freq, mode, sparse, scales, include_last_offset, padding_idx)
        kind = TensorType((b.shape(offsets)[0], b.shape(weight)[1]), b.type(weight).dtype)
        return b.emit("aten.embedding_bag.padding_idx", *given, type=kind), None, None, None
    if sparse:
        b.sparse.add(weight.name)
    padding = -1 if padding_idx is None else padding_idx % b.shape(weight)[0]
    length = even_length(b, indices, offsets)
    if length is not None:
        shape = (b.shape(offsets)[0], length)
        scaled = None if scales is None else b.reshape(scales, shape)
        even = (weight, b.reshape(indices, shape), scaled, MODES[mode], padding)
        kind = TensorType((shape[0], b.shape(weight)[1]), b.type(weight).dtype)
        return b.emit("autoplan.embedding_bag", *even, type=kind, hint="embedding_bag"), None, None, None
    bags = b.shape(offsets)[0] - int(include_last_offset)
    kind = TensorType((bags, b.shape(weight)[1]), b.type(weight).dtype)
    offsets = b.slice(offsets, 0, 0, bags)
    args = (weight, indices, offsets, scales, MODES[mode], padding)
    return b.emit("autoplan.ragged_bag", *args, type=kind, hint="embedding_bag"), None, None, None


def even_length(b: Builder, indices: Ref, offsets: Ref) -> int | None:
    """The length of every bag, where offsets are counted off in equal steps, as torch does for two-dimensional
    indices."""
    made = b.maker(offsets, "aten.arange.start_step") or b.maker(offsets, "aten.arange.default")
    if made is None:
        return None
    start, stop, step = made.args if len(made.args) == 3 else (0, made.args[0], 1)
    assert isinstance(stop, int) and isinstance(step, int)
    return step if start == 0 and b.shape(indices) == (stop,) == (b.shape(offsets)[0] * step,) else None
