"""Permutes and exchanges as they are written down: their group, spec and sizes."""

from collections.abc import Sequence
from dataclasses import replace

from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from autoplan.redistribution.apply import Tensor, held_elements, spec_between, write
from autoplan.redistribution.exchange.messages import parse_spec
from autoplan.redistribution.exchange.traffic import Traffic
from autoplan.redistribution.factors import factored_axes, joined, split
from autoplan.redistribution.links import UNIFORM, Links
from autoplan.redistribution.steps import EXCHANGES


def write_exchange(
    source: Layout, target: Layout, op: str, tensor: Tensor, mesh: Mesh, moved_bytes: tuple[int, int] | None = None
) -> Collective:
    """The permute or the exchange from one layout to another.

    source, target  on the axes, or prime factors, among which the tensor moves
    moved_bytes     for the busiest member, of fetching the target's parts from the source's, and the other way; None:
                    not known yet
    """
    if factored_axes(source.axes):
        source, target = (named_alike(layout, (source, target), tensor.shape, mesh) for layout in (source, target))
    axes, spec, shape = spec_between(source, target, tensor.shape, mesh)
    if op == "permute":
        held = held_elements(source, tensor.shape, mesh) * tensor.itemsize
        return write(EXCHANGES[op], axes, (), (held, held), tensor.carries, spec)
    toward, back = moved_bytes or fetched_bytes(axes, spec, shape, tensor, mesh)
    step = write(EXCHANGES[op], axes, (), (1, 1), tensor.carries, spec, shape)
    forward = back if op == "exchange_sum" else toward
    backward = toward if op == "exchange" else back
    backward *= tensor.carries
    kinds = (step.forward if forward else "", step.backward if backward else "")
    return replace(step, forward=kinds[0], backward=kinds[1], forward_bytes=forward, backward_bytes=backward)


def fetched_bytes(
    axes: Sequence[str], spec: str, shape: Sequence[int], tensor: Tensor, mesh: Mesh
) -> tuple[int, int]:
    """Bytes that the busiest member of a group sends or receives: as the spec says, and the other way."""
    traffic = Traffic(shape, tensor.itemsize, [mesh.axis(axis) for axis in axes], UNIFORM)
    before, after = parse_spec(spec)
    return int(traffic.one(before, after)[1]), int(traffic.one(after, before)[1])


def step_seconds(step: Collective, itemsize: int, mesh: Mesh, links: Links) -> tuple[float, float]:
    """Seconds of one written step, forward and backward; 0 where nothing crosses the links."""
    axes = [mesh.axis(axis) for axis in step.axes]
    if step.op not in EXCHANGES:
        kinds = ((step.forward, step.forward_bytes), (step.backward, step.backward_bytes))
        forward_s, backward_s = (links.collective_s(kind, size, axes) if kind else 0.0 for kind, size in kinds)
        return forward_s, backward_s
    traffic, (before, after) = Traffic(step.shape, itemsize, axes, links), parse_spec(step.spec)
    if step.op == "permute":
        seconds = traffic.permute_s(before, after, step.forward_bytes)
        return seconds, seconds if step.backward else 0.0
    toward, back = traffic.one(before, after)[0], traffic.one(after, before)[0]
    forward_s = back if step.op == "exchange_sum" else toward
    backward_s = toward if step.op == "exchange" else back
    return forward_s if step.forward else 0.0, backward_s if step.backward else 0.0


def named_alike(layout: Layout, both: Sequence[Layout], shape: Sequence[int], mesh: Mesh) -> Layout:
    """The layout with an axis' prime factors under the axis' name, if they stand together in both layouts, and divide
    the dims that they split."""
    apart = [a for one in both for axes, size in zip(one.dims, shape, strict=True) for a in joined(axes, mesh, size)]
    apart += [axis for one in both for axis in joined([a for a, _ in one.rest], mesh)]
    split_up = factored_axes(apart)

    def name(axes: Sequence[str]) -> tuple[str, ...]:
        return split(joined(axes, mesh), mesh, split_up) if split_up else joined(axes, mesh)

    states = dict(layout.rest)
    beside = name([axis for axis, _ in layout.rest])
    rest = tuple((axis, states.get(axis) or states[split([axis], mesh)[0]]) for axis in beside)
    return Layout(tuple(name(axes) for axes in layout.dims), rest)
