"""What the ranks' outcomes together differ in from the operator on one device."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from autoplan.ir.mesh import Mesh
from autoplan.rules.check.case import Case
from autoplan.rules.check.simulate import Coordinates, Outcome, join, relative_error
from autoplan.rules.strategies import Strategy


@dataclass(frozen=True)
class Difference:
    """One comparison: of the value, of an operand's gradient, of an operand that was updated in place.

    what   "value", "gradient" or "update"
    operand  its position, -1 for the value
    error  the largest |a - b| / (1 + |b|), also between ranks that ought to hold the same
    """

    what: str
    operand: int
    error: float

    def __str__(self) -> str:
        return {
            "value": "the value",
            "gradient": f"the gradient of operand {self.operand}",
            "update": f"operand {self.operand} after its update in place",
        }[self.what]


def differences(
    case: Case, strategy: Strategy, mesh: Mesh, outcomes: Mapping[Coordinates, Outcome], whole: Outcome
) -> Iterator[Difference]:
    """The value's, each gradient's and each updated operand's."""
    value, apart = join({at: o.value for at, o in outcomes.items()}, [s.output for _, s in strategy.axes], mesh)
    yield Difference("value", -1, max(apart, relative_error(value, whole.value)))
    for i, want in enumerate(whole.gradients):
        states = [s.inputs[i] for _, s in strategy.axes]
        if want is not None:
            found = {at: g for at, o in outcomes.items() if (g := o.gradients[i]) is not None}
            gradient, apart = join(found, [state.gradient for state in states], mesh)
            yield Difference("gradient", i, max(apart, relative_error(gradient, want)))
        if not torch.equal(whole.after[i], case.tensors[i].detach()):
            after, apart = join({at: o.after[i] for at, o in outcomes.items()}, states, mesh)
            yield Difference("update", i, max(apart, relative_error(after, whole.after[i])))
