"""A judge of redistributions: every plan is executed on all ranks by the simulator, forward and backward, and what
comes of it is compared with what the layouts say."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.redistribution import UNIFORM, Links, Planner, Redistribution
from tests.oracles.redistribution import deal, dual, execute, execute_backward, pairing, whole_of
from tests.oracles.redistribution.parts import box
from tests.support.layouts import numbered

Parts = list[np.ndarray]


@dataclass(frozen=True)
class Verdict:
    """A plan, and the elements that crossed the links while it ran.

    received  forward, by the busiest rank of each step, added up
    busy      forward and backward, received or sent, whichever is more, likewise
    """

    plan: Redistribution
    received: float
    busy: float


class Judge:
    """Plans for one tensor on one mesh, and what they do; AssertionError where that isn't what was asked for.

    What is dealt out is kept, so that many pairs of layouts are quick.
    """

    def __init__(self, shape: tuple[int, ...], mesh: Mesh, carries: bool = False, links: Links = UNIFORM):
        self.shape, self.mesh, self.carries = shape, mesh, carries
        self.planner = Planner(TensorType(shape, "float32"), mesh, carries_gradient=carries, links=links)
        self.whole = numbered(shape)
        # a multiple of the devices: the share of each in a gradient of means is a whole number, too
        self.gradient = (1000 - self.whole) * mesh.devices
        self.values: dict[Layout, Parts] = {}
        self.gradients: dict[Layout, Parts] = {}

    def check(self, source: Layout, target: Layout) -> Verdict:
        """The plan between two layouts does what they say, holds no more than they do, and its backward is its
        adjoint."""
        return self.execute(source, target, self.planner.plan(source, target))

    def execute(self, source: Layout, target: Layout, plan: Redistribution) -> Verdict:
        """``check`` of a plan that is given."""
        done = execute(plan.collectives, self.value(source), self.mesh)
        wrong = f"{source} -> {target} of {self.shape} on {self.mesh}: {plan.collectives}"
        assert self.same(done.parts, self.value(target), target, self.whole), wrong
        ends = max(part.size for layout in (source, target) for part in self.value(layout))
        assert done.held <= ends, f"holds {done.held} elements, at the ends {ends}: {wrong}"
        if not self.carries:
            return Verdict(plan, done.received_elements, done.busy_elements)
        back = execute_backward(plan.collectives, self.slope(target), self.mesh)
        assert self.right_slope(back.parts, source), f"backward of {wrong}"
        there = pairing(done.parts, self.slope(target), target, self.mesh)
        here = pairing(self.value(source), back.parts, source, self.mesh)
        assert there == here, f"<Ax, y> = {there}, <x, A^T y> = {here}: {wrong}"
        return Verdict(plan, done.received_elements, done.busy_elements + back.busy_elements)

    def right_slope(self, found: Parts, layout: Layout) -> bool:
        """Whether these are the gradients of a tensor in this layout."""
        return self.same(found, self.slope(layout), dual(layout), self.gradient)

    def same(self, found: Parts, expected: Parts, layout: Layout, whole: np.ndarray) -> bool:
        """Slices are the same bit by bit; summands may be others, as long as they make the same tensor."""
        if any(state.kind == "P" for _, state in layout.rest):
            return np.array_equal(whole_of(found, layout, self.mesh, self.shape), whole)
        return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))

    def value(self, layout: Layout) -> Parts:
        if layout not in self.values:
            self.values[layout] = deal(self.whole, layout, self.mesh, seed=len(self.values))
        return self.values[layout]

    def slope(self, layout: Layout) -> Parts:
        """The gradient of a tensor in this layout: as its dual says."""
        if layout not in self.gradients:
            self.gradients[layout] = deal(self.gradient, dual(layout), self.mesh, seed=1000 + len(self.gradients))
        return self.gradients[layout]


def boxes_of(shape: tuple[int, ...], layout: Layout, mesh: Mesh) -> np.ndarray:
    """(ranks, dims, 2): start and stop of each rank's part."""
    return np.array([box(shape, layout, mesh, rank) for rank in range(mesh.devices)]).reshape(-1, len(shape), 2)


def bound(source: np.ndarray, target: np.ndarray) -> int:
    """Elements that some rank has to be sent, whatever the steps: what it lacks of its part.

    source, target  boxes before and after (``boxes_of``), of layouts without summands
    """
    start = np.maximum(source[..., 0], target[..., 0])
    own = np.maximum(np.minimum(source[..., 1], target[..., 1]) - start, 0).prod(axis=1)
    return int(((target[..., 1] - target[..., 0]).prod(axis=1) - own).max())


def gather_then_slice(source: np.ndarray, source_layout: Layout, target_layout: Layout, mesh: Mesh) -> float:
    """Elements that a rank is sent where what differs is gathered and then sliced; sizes divide.

    Of each dim the outermost axes that stay are left alone.
    """
    part = whole = int((source[0, :, 1] - source[0, :, 0]).prod())
    for here, there in zip(source_layout.dims, target_layout.dims, strict=True):
        kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(here, there, strict=False)))
        whole *= math.prod(mesh.size(axis) for axis in here[kept:])
    return whole - part
