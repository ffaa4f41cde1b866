"""Tensor parallelism over several axes: what each named system asks of the layouts, and what every pinned one asks.

With the tensor axis factored into mesh axes a product ``[m, k] x [k, n]`` has its three extents to lay over them. As
Colossal-AI lays them (Xu et al. 2021; Wang et al. 2021; Bian et al. 2021):

    2d      activations between blocks split by rows on the first axis and by features on the second; weights on both
    2.5d    a 2d grid, repeated along a further, outermost axis that splits the batch alone and holds the weights whole
    3d      each of m, n and k on an axis of its own; weights stored split over all three, and gathered over the
            innermost axis, which splits the batch, where they are used

What is not said is left to the search: by which of its dims a weight is split on which axis, what moves where. Where
no strategy of an operator does what is asked, its sizes not dividing, that operator is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autoplan.cost import GATHERING, Operator
from autoplan.ir.graph import Block, Model, TensorType
from autoplan.ir.layout import I, S, State
from autoplan.ir.mesh import TENSOR, Mesh
from autoplan.rules.registry import AxisStrategy
from autoplan.rules.strategies import Strategy

FIRST, SECOND, THIRD = TENSOR
Role = tuple[str, str]
"""(an axis, what an operator is to the system on it)."""
NO_ROLE: Role = ("", "")
FEW = 0.05  # of the parameters of a block's products, its experts' aside, that a pinned axis needn't split


@dataclass(frozen=True)
class LayoutRequirements:
    """An operator of which a named system is asked what it may do.

    weights  of its block, names of parameters and what is computed from them alone
    rows     the factor that the batch's rows are; "" where the batch doesn't split it
    role     what it is to a system (``System.special``)
    splits   whether its weights must be split where a tensor axis is pinned: not those of an experts' router
    """

    operator: Operator
    weights: frozenset[str]
    mesh: Mesh
    rows: str = ""
    role: Role = NO_ROLE
    splits: bool = True

    @property
    def held(self) -> tuple[int, ...]:
        """The positions of operands that are weights."""
        return tuple(i for i, name in enumerate(self.operator.node.operands) if name in self.weights)


class System(Protocol):
    """What a named system asks of its axes."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Those it says something of."""

    @property
    def whole(self) -> tuple[str, ...]:
        """Axes on which every operator runs as on the data axis."""

    @property
    def gathered(self) -> str:
        """The axis over which weights are gathered where they are used, in each microbatch; "" for none."""

    def between(self, axis: str, kind: TensorType) -> tuple[State, ...]:
        """The states that an activation between blocks may have on an axis; none where any will do."""

    def stored(self, axis: str, kind: TensorType, product: bool) -> tuple[State, ...]:
        """The states in which a parameter, the weight of a ``product`` or another, may be stored; none where any will
        do."""

    def special(self, model: Model, operators: Sequence[Mapping[str, Operator]]) -> Mapping[tuple[int, str], Role]:
        """What certain operators, by (block, name), are to the system."""

    def check(self, model: Model, operators: Sequence[Mapping[str, Operator]], mesh: Mesh) -> None:
        """ParallelismError where the model can't lie as asked on a mesh."""

    def ways(self, asked: LayoutRequirements, found: Sequence[Strategy]) -> tuple[Strategy, ...]:
        """Of an operator's strategies those that the system asks for."""


@dataclass(frozen=True)
class TensorSystem:
    """What a named system asks.

    rows      axes that split the rows (a leading dim) of activations between blocks; those in ``whole`` the batch
    features  the axis that splits their last dim
    weights   axes over which the weight of every product is stored split
    gathered  the axis over which weights are gathered where they are used, in each microbatch; "" for none
    """

    rows: tuple[str, ...]
    features: str
    weights: tuple[str, ...]
    gathered: str = ""

    @property
    def axes(self) -> tuple[str, ...]:
        return (*self.rows, self.features)

    @property
    def whole(self) -> tuple[str, ...]:
        """Axes on which a product meets its weight whole: every operator runs on them as on the data axis."""
        return tuple(axis for axis in self.axes if axis not in self.weights or axis == self.gathered)

    def between(self, axis: str, kind: TensorType) -> tuple[State, ...]:
        """The states that an activation between blocks may have on an axis; none where any will do."""
        last = len(kind.shape) - 1
        if last < 1:
            return ()
        if axis in self.whole:
            return (S(0),)
        return (S(last),) if axis == self.features else tuple(S(dim) for dim in range(last))

    def stored(self, axis: str, kind: TensorType, product: bool) -> tuple[State, ...]:
        return tuple(S(dim) for dim in range(len(kind.shape))) if product and axis in self.weights else ()

    def permits(self, operator: Operator, strategy: Strategy) -> bool:
        """Whether a product with a weight has its outputs on one of the grid's two axes, its inputs on the other."""
        grid = [axis for axis in self.axes if axis not in self.whole]
        return sorted(product_role(operator, strategy.on(axis)) for axis in grid) == ["k", "n"]

    def special(self, model: Model, operators: Sequence[Mapping[str, Operator]]) -> Mapping[tuple[int, str], Role]:
        return {}

    def check(self, model: Model, operators: Sequence[Mapping[str, Operator]], mesh: Mesh) -> None:
        """Nothing is: an operator whose sizes don't divide is free."""

    def ways(self, asked: LayoutRequirements, found: Sequence[Strategy]) -> tuple[Strategy, ...]:
        return as_asked(asked, found, self)


SYSTEMS: Mapping[str, TensorSystem] = {
    "2d": TensorSystem((FIRST,), SECOND, (FIRST, SECOND)),
    "2.5d": TensorSystem((FIRST, SECOND), THIRD, (SECOND, THIRD)),
    "3d": TensorSystem((FIRST, THIRD), SECOND, (FIRST, SECOND, THIRD), gathered=THIRD),
}


def system_factors(name: str, devices: int) -> tuple[int, ...]:
    """The largest grid of the system that divides so many devices: (q, q), (d, q, q) with d at least 2 and q as large
    as it can be, or (l, l, l); () where there is none."""
    sides = range(math.isqrt(devices), 1, -1)
    if name == "2.5d":
        return next(((devices // (q * q), q, q) for q in sides if devices % (2 * q * q) == 0), ())
    count = len(SYSTEMS[name].axes)
    return next(((side,) * count for side in sides if devices % side**count == 0), ())


def product_role(operator: Operator, chosen: AxisStrategy) -> str:
    """Which extent of a product ``[m, k] x [k, n]`` a strategy splits: "m", "n" or "k"; "" for none of them."""
    if not chosen.factor:
        return ""
    one, other, result = ({f for term in operator.terms[i] for f in term} for i in (0, 1, -1))
    places = (chosen.factor in one, chosen.factor in other, chosen.factor in result)
    return {(True, False, True): "m", (False, True, True): "n", (True, True, False): "k"}.get(places, "")


def routers(block: Block, operators: Mapping[str, Operator]) -> frozenset[str]:
    """Beside experts the products with the fewest parameters, as a router and what scales a shared expert: to split
    them saves less than the collectives which that takes. All together they have a few of what isn't the experts'."""
    if not any(operator.rule.cost == "experts" for operator in operators.values()):
        return frozenset()
    types, weights = block.types(), {p.name for p in block.parameters}
    held = {
        name: sum(types[w].bytes for w in weights.intersection(operator.node.operands))
        for name, operator in operators.items()
        if operator.rule.cost == "matmul"
    }
    few, left = set(), FEW * sum(held.values())
    for name, size in sorted(held.items(), key=lambda pair: pair[1]):
        left -= size
        if left < 0:
            break
        if size:
            few.add(name)
    return frozenset(few)


def splitting(
    operator: Operator, weights: frozenset[str], found: Sequence[Strategy], axes: Iterable[str]
) -> tuple[Strategy, ...]:
    """Of an operator's strategies those that use every tensor axis: a matmul's weight or a table is split, so are the
    heads of an attention, and what a body reduces (the classes of a loss). Of a mixture's experts every weight is: one
    whose last products alone are split leaves the ranks to repeat most of the work. An axis on which none does is left
    out."""
    held = [i for i, name in enumerate(operator.node.operands) if name in weights]
    splits = operator.rule.cost in ("matmul", "attention", "experts") or bool(held and operator.node.op in GATHERING)
    left = tuple(found)
    for axis in axes:
        if splits:
            places = held or range(len(operator.operands))
            using = tuple(s for s in left if any(s.on(axis).inputs[i].kind == "S" for i in places))
            if operator.rule.cost == "experts":
                using = tuple(s for s in using if all(s.on(axis).inputs[i].kind == "S" for i in places)) or using
        else:
            using = tuple(s for s in left if s.on(axis).communicates and s.on(axis).output == I)
        left = using or left
    return left


def as_asked(asked: LayoutRequirements, found: Sequence[Strategy], system: TensorSystem) -> tuple[Strategy, ...]:
    """Of an operator's strategies those of a grid, on meshes that have all its axes."""
    operator = asked.operator
    if operator.rule.cost == "matmul" and asked.held == (1,):
        left = tuple(s for s in found if system.permits(operator, s))
        if left:
            return left
    split = [axis for axis in system.axes if operator.rule.cost == "attention" or axis not in system.whole]
    return splitting(operator, asked.weights, found, split)
