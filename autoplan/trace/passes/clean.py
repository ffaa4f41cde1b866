"""Passes over a flat list of canonical nodes: what is unused, what is written twice, projections with one weight."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.ir.graph import Node, Parameter, Ref, TensorType, buffers_updated
from autoplan.trace.blocks import renamed
from autoplan.trace.builder import Builder


def used(nodes: Iterable[Node], output: str) -> tuple[Node, ...]:
    """The nodes that the output depends on; operators that update buffers stay."""
    wanted, kept = {output}, []
    for node in reversed(tuple(nodes)):
        if node.name in wanted or buffers_updated(node):
            wanted.update(node.operands)
            kept.append(node)
    return tuple(reversed(kept))


def without_detaching(nodes: Iterable[Node], constants: frozenset[str]) -> tuple[Node, ...]:
    """Constants carry no gradient that could be stopped."""
    names: dict[str, str] = {}
    kept = []
    for node in nodes:
        node = renamed(node, names)
        if node.op == "aten.detach.default" and node.name in constants:
            names[node.name] = node.operands[0]
        else:
            kept.append(node)
    return tuple(kept)


def without_duplicates(nodes: Iterable[Node], among: frozenset[str]) -> tuple[Node, ...]:
    """Of equal nodes among these, the first alone. Tensors of one number are equal where the same operators read them:
    zeros that become token ids and zeros that bound positions may have one shape, but only the former have rows of the
    batch."""
    nodes = tuple(nodes)
    readers: dict[str, set[str]] = {}
    for node in nodes:
        for name in node.operands:
            readers.setdefault(name, set()).add(node.op)
    names: dict[str, str] = {}
    first: dict[tuple, str] = {}
    kept = []
    for node in nodes:
        read_by = () if node.operands or not node.type.shape else tuple(sorted(readers.get(node.name, ())))
        node = renamed(node, names)
        key = (node.op, repr(node.args), repr(node.kwargs), read_by)  # repr, for 1, 1.0 and True are equal
        if node.name in among and first.setdefault(key, node.name) != node.name:
            names[node.name] = first[key]
        else:
            kept.append(node)
    return tuple(kept)


@dataclass(frozen=True)
class Fused:
    """One weight that projects to several values: its contraction, its bias' addition, the slices that read it."""

    product: Node
    biased: Node | None
    slices: tuple[Node, ...]

    @property
    def result(self) -> Node:
        return self.biased or self.product


def split_projections(
    builder: Builder, nodes: Sequence[Node], parameters: Sequence[Parameter]
) -> tuple[tuple[Node, ...], tuple[Parameter, ...]]:
    """Each fused projection as several plain ones, each with a piece of the parameter.

    A fused weight's plain shard would hold all queries and no keys, so it could only be split with gaps.
    """
    by_name = {p.name: p for p in parameters}
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for operand in node.operands:
            readers.setdefault(operand, []).append(node)
    replaced: dict[str, tuple[Node, ...]] = {}
    pieces: dict[str, tuple[Parameter, ...]] = {}
    for node in nodes:
        fused = fused_projection(node, readers, by_name)
        if fused is not None:
            made, parts = split_one(builder, fused, by_name)
            pieces.update(parts)
            replaced |= {node.name: (), fused.result.name: (), **made}
    kept = [new for node in nodes for new in replaced.get(node.name, (node,))]
    split = [piece for p in parameters for piece in pieces.get(p.name, (p,))]
    return tuple(kept), tuple(split)


def split_weights(
    builder: Builder, nodes: Sequence[Node], parameters: Sequence[Parameter]
) -> tuple[tuple[Node, ...], tuple[Parameter, ...]]:
    """Each parameter that is read in slices alone, which cover it side by side, as plain pieces."""
    names: dict[str, str] = {}
    split: list[Parameter] = []
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in dict.fromkeys(node.operands):
            readers.setdefault(name, []).append(node)
    for parameter in parameters:
        slices = readers.get(parameter.name, [])
        found = pieces_of(parameter, slices) if all(node.op == "aten.slice.Tensor" for node in slices) else ()
        for cut in slices if found else ():
            part = next(p for p in found if (p.start, p.stop) == cut_bounds(cut))
            builder.enter(part.name, part.type)
            names[cut.name] = part.name
        split += found or (parameter,)
    return tuple(renamed(node, names) for node in nodes if node.name not in names), tuple(split)


def pieces_of(parameter: Parameter, slices: Sequence[Node]) -> tuple[Parameter, ...]:
    """The pieces that slices of one dim cut a parameter into; none where they overlap or leave something out."""
    dims = {node.args[1] for node in slices}
    bounds = sorted({cut_bounds(node) for node in slices})
    edges = [0, *(stop for _, stop in bounds)]
    if len(dims) != 1 or parameter.dim >= 0 or len(bounds) < 2:
        return ()
    (dim,) = dims
    assert isinstance(dim, int)
    if [start for start, _ in bounds] != edges[:-1] or edges[-1] != parameter.type.shape[dim]:
        return ()
    return tuple(piece(parameter, dim, start, stop) for start, stop in bounds)


def fused_projection(
    node: Node, readers: Mapping[str, Sequence[Node]], parameters: Mapping[str, Parameter]
) -> Fused | None:
    """The fused projection that starts at a node, if one does."""
    if node.op not in ("aten.linear.default", "aten.matmul.default") or not own(node.operands[1], readers, parameters):
        return None
    biased = next((r for r in readers.get(node.name, ()) if r.op == "aten.add.Tensor"), None)
    if len(parameters[node.operands[1]].type.shape) < 2:
        return None
    if biased is not None and not (len(readers[node.name]) == 1 and own(biased.operands[-1], readers, parameters)):
        return None
    if biased is not None and parameters[biased.operands[-1]].type.shape[-1:] != node.type.shape[-1:]:
        return None
    slices = readers.get((biased or node).name, ())
    last = len(node.type.shape) - 1
    bounds = sorted(cut_bounds(s) for s in slices if s.op == "aten.slice.Tensor" and s.args[1] == last)
    edges = [0, *(stop for _, stop in bounds)]
    covers = [start for start, _ in bounds] == edges[:-1] and edges[-1] == node.type.shape[-1]
    if len(bounds) != len(slices) or len(bounds) < 2 or not covers:
        return None
    return Fused(node, biased, tuple(sorted(slices, key=cut_bounds)))


def own(name: str, readers: Mapping[str, Sequence[Node]], parameters: Mapping[str, Parameter]) -> bool:
    """Whether this is a parameter that is read once."""
    return name in parameters and len(readers[name]) == 1


def cut_bounds(node: Node) -> tuple[int, int]:
    start, stop = node.args[2:4] if len(node.args) == 4 else (-1, -1)
    assert isinstance(start, int) and isinstance(stop, int)
    return start, stop


def split_one(
    builder: Builder, fused: Fused, parameters: Mapping[str, Parameter]
) -> tuple[dict[str, tuple[Node, ...]], dict[str, tuple[Parameter, ...]]]:
    """Nodes in place of each slice, pieces in place of each parameter."""
    product, biased = fused.product, fused.biased
    weight = parameters[product.operands[1]]
    bias = parameters[biased.operands[-1]] if biased else None
    dim = 0 if product.op == "aten.linear.default" else len(weight.type.shape) - 1
    made: dict[str, tuple[Node, ...]] = {}
    pieces: dict[str, tuple[Parameter, ...]] = {p.name: () for p in (weight, bias) if p is not None}
    for cut in fused.slices:
        start, stop = cut_bounds(cut)
        part = piece(weight, dim, start, stop)
        pieces[weight.name] += (part,)
        name = cut.name if bias is None else builder.fresh(f"{cut.name}_product")
        builder.types[name] = cut.type
        made[cut.name] = (replace(product, name=name, args=(product.args[0], Ref(part.name)), type=cut.type),)
        if bias is not None and biased is not None:
            part = piece(bias, len(bias.type.shape) - 1, start, stop)
            pieces[bias.name] += (part,)
            made[cut.name] += (replace(biased, name=cut.name, args=(Ref(name), Ref(part.name)), type=cut.type),)
    return made, pieces


def piece(parameter: Parameter, dim: int, start: int, stop: int) -> Parameter:
    """``c_attn.weight[:, 0:768]``: a part of a parameter, as a parameter."""
    shape = list(parameter.type.shape)
    shape[dim] = stop - start
    index = ", ".join([":"] * dim + [f"{start}:{stop}"])
    return replace(
        parameter,
        name=f"{parameter.source}[{index}]",
        type=TensorType(tuple(shape), parameter.type.dtype),
        dim=dim,
        start=start,
        stop=stop,
    )
