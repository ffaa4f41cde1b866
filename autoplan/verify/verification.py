"""What a verification found: relative errors beside their bounds."""

from dataclasses import dataclass, field

from autoplan.errors import VerificationError
from autoplan.verify.compare import FLOAT64, Worst

STEPS = 3  # of the optimizer
ORDERS = 10.0
"""Errors that ranks may have for those of two orders of one device: both are draws of one distribution, and the worst
of many parameters' relative errors, each a ratio of rounding, varies by about so much from draw to draw."""
MOST = 1e-6
"""The greatest bound: a program that leaves something out differs by more."""
Line = tuple[str, Worst, float, str]
"""What is compared, its largest error, the bound, and where or when."""


@dataclass(frozen=True)
class Verified:
    """How far a sharded program was from one device, as relative errors.

    ranks    processes it ran on
    note     what was verified in place of the plan itself, "" where it was the plan itself
    against  what it was compared with
    """

    ranks: int
    note: str = field(default="", kw_only=True)
    against: str = field(default="one device", kw_only=True)

    def lines(self) -> tuple[Line, ...]:
        raise NotImplementedError

    @property
    def passed(self) -> bool:
        return all(worst.error <= bound for _, worst, bound, _ in self.lines())

    def __str__(self) -> str:
        verdict = f"{'equal' if self.passed else 'NOT equal'} to {self.against}"
        told = [f"{verdict}, on {self.ranks} local processes in float64{': ' + self.note if self.note else ''}"]
        for name, worst, bound, where in self.lines():
            told.append(f"  {name:10}  {worst.error:.1e}   (bound {bound:.0e})   {where}".rstrip())
        return "\n".join(told)

    def check(self) -> None:
        """VerificationError where an error exceeds its bound."""
        if not self.passed:
            raise VerificationError(
                "plan.verify()",
                f"the sharded program differs from one device:\n{self}",
                "report it with the plan.json: a plan that differs is autoplan's mistake",
            )


@dataclass(frozen=True)
class Verification(Verified):
    """Of a training: the loss and the gradients of the first step, the parameters after the last.

    steps     that were taken
    rounding  the same errors of one device against itself, its sums taken in the other order; 0 where FLOAT64's bounds
              are met, for then nobody asks
    """

    loss: Worst
    gradients: Worst
    parameters: Worst
    steps: int = field(default=STEPS, kw_only=True)
    rounding: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0), kw_only=True)

    def lines(self) -> tuple[Line, ...]:
        last = f"after {self.steps} optimizer steps   {self.parameters.name}"
        usual = (FLOAT64.loss, FLOAT64.gradients, FLOAT64.parameters)
        bounds = [max(bound, min(ORDERS * r, MOST)) for bound, r in zip(usual, self.rounding, strict=True)]
        return (
            ("loss", self.loss, bounds[0], ""),
            ("gradients", self.gradients, bounds[1], self.gradients.name),
            ("parameters", self.parameters, bounds[2], last),
        )


@dataclass(frozen=True)
class ForwardVerification(Verified):
    """Of the forward alone: its whole result."""

    result: Worst

    def lines(self) -> tuple[Line, ...]:
        return (("result", self.result, FLOAT64.loss, ""),)
