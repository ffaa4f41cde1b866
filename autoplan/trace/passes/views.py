"""Chains of views, written anew where that makes them shorter.

Reshapes, permutes and the like, one after another, are one reshape into parts, one permute of these and one reshape
that merges them: nn.MultiheadAttention's [s, b, h * d] -> [s, b * h, d] -> [b * h, s, d] -> [b, h, s, d] is
[s, b, h, d], permuted. In the longer chain heads could not be split, for in b * h they stand inside the batch.

What is picked of a dim's outermost part is a slice of that dim: the queries of [b, s, 3 * h * d] -> [b, s, 3, h * d]
are its first third, and those of [b, s, (h + 2) * d] -> [b, s, h + 2, d], where all queries share one head of keys and
values, its first h * d, which ``clean.split_projections`` takes for a projection of its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from autoplan.ir.graph import Argument, Node, Ref, TensorType
from autoplan.redistribution.common_refinement import refine
from autoplan.trace.blocks import renamed
from autoplan.trace.builder import Builder

RESHAPE = "aten.reshape.default"
PERMUTE = "aten.permute.default"
SLICE = "aten.slice.Tensor"
PICKS = ("aten.select.int", SLICE)
Step = tuple[str, tuple[int, ...], tuple[int, ...]]  # an operator, its argument, the shape that it makes


@dataclass(frozen=True)
class Part:
    """A part of a source's dim: ``size`` rows of ``inner`` elements of it each."""

    dim: int
    inner: int
    size: int


Dims = tuple[tuple[Part, ...], ...]


@dataclass(frozen=True)
class View:
    """A value as the parts of another.

    source, shape  the other's name and shape
    dims           for each dim of the view the parts that it merges, outermost first; none where its size is one
    nodes          how many nodes make it of the source
    merging        whether a reshape is, or was, among them: without one no dims were merged that could come apart
    """

    source: str
    shape: tuple[int, ...]
    dims: Dims
    nodes: int = 0
    merging: bool = False


def whole(name: str, shape: Sequence[int]) -> View:
    dims = tuple((Part(dim, 1, size),) if size != 1 else () for dim, size in enumerate(shape))
    return View(name, tuple(shape), dims)


def short_views(builder: Builder, nodes: Iterable[Node], output: str) -> tuple[tuple[Node, ...], str]:
    """The nodes, with every chain of views in its shorter form, and the output's name among them. What nothing reads
    any more is still there."""
    views: dict[str, View] = {}
    names: dict[str, str] = {}  # of views that are their source
    kept: list[Node] = []
    for node in nodes:
        node = renamed(node, names)
        view, sliced = follow(builder, node, views), None
        if view is None and node.op in PICKS:
            view, sliced = picked(builder, node, views)
        steps = steps_of(view, node.type.shape) if view is not None else ()
        if view is None or not (sliced or (view.merging and len(steps) < view.nodes)):
            new: tuple[Node, ...] = (node,)
        else:
            new = ((sliced,) if sliced else ()) + tuple(written(builder, view.source, steps, node))
            view = replace(view, nodes=len(steps))
            if not steps:
                names[node.name] = view.source
        if view is not None:
            views[node.name] = view
        kept += new
    return tuple(kept), names.get(output, output)


def operand_view(builder: Builder, node: Node, views: Mapping[str, View]) -> View:
    name = node.operands[0]
    return views.get(name) or whole(name, builder.types[name].shape)


def follow(builder: Builder, node: Node, views: Mapping[str, View]) -> View | None:
    """A node's result as a view; None where it is none, or can't be told in parts of the source."""
    if not node.operands:
        return None
    view = operand_view(builder, node, views)
    dims = rearranged(view, node)
    if dims is None:
        return None
    return View(view.source, view.shape, dims, view.nodes + 1, view.merging or node.op == RESHAPE)


def rearranged(view: View, node: Node) -> Dims | None:
    """The dims that a node makes of its operand's."""
    dims = list(view.dims)
    match node.op, node.args[1:]:
        case "aten.reshape.default", _:
            return reshaped(view, node.type.shape)
        case "aten.permute.default", (tuple(order),):
            dims = [dims[dim] for dim in order]
        case "aten.transpose.int", (int(first), int(second)):
            dims[first], dims[second] = dims[second], dims[first]
        case "aten.unsqueeze.default", (int(dim),):
            dims.insert(dim, ())
        case ("aten.squeeze.dim", (int(dim),)) | ("aten.select.int", (int(dim), _)) if not dims[dim]:
            del dims[dim]
        case _:
            return None
    return tuple(dims)


def reshaped(view: View, shape: Sequence[int]) -> Dims | None:
    """The dims of a view after a reshape; None where a dim would begin amid a row of another."""
    parts = list(chain(*view.dims))
    refinement = refine([part.size for part in parts], [size for size in shape if size != 1])
    if refinement.opaque or 0 in shape:
        return None
    cuts = zip(parts, refinement.before, strict=True)
    finer = [piece for part, pieces in cuts for piece in cut(part, [p.size for p in pieces])]
    after = iter(refinement.after)
    return tuple(joined(finer[piece.number] for piece in next(after)) if size != 1 else () for size in shape)


def cut(part: Part, sizes: Sequence[int]) -> Iterator[Part]:
    inner = part.inner * part.size
    for size in sizes:
        inner //= size
        yield Part(part.dim, inner, size)


def joined(parts: Iterator[Part]) -> tuple[Part, ...]:
    """Neighbours that are neighbours in the source, too, are one part."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if last is not None and last.dim == part.dim and last.inner == part.inner * part.size:
            found[-1] = replace(part, size=last.size * part.size)
        else:
            found.append(part)
    return tuple(found)


def picked(builder: Builder, node: Node, views: Mapping[str, View]) -> tuple[View, Node] | tuple[None, None]:
    """What a node picks, as a view of a slice of the source, and that slice; None where it isn't some rows, one after
    another, of a dim's outermost part."""
    view = operand_view(builder, node, views)
    dim, start, *rest = node.args[1:]
    stop = rest[0] if rest else start + 1  # type: ignore[operator]
    assert isinstance(dim, int) and isinstance(start, int) and isinstance(stop, int)
    if len(view.dims[dim]) != 1 or len(rest) > 1:
        return None, None
    (part,) = view.dims[dim]
    if part.inner == 1 or part.inner * part.size != view.shape[part.dim]:
        return None, None
    shape = tuple(part.inner * (stop - start) if at == part.dim else size for at, size in enumerate(view.shape))
    args = (Ref(view.source), part.dim, start * part.inner, stop * part.inner)
    sliced = made(builder, SLICE, args, shape, node)
    left = (replace(part, size=stop - start),) if stop - start > 1 else ()
    kept: Dims = (left,) if node.op == SLICE else ()
    return View(sliced.name, shape, (*view.dims[:dim], *kept, *view.dims[dim + 1 :])), sliced


def steps_of(view: View, shape: tuple[int, ...]) -> tuple[Step, ...]:
    """The shortest way from the source to a view of this shape."""
    placed = places(view)
    order = sorted(placed)
    sizes, permuted = tuple(placed[place] for place in order), tuple(placed.values())
    turn = tuple(order.index(place) for place in placed)
    if turn == tuple(range(len(turn))):
        return ((RESHAPE, shape, shape),) if shape != view.shape else ()
    apart = ((RESHAPE, sizes, sizes),) if sizes != view.shape else ()
    merge = ((RESHAPE, shape, shape),) if shape != permuted else ()
    return (*apart, (PERMUTE, turn, permuted), *merge)


def places(view: View) -> dict[tuple[int, int, int], int]:
    """Sizes of a view's parts in the view's order, by where they stand in the source; dims of size one stand after what
    is before them in the view."""
    found: dict[tuple[int, int, int], int] = {}
    last = (-1, 0, 0)
    for parts in view.dims:
        for part in parts:
            last = (part.dim, -part.inner, 0)
            found[last] = part.size
        if not parts:
            last = (*last[:2], last[2] + 1)
            found[last] = 1
    return found


def written(builder: Builder, source: str, steps: Sequence[Step], node: Node) -> Iterator[Node]:
    """The nodes of these steps, of which the last is named as the node that they replace."""
    for number, (op, argument, shape) in enumerate(steps, 1):
        name = node.name if number == len(steps) else ""
        step = made(builder, op, (Ref(source), argument), shape, node, name)
        yield step
        source = step.name


def made(
    builder: Builder, op: str, args: tuple[Argument, ...], shape: tuple[int, ...], like: Node, name: str = ""
) -> Node:
    kind = TensorType(shape, like.type.dtype)
    name = name or builder.fresh(op.split(".")[1])
    builder.types[name] = kind
    return Node(name, op, args, (), kind, like.module)
