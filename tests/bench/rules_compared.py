"""Our rules beside DTensor's: for every sample, which placements of the operands each takes as they are.

R and I are one to DTensor, which leaves the gradient's state to be found at run time, so ours are compared with I read
as R.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh

from autoplan.ir.layout import PMAX, P, R, S, State
from autoplan.ir.mesh import Mesh
from tests.bench.dtensor_rules import PAVG, PMIN, Behaviour, behaviour, text_of_state
from tests.support.simulate import Case

PAIR, SQUARE = Mesh.of(tp=2), Mesh.of(dp=2, tp=2)
MOST_WAYS = 1500  # placements of one sample's operands on one axis
Operands = tuple[tuple[State, ...], ...]  # each operand's states, one for each axis


@dataclass(frozen=True)
class Way:
    """Operands placed so.

    ours    the result's states under each strategy of ours that takes them so; none where no strategy does
    theirs  what DTensor does
    """

    case: Case
    inputs: Operands
    ours: tuple[tuple[State, ...], ...]
    theirs: Behaviour

    @property
    def agree(self) -> bool:
        """Both take them, for one result; or neither does."""
        if self.theirs.kind != "runs":
            return not self.ours
        return self.theirs.output in {tuple(map(text_of_state, states)) for states in self.ours}

    @property
    def kinds(self) -> frozenset[str]:
        """Of the operands' states: "S", "R", "P", "P(avg)", ..."""
        return frozenset(text_of_state(s).partition("(")[0] if s.kind == "S" else text_of_state(s)
                         for states in self.inputs for s in states)  # fmt: skip

    @property
    def uneven(self) -> bool:
        """Whether some dim is split that two doesn't divide."""
        pairs = zip(self.case.tensors, self.inputs, strict=True)
        return any(s.kind == "S" and t.shape[s.dim] % 2 for t, states in pairs for s in states)

    def __str__(self) -> str:
        ours = " or ".join(map(placed_text, self.ours)) or "none"
        theirs = self.theirs.kind if self.theirs.kind != "runs" else " on ".join(self.theirs.output)
        return f"{', '.join(map(placed_text, self.inputs))}: ours {ours}, DTensor's {theirs}"


def placed_text(states: Iterable[State]) -> str:
    return " × ".join(map(text_of_state, states))


def neutral(state: State) -> State:
    return R if state.kind == "I" else state


def ours_of(case: Case, mesh: Mesh) -> dict[Operands, tuple[tuple[State, ...], ...]]:
    """Our strategies on a mesh: results by operands."""
    found: dict[Operands, dict[tuple[State, ...], None]] = {}
    for strategy in case.strategies(mesh):
        inputs = tuple(tuple(neutral(s.inputs[i]) for _, s in strategy.axes) for i in range(len(case.tensors)))
        found.setdefault(inputs, {})[tuple(neutral(s.output) for _, s in strategy.axes)] = None
    return {inputs: tuple(outputs) for inputs, outputs in found.items()}


def placements(case: Case) -> Iterator[Operands]:
    """Every way to place the operands on one axis: whole, split along a dim, summands; or, those that are partial, all
    of them operands of one other reduction."""
    choices = []
    for t in case.tensors:
        splits = [S(d) for d, size in enumerate(t.shape) if size > 1]
        choices.append([R, *splits, *([P] if t.is_floating_point() else [])])
    count = math.prod(map(len, choices))
    assert count <= MOST_WAYS, f"{case.sample} has {count} ways: give it smaller operands"
    found = list(itertools.product(*choices))
    for partial in (PAVG, PMAX, PMIN):
        floats = [[R, partial] if t.is_floating_point() else [R] for t in case.tensors]
        found += [states for states in itertools.product(*floats) if partial in states]
    yield from (tuple((state,) for state in states) for states in found)


def comparable(case: Case) -> bool:
    """Operators of ours have no name in torch, and those that read no tensor have no placements."""
    return case.node.op.startswith("aten.") and bool(case.tensors)


def ways(case: Case, mesh: DeviceMesh) -> list[Way]:
    """Every placement that we or DTensor take on one axis of two ranks."""
    ours = ours_of(case, PAIR)
    asked = dict.fromkeys((*ours, *placements(case)))
    found = [Way(case, inputs, ours.get(inputs, ()), behaviour(case, inputs, mesh)) for inputs in asked]
    return [way for way in found if way.ours or way.theirs.kind == "runs"]


def products(case: Case, single: Sequence[Way], mesh: DeviceMesh, most: int) -> list[Way]:
    """What both do on two axes with operands placed on each in a way on which both agree on one: ``most`` products of
    two such ways, always the same."""
    agreed = [way for way in single if way.agree]
    pairs = list(itertools.combinations_with_replacement(agreed, 2))
    chosen = random.Random(str(case.sample)).sample(pairs, min(most, len(pairs)))
    ours = ours_of(case, SQUARE)
    found = []
    for one, other in chosen:
        inputs = tuple((*a, *b) for a, b in zip(one.inputs, other.inputs, strict=True))
        found.append(Way(case, inputs, ours.get(inputs, ()), behaviour(case, inputs, mesh)))
    return [way for way in found if way.ours or way.theirs.kind == "runs"]
