"""The strategies that a candidate allows on each of the axes ep, cp and tp: others are dropped.

    ep   experts split over it, rows of everything else (``row_systems``)
    cp   the sequence split over it, attention by heads, by rows, or round a ring (likewise); experts, where they are
         folded over it, or over its inner factor alone
    tp   what a named system asks, or nothing; where it is pinned, that weights are split over it, or over those of its
         factors that the system leaves. Beside experts that are split over axes of their own: that they are split over
         those that are folded in, over others each is

An operator's strategies on several axes are products of its strategies on one. So each system takes from them those
that do on its axis what it asks, whatever they do on the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoplan.cost import Operator
from autoplan.errors import ParallelismError
from autoplan.ir.graph import Model, TensorType
from autoplan.ir.layout import State
from autoplan.ir.mesh import CONTEXT, CONTEXTS, EXPERT, INNER_CONTEXT, TENSOR, Mesh
from autoplan.rules.strategies import Strategy
from autoplan.search.space.row_systems import EXPERT_BODIES, EXPERTS, LAYOUTS, ROW_SYSTEMS
from autoplan.search.space.tensor_axes import LayoutRequirements, Role, System, splitting

CONTEXT_SYSTEMS: Mapping[str, str] = {"heads": "ulysses", "rows": "context-parallel", "ring": "ring-attention"}
"""The system of each way in which attention is split over the context's axis."""


@dataclass(frozen=True)
class AxisSystems:
    """Systems side by side, on different axes.

    systems  of the axes that have one
    split    axes over which weights must be split where sizes allow
    """

    systems: tuple[System, ...]
    split: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(axis for system in self.systems for axis in system.axes)

    @property
    def whole(self) -> tuple[str, ...]:
        """Axes on which every operator runs as on the data axis."""
        return tuple(axis for system in self.systems for axis in system.whole)

    @property
    def gathered(self) -> str:
        """The axis over which weights are gathered where they are used; "" for none."""
        return next((system.gathered for system in self.systems if system.gathered), "")

    def between(self, axis: str, kind: TensorType) -> tuple[State, ...]:
        """The states that an activation between blocks may have on an axis; none where any will do."""
        system = self.on(axis)
        return () if system is None else system.between(axis, kind)

    def stored(self, axis: str, kind: TensorType, product: bool) -> tuple[State, ...]:
        """The states in which a parameter may be stored on an axis; none where any will do."""
        system = self.on(axis)
        return () if system is None else system.stored(axis, kind, product)

    def special(self, model: Model, operators: Sequence[Mapping[str, Operator]]) -> Mapping[tuple[int, str], Role]:
        """What certain operators are to one of the systems."""
        return {key: role for system in self.systems for key, role in system.special(model, operators).items()}

    def check(self, model: Model, operators: Sequence[Mapping[str, Operator]], mesh: Mesh) -> None:
        """ParallelismError where the model can't lie on a mesh as one of the systems asks."""
        for system in self.systems:
            system.check(model, operators, mesh)

    def ways(self, asked: LayoutRequirements, found: Sequence[Strategy]) -> tuple[Strategy, ...]:
        """Of an operator's strategies those for which all systems ask."""
        left = tuple(found)
        for system in self.systems:
            left = system.ways(asked, left)
        return splitting(asked.operator, asked.weights, left, self.split) if self.split and asked.splits else left

    def on(self, axis: str) -> System | None:
        return next((system for system in self.systems if axis in system.axes), None)


@dataclass(frozen=True)
class FoldedExperts:
    """On tensor axes, beside an experts' axis: experts are split over some, each expert over the others.

    Whatever else an operator does is free."""

    folded: tuple[str, ...]
    others: tuple[str, ...]

    axes: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    gathered: str = ""

    def between(self, axis: str, kind: TensorType) -> tuple[State, ...]:
        return ()

    def stored(self, axis: str, kind: TensorType, product: bool) -> tuple[State, ...]:
        return ()

    def special(self, model: Model, operators: Sequence[Mapping[str, Operator]]) -> Mapping[tuple[int, str], Role]:
        blocks = enumerate(model.blocks)
        return {(i, n.name): (TENSOR[0], "experts") for i, block in blocks for n in block.nodes if n.op == EXPERTS}

    def check(self, model: Model, operators: Sequence[Mapping[str, Operator]], mesh: Mesh) -> None:
        """Nothing is: whether experts divide is known before (``pinned_checks``)."""

    def ways(self, asked: LayoutRequirements, found: Sequence[Strategy]) -> tuple[Strategy, ...]:
        if asked.role[1] != "experts":
            return tuple(found)
        left = [s for s in found if all(s.on(axis).body in EXPERT_BODIES for axis in self.folded)]
        left = [s for s in left if not any(s.on(axis).body for axis in self.others)]
        if not left:
            ways = " ".join(f"{axis}={asked.mesh.size(axis)}" for axis in self.folded)
            cause = f"the {asked.operator.operands[-1].shape[0]} of {asked.operator.node.module} don't divide"
            raise ParallelismError(f"experts over {ways} beside ep", cause, "pin another ep, or etp=tp")
        return tuple(left)


def systems_of(
    cp_attention: str, ep: int, tensor_system: str, split: tuple[str, ...], tensor: tuple[str, ...],
    folds: tuple[str, ...],
) -> System | None:  # fmt: skip
    """What a candidate asks of its axes; None where that is nothing, or only that weights are split over ``split``.

    cp_attention  how attention is split over cp; "" without that axis
    ep            devices of the mesh's axis of the experts
    tensor        the tensor axes of several devices
    folds         further axes over which experts are split
    """
    found: list[System] = []
    if ep > 1:
        found.append(replace(ROW_SYSTEMS["expert-parallel"], axis=EXPERT))
    if cp_attention:
        for axis in CONTEXTS if INNER_CONTEXT in folds else (CONTEXT,):
            splits = "experts" if axis in folds else ""
            found.append(replace(ROW_SYSTEMS[CONTEXT_SYSTEMS[cp_attention]], axis=axis, splits=splits))
    if (ep > 1 or folds) and tensor and not tensor_system:
        folded = tuple(axis for axis in tensor if axis in folds)
        found.append(FoldedExperts(folded, tuple(axis for axis in tensor if axis not in folds)))
    asked = LAYOUTS.get(tensor_system)
    if asked is not None:
        found.append(asked)
        split = tuple(axis for axis in split if axis not in asked.axes)
    if asked is not None and len(found) == 1 and not split:
        return asked
    return AxisSystems(tuple(found), split) if found else None
