"""What proving a rule found, as a table."""

from dataclasses import dataclass

from autoplan.rules.notation import AxisStrategy


def states_text(strategy: AxisStrategy) -> str:
    """ "S(0), R -> S(0)" """
    return f"{', '.join(map(str, strategy.inputs))} -> {strategy.output}"


@dataclass(frozen=True)
class Row:
    """One way to run the operator on an axis, over all the strategies on meshes that use it.

    states      of the operands and the result
    splits      the factor, "" where nothing is split
    strategies  on all meshes, over all calls
    value, gradients  the largest |a - b| / (1 + |b|) against one device; None where no gradient comes
    """

    states: str
    splits: str
    strategies: int
    value: float
    gradients: float | None


@dataclass(frozen=True)
class RuleReport:
    """A rule that equals the operator on one device under every strategy.

    specs      its notation, for the shapes of each call
    meshes     sizes of the meshes' axes
    notes      what is not wrong, but worth knowing: what the operator keeps for its backward
    """

    op: str
    specs: tuple[str, ...]
    dtype: str
    meshes: tuple[tuple[int, ...], ...]
    strategies: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def largest_difference(self) -> float:
        """Over all values and gradients."""
        return max((max(row.value, row.gradients or 0.0) for row in self.rows), default=0.0)

    def __str__(self) -> str:
        meshes = ", ".join("x".join(map(str, sizes)) for sizes in self.meshes)
        lines = [
            f"{self.op}: {self.strategies} strategies on meshes {meshes} equal one device, "
            f"largest difference {self.largest_difference:.1e} in {self.dtype}",
            *(f"  rule  {spec!r}" for spec in self.specs),
        ]
        wide = max([len("on an axis"), *(len(row.states) for row in self.rows)])
        head = f"  {'on an axis'.ljust(wide)}  {'splits':8}{'strategies':>12}{'value':>10}{'gradients':>12}"
        lines.append(head)
        for row in self.rows:
            gradients = "none" if row.gradients is None else f"{row.gradients:.1e}"
            lines.append(
                f"  {row.states.ljust(wide)}  {row.splits:8}{row.strategies:>12}{row.value:>10.1e}{gradients:>12}"
            )
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])
