"""From a layout on one mesh to a layout on another: what a pipeline's stages hand on, whatever their sizes.

A leg has three parts: collectives on the mesh that sends, messages between the meshes, collectives on the mesh that
receives. There are three strategies:

    direct     every device has what it wants straight from holders of it
    gather     the replicas of a part have disjoint pieces of it sent, and gather them among themselves
    broadcast  one replica has the part sent, in chunks, and each passes them on to the next

Of a source's states S, R and I any holder sends, the one that has least to send. Summands are reduced first, each
element on one device where that is cheaper, so that the slow link between the meshes carries no element twice. Of a
target's states R and I every device has the value, and of a target's P each element stands on one device, with zeros on
the others.

Backward the gradient goes between the duals (``State.gradient``), as a leg of its own:

    forward            backward                        the backward's steps
    S -> S             S -> S                          the messages sent back
    R -> ...           ... -> P                        each element to one of the replicas
    I -> ...           ... -> I                        to all of them: direct, gather or broadcast
    P -> ...           ... -> R                        likewise
    ... -> R           P -> ...                        the summands of the gradient are reduced, then sent
    ... -> I           I -> ...                        any of the replicas sends

Each leg hands the value on as it is, in the pairing <value, gradient> (sum over devices, an I axis counted once) in
which the duals are dual; so any two legs between a pair of layouts and its duals are adjoint to each other, whatever
their strategies, and each may take its own cheapest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autoplan.errors import LayoutError
from autoplan.ir.graph import DTYPE_BYTES, TensorType
from autoplan.ir.layout import PAVG, PMAX, Layout, R, S
from autoplan.ir.mesh import Mesh
from autoplan.ir.typed import Collective
from autoplan.redistribution.apply import changed, spec_between
from autoplan.redistribution.exchange.boxes import Boxes
from autoplan.redistribution.exchange.messages import parse_spec
from autoplan.redistribution.exchange.traffic import Traffic
from autoplan.redistribution.factors import check_layout
from autoplan.redistribution.links import Links
from autoplan.redistribution.meshes.crossing import Part, Rounds, chained, direct, parts
from autoplan.redistribution.meshes.sides import MeshLinks, Side, one_microbatch, rounds_s
from autoplan.redistribution.simulate.parts import dual

STRATEGIES = ("direct", "gather", "broadcast")
CHUNKS = (2, 4, 8, 16, 32, 64)  # of a broadcast; beyond 64 less than 1/64 of a chain's time is left to be gained

ROUNDING = 1e-9  # prices that differ by less are equal: their sums are of floats


@dataclass(frozen=True)
class Leg:
    """One way across.

    shape     of the tensor that crosses: one microbatch
    source    as it lies where it comes from, and ``sent`` after the collectives ``before``
    rounds    messages between ranks, boxes in indices of the tensor; a message to the sender itself is a copy
    landed    as it lies when they have arrived, and ``target`` after the collectives ``after``. Along axes in P each
              element is on one device, the others hold zeros in its place
    seconds   collectives and rounds one after another, each as long as its busiest device
    """

    strategy: str
    shape: tuple[int, ...]
    source: Side
    before: tuple[Collective, ...]
    sent: Side
    rounds: Rounds
    landed: Side
    after: tuple[Collective, ...]
    target: Side
    seconds: float

    @property
    def messages(self) -> int:
        """Between different ranks."""
        return sum(m.sender != m.receiver for found in self.rounds for m in found)


@dataclass(frozen=True)
class Transfer:
    """A value's way to another mesh, and its gradient's way back; None where it carries none."""

    forward: Leg
    backward: Leg | None

    @property
    def seconds(self) -> float:
        return self.forward.seconds + (self.backward.seconds if self.backward else 0.0)


def transfer(
    source: Layout,
    source_mesh: Mesh,
    source_devices: Sequence[int],
    target: Layout,
    target_mesh: Mesh,
    target_devices: Sequence[int],
    type: TensorType,
    *,
    carries_gradient: bool,
    links: MeshLinks | None = None,
    strategy: str = "",
) -> Transfer:
    """The cheapest way from a layout on one mesh to a layout on another, and back for the gradient.

    source_devices  the rank of each device of the source's mesh, row-major over its axes; target_devices likewise. The
                    two may share ranks
    type            the whole tensor; where the meshes have microbatches both layouts split it over them alike
    links           None: no latency and one byte a second everywhere, so seconds are the busiest device's bytes
    strategy        one of STRATEGIES; "" for the cheapest

    LayoutError where a layout doesn't fit its mesh or the tensor, where the target is P(max) or P(avg), the source a
    P(max) that carries a gradient or P(max) beside another P, or where the two sides differ in their microbatches.
    Deterministic: every rank finds the same.
    """
    check_layout(source, type.shape, source_mesh)
    check_layout(target, type.shape, target_mesh)
    check(source, source_mesh, target, target_mesh, carries_gradient)
    start, shape = one_microbatch(source, type.shape, source_mesh)
    goal, _ = one_microbatch(target, type.shape, target_mesh)
    sides = Side(start, source_mesh, tuple(source_devices)), Side(goal, target_mesh, tuple(target_devices))
    links, of = links or MeshLinks(), TensorType(shape, type.dtype)
    forward = cheapest(*sides, of, links, strategy)
    if not carries_gradient:
        return Transfer(forward, None)
    duals = replace(sides[1], layout=dual(goal)), replace(sides[0], layout=dual(start))
    back = cheapest(*duals, of, links.reversed(), strategy)
    return Transfer(forward, replace(back, after=(*back.after, *averages(sides[0]))))


def check(source: Layout, source_mesh: Mesh, target: Layout, target_mesh: Mesh, carries: bool) -> None:
    """The LayoutErrors of ``transfer``."""
    there = {state for _, state in target.rest}
    here = {state for _, state in source.rest if state.kind == "P"}
    text = f"{source} on {source_mesh} -> {target} on {target_mesh}"
    if there & {PMAX, PAVG}:
        raise LayoutError(text, "no value becomes a P(max) or a P(avg) between meshes", "receive it as R")
    if PMAX in here and (carries or len(here) > 1):
        cause = "a P(max) passes no gradient" if carries else "of a sum of maxima the order is not known"
        raise LayoutError(text, cause, "reduce it before it leaves its mesh")
    virtual = [
        {(axis.name, axis.size, str(layout.state(axis.name))) for axis in mesh.axes if axis.virtual and axis.size > 1}
        for layout, mesh in ((source, source_mesh), (target, target_mesh))
    ]
    if virtual[0] != virtual[1]:
        cause = "microbatches follow one another, so nothing can be exchanged between them"
        raise LayoutError(text, cause, "give the value one state on axis mb")


def cheapest(source: Side, target: Side, type: TensorType, links: MeshLinks, strategy: str = "") -> Leg:
    """Least seconds; among equals the first, so direct before the others."""
    assert strategy in ("", *STRATEGIES), f"strategy {strategy!r}: one of {STRATEGIES}"
    price = partial(rounds_s, itemsize=DTYPE_BYTES[type.dtype], source=source, target=target, links=links)
    best, best_s = None, math.inf
    for name in (strategy,) if strategy else STRATEGIES:
        for leg, wanted in unsent(name, source, target, type, links):
            held = parts(leg.sent.boxes(type.shape), leg.sent.devices)
            for rounds, seconds in crossings(name, held, wanted, price, best_s * (1 - ROUNDING) - leg.seconds):
                if leg.seconds + seconds < best_s * (1 - ROUNDING):
                    best_s = leg.seconds + seconds
                    best = replace(leg, rounds=rounds, seconds=best_s)
    assert best is not None, "a direct leg always is"
    return best


def unsent(
    strategy: str, source: Side, target: Side, type: TensorType, links: MeshLinks
) -> Iterator[tuple[Leg, tuple[Part, ...]]]:
    """The legs of a strategy without their messages, and what these have to bring: with summands reduced, replicas
    grouped and what becomes P shared out in each way."""
    whole = iter([((), target, 0.0)])
    gathers = gatherings(target, type, links.target) if strategy == "gather" else whole
    for left, right in itertools.product(tuple(reductions(source, type, links.source)), gathers):
        (before, sent, before_s), (after, landed, after_s) = left, right
        seconds = before_s + after_s
        for wanted in spreads(landed, type.shape):
            yield Leg(strategy, type.shape, source, before, sent, (), landed, after, target, seconds), wanted


def crossings(
    strategy: str, held: Sequence[Part], wanted: Sequence[Part], price: Callable[[Rounds], float], limit_s: float
) -> Iterator[tuple[Rounds, float]]:
    """The messages of a strategy, with their seconds; of a broadcast in chunks of several sizes.

    limit_s  what takes as long is left out, where that is seen beforehand
    """
    if limit_s < 0:
        return
    whole = chained(held, wanted, 1) if strategy == "broadcast" else direct(held, wanted)
    yield whole, price(whole)
    at_once = tuple(message for messages in whole for message in messages)
    if len(whole) > 1 and price((at_once,)) < limit_s:  # no chunks make a device less busy than all hops together
        last_s = math.inf
        for chunks in CHUNKS:
            rounds = chained(held, wanted, chunks)
            seconds = price(rounds)
            if seconds >= last_s:  # from here on latency costs more than smaller chunks gain
                return
            last_s = seconds
            yield rounds, seconds


def averages(side: Side) -> tuple[Collective, ...]:
    """Division by the number of summands, over the axes in P(avg): of a value before it is summed, of a gradient after
    it has come back."""
    axes = tuple(axis for axis in side.holding("P") if side.layout.state(axis) == PAVG)
    return (collective("average", axes),) if axes else ()


def collective(
    op: str, axes: tuple[str, ...], dims: tuple[int, ...] = (), kind: str = "", size: int = 0,
    spec: str = "", shape: tuple[int, ...] = (),
) -> Collective:  # fmt: skip
    """A step of a leg: its backward is not used, the gradient has a leg of its own."""
    return Collective(op, axes, dims, kind, "", size, 0, spec, shape)


Step = tuple[tuple[Collective, ...], Side, float]
"""Collectives, the other layout, and seconds."""


def reductions(source: Side, type: TensorType, links: Links) -> Iterator[Step]:
    """The ways to reduce what is P, with the layout after: on every member, or each element on one of them."""
    axes, itemsize = source.holding("P"), DTYPE_BYTES[type.dtype]
    if not axes:
        yield (), source, 0.0
        return
    greatest = source.layout.state(axes[0]) == PMAX
    means, held = averages(source), source.held_bytes(type.shape, itemsize)
    group = [source.mesh.axis(name) for name in axes]
    op = "all_reduce_max" if greatest else "all_reduce"
    whole = replace(source, layout=changed(source.layout, axes, R, source.mesh))
    yield (*means, collective(op, axes, (), "all-reduce", held)), whole, links.collective_s("all-reduce", held, group)
    for dim, length in enumerate(type.shape):
        part = replace(source, layout=changed(source.layout, axes, S(dim), source.mesh))
        if divides(part, type.shape, dim):
            op = "reduce_scatter_max" if greatest else "reduce_scatter"
            seconds = links.collective_s("reduce-scatter", held, group)
            yield (*means, collective(op, axes, (dim,), "reduce-scatter", held)), part, seconds
        elif length > 1 and not greatest:
            step, seconds = exchange(source, part, type, links, summed=True)
            yield (*means, step), part, seconds


def gatherings(target: Side, type: TensorType, links: Links) -> Iterator[Step]:
    """The ways to gather what replicas have received pieces of, with the layout in which they receive it; nothing
    where there are none."""
    axes, itemsize = target.holding("R", "I"), DTYPE_BYTES[type.dtype]
    subsets = [some for count in range(1, len(axes) + 1) for some in itertools.combinations(axes, count)]
    held = target.held_bytes(type.shape, itemsize)
    dims = [dim for dim, length in enumerate(type.shape) if length > 1]
    if not subsets or not dims:
        yield (), target, 0.0
    for some, dim in itertools.product(subsets, dims):
        part = replace(target, layout=changed(target.layout, some, S(dim), target.mesh))
        if divides(part, type.shape, dim):
            group = [target.mesh.axis(name) for name in some]
            step = collective("all_gather", some, (dim,), "all-gather", held)
            yield (step,), part, links.collective_s("all-gather", held, group)
        else:
            step, seconds = exchange(part, target, type, links)
            yield (step,), part, seconds


def divides(side: Side, shape: Sequence[int], dim: int) -> bool:
    return shape[dim] % math.prod(side.mesh.size(axis) for axis in side.layout.dims[dim]) == 0


def exchange(here: Side, there: Side, type: TensorType, links: Links, summed: bool = False) -> tuple[Collective, float]:
    """The direct exchange between two layouts of a mesh, and its seconds; ``summed``: of summands."""
    group, spec, shape = spec_between(here.layout, there.layout, type.shape, here.mesh)
    before, after = reversed(parse_spec(spec)) if summed else parse_spec(spec)
    traffic = Traffic(shape, DTYPE_BYTES[type.dtype], [here.mesh.axis(name) for name in group], links)
    seconds, size = traffic.busiest(traffic.sent(before, traffic.boxes(after)[None]))
    op = "exchange_sum" if summed else "exchange"
    return collective(op, group, (), "all-to-all-v", int(size[0]), spec, shape), float(seconds[0])


def spreads(landed: Side, shape: Sequence[int]) -> Iterator[tuple[Part, ...]]:
    """What the ranks want: their parts; along axes in P each element by one of them, by the first or a share each."""
    axes = landed.holding("P")
    found = landed.boxes(shape)
    numbers = landed.coordinates()[:, [axis.name in axes for axis in landed.axes]]
    first = np.flatnonzero((numbers == 0).all(axis=1))
    yield parts(found[first], [landed.devices[i] for i in first])
    for dim, length in enumerate(shape if axes else ()):
        if length > 1:
            yield parts(spread_boxes(landed, shape, axes, dim), landed.devices)


def spread_boxes(landed: Side, shape: Sequence[int], axes: tuple[str, ...], dim: int) -> Boxes:
    return replace(landed, layout=changed(landed.layout, axes, S(dim), landed.mesh)).boxes(shape)
