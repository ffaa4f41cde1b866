"""Permutes and exchanges as they are written down: their group, spec and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoplan.layout import Layout
from autoplan.mesh import Mesh
from autoplan.redistribute.apply import Tensor, held_elements, spec_between, write
from autoplan.redistribute.exchange import parse_spec
from autoplan.redistribute.factors import joined, split
from autoplan.redistribute.links import UNIFORM
from autoplan.redistribute.steps import EXCHANGES
from autoplan.redistribute.traffic import Traffic
from autoplan.typed import Collective


def write_exchange(source: Layout, target: Layout, op: str, tensor: Tensor, mesh: Mesh) -> Collective:
    """The permute or the exchange from one layout to another.

    source, target  on the axes, or prime factors, among which the tensor moves
    """
    source, target = (named_alike(layout, (source, target), mesh) for layout in (source, target))
    axes, spec, shape = spec_between(source, target, tensor.shape, mesh)
    if op == "permute":
        held = held_elements(source, tensor.shape, mesh) * tensor.itemsize
        return write(EXCHANGES[op], axes, (), (held, held), tensor.carries, spec)
    traffic = Traffic(shape, tensor.itemsize, [mesh.axis(axis) for axis in axes], UNIFORM)
    before, after = parse_spec(spec)
    toward, back = (int(traffic.one(*ends)[1]) for ends in ((before, after), (after, before)))
    step = write(EXCHANGES[op], axes, (), (1, 1), tensor.carries, spec, shape)
    forward = back if op == "exchange_sum" else toward
    backward = toward if op == "exchange" else back
    return replace(step, forward_bytes=forward, backward_bytes=backward if step.backward else 0)


def named_alike(layout: Layout, both: Sequence[Layout], mesh: Mesh) -> Layout:
    """The layout with an axis' prime factors under the axis' name, if they stand together in both layouts."""
    apart = {axis for one in both for axes in one.dims for axis in joined(axes, mesh) if "." in axis}
    apart |= {axis for one in both for axis in joined([a for a, _ in one.rest], mesh) if "." in axis}
    split_up = {axis.partition(".")[0] for axis in apart}

    def name(axes: Sequence[str]) -> tuple[str, ...]:
        kept = [f for a in joined(axes, mesh) for f in (split([a], mesh) if a in split_up else (a,))]
        return tuple(kept)

    states = dict(layout.rest)
    rest = tuple((axis, states.get(axis) or states[split([axis], mesh)[0]]) for axis in name([a for a, _ in layout.rest]))
    return Layout(tuple(name(axes) for axes in layout.dims), rest)
