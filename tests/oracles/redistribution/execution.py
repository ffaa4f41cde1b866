"""Redistributions on all ranks of a mesh at once, in NumPy: what each rank holds after every step, and what it was
sent.

It knows nothing of prices, nor of layouts on the way, so it can judge a planner: ``deal`` a tensor out, ``execute`` a
plan, and compare with dealing the tensor out in the layout that was asked for. The gradients of a redistribution are a
redistribution, too, between the duals (``parts.dual``), so ``execute_backward`` is judged in the same way.

Parts are lists with a floating-point array for each rank, ranks row-major over the mesh's device axes. Arrays may share
memory and are never written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.ir.mesh import Mesh
from autoplan.ir.typed_program import Collective
from tests.oracles.redistribution.group import OPERATORS, Call, Parts, Work


@dataclass(frozen=True)
class Execution:
    """What came of a plan.

    parts     what each rank holds at the end
    received, sent   (steps, ranks) elements that crossed the links to and from each rank, steps in order of execution
    held      elements that the rank with most of them held before, between and after the steps
    """

    parts: Parts
    received: np.ndarray
    sent: np.ndarray
    held: int

    @property
    def received_elements(self) -> float:
        """By the busiest rank of each step, added up."""
        return float(self.received.max(axis=1, initial=0).sum())

    @property
    def busy_elements(self) -> float:
        """Received or sent, whichever is more, by the busiest rank of each step, added up."""
        return float(np.maximum(self.received, self.sent).max(axis=1, initial=0).sum())


def run(collectives: Sequence[Collective], parts: Parts, mesh: Mesh) -> Parts:
    """What each rank holds after these steps."""
    return execute(collectives, parts, mesh).parts


def run_backward(collectives: Sequence[Collective], gradients: Parts, mesh: Mesh) -> Parts:
    """The gradients of what each rank held before, from those of what it held after: the last step is undone first."""
    return execute_backward(collectives, gradients, mesh).parts


def execute(collectives: Sequence[Collective], parts: Parts, mesh: Mesh) -> Execution:
    """``run``, and what was measured on the way."""
    return _execute([(step, OPERATORS[step.op][0]) for step in collectives], parts, mesh)


def execute_backward(collectives: Sequence[Collective], gradients: Parts, mesh: Mesh) -> Execution:
    """``run_backward``, and what was measured on the way. ValueError where a step passes no gradient."""
    works = []
    for step in reversed(collectives):
        work = OPERATORS[step.op][1]
        if work is None:
            raise ValueError(f"{step.op} passes no gradient: it is for tensors that carry none")
        works.append((step, work))
    return _execute(works, gradients, mesh)


def _execute(works: Sequence[tuple[Collective, Work]], parts: Parts, mesh: Mesh) -> Execution:
    received, sent = np.zeros((2, len(works), mesh.devices))
    held = max(part.size for part in parts)
    for number, (step, work) in enumerate(works):
        call, after = Call(step, {axis: mesh.size(axis) for axis in step.axes}), list(parts)
        for members in groups(step.axes, mesh):
            moved = work([parts[rank] for rank in members], call)
            for rank, part in zip(members, moved.parts, strict=True):
                after[rank] = part
            received[number, members], sent[number, members] = moved.received, moved.sent
        parts, held = after, max(held, *(part.size for part in after))
    return Execution(parts, received, sent, held)


def groups(axes: Sequence[str], mesh: Mesh) -> list[list[int]]:
    """The ranks of every group over these axes, members row-major in the order in which the axes are named."""
    offsets, firsts = np.zeros(1, np.int64), np.arange(mesh.devices)
    for axis in map(mesh.axis, axes):
        offsets = (offsets[:, None] + np.arange(axis.size) * axis.stride).reshape(-1)
        firsts = firsts[firsts // axis.stride % axis.size == 0]
    ranks: list[list[int]] = (firsts[:, None] + offsets).tolist()
    return ranks
