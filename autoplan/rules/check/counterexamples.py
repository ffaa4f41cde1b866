"""A strategy that differs from one device: which, in what, by how much, and what in the rule to change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from autoplan.ir.layout import P
from autoplan.ir.mesh import Mesh
from autoplan.rules.check.case import Case
from autoplan.rules.check.differ import Difference, differences
from autoplan.rules.check.report import states_text
from autoplan.rules.check.simulate import Coordinates, Outcome, run_whole, simulated
from autoplan.rules.notation import Rule
from autoplan.rules.strategies import Strategy


@dataclass(frozen=True)
class Counterexample:
    """One strategy under which the parts don't make the whole.

    what    "the value differs by 3.1e-01 from one device"
    remedy  what to change
    """

    strategy: Strategy
    mesh: Mesh
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"under {strategy_text(self.strategy, self.mesh)} {self.what}"


def strategy_text(strategy: Strategy, mesh: Mesh) -> str:
    """ "S(0), R -> S(0) on 2 ranks, splitting b", axis by axis."""
    words = []
    for axis, s in strategy.axes:
        splits = f", splitting {s.factor}" if s.factor else ""
        words.append(f"{states_text(s)} on {mesh.size(axis)} ranks{splits}")
    return "; then ".join(words)


def found_differences(case: Case, strategy: Strategy, mesh: Mesh, gradient: Tensor | None) -> list[Difference] | str:
    """How far a strategy that doesn't communicate is from one device; a text where it can't be run."""
    try:
        outcomes = simulated(case, strategy, mesh, gradient)
    except Exception as error:  # whatever a user's operator raises: it is told, not swallowed
        said = str(error).strip().splitlines()
        return f"the operator doesn't run on its parts ({type(error).__name__}: {said[0] if said else ''})"
    return compared(case, strategy, mesh, outcomes, run_whole(case, gradient))


def compared(
    case: Case, strategy: Strategy, mesh: Mesh, outcomes: Mapping[Coordinates, Outcome], whole: Outcome
) -> list[Difference] | str:
    """The differences; a text where parts have shapes that don't make the result's."""
    shape = case.node.type.shape
    want = strategy.output(len(shape), mesh).local_shape(shape, mesh)
    got = {tuple(o.value.shape) for o in outcomes.values()}
    if got != {want}:
        return f"the operator gives parts of shape {list(next(iter(got - {want})))} in place of {list(want)}"
    return list(differences(case, strategy, mesh, outcomes, whole))


def counterexample(
    case: Case, strategy: Strategy, mesh: Mesh, found: list[Difference] | str, tolerance: float
) -> Counterexample | None:
    """What is wrong, None where nothing is."""
    if isinstance(found, str):
        return Counterexample(strategy, mesh, found, remedy(case.rule, strategy, "run"))
    wrong = [d for d in found if not d.error <= tolerance]
    if not wrong:
        return None
    first = wrong[0]
    what = f"{first} differs by {first.error:.1e} from one device"
    told = remedy(case.rule, strategy, first.what, reductions(case, strategy, mesh))
    return Counterexample(strategy, mesh, what, told)


def remedy(rule: Rule, strategy: Strategy, what: str, fitting: str = "") -> str:
    """What to change in the rule. ``fitting``: a reduction of the parts that is right."""
    ways = tuple(dict.fromkeys(s for _, s in strategy.axes))
    extra = next((s for s in ways if s in rule.extra), None)
    if extra is not None:
        return f"correct the strategy {states_text(extra)} of extra=, or leave it out"
    factor = next((s.factor for s in ways if s.factor), "")
    if factor:
        if fitting and what == "value":
            return f"the parts reduce to the whole by reduce={fitting!r}"
        whole = f"if {factor} can't be split, say so: whole={factor!r}"
        return whole + {
            "run": "; if an argument is the result's shape or a size that is split, name it: shape_arg=, factor_args=",
            "gradient": "; if it can, the gradient that is registered for the operator isn't right on a part",
        }.get(what, "")
    partial = next((s.inputs for s in ways if P in s.inputs), ())
    if partial:
        group = tuple(i for i, state in enumerate(partial) if state == P)
        return f"a sum of such parts doesn't pass through the operator: take {group} out of linear"
    return (
        "it is whole there, and yet differs: it draws random numbers, or changes what it reads; "
        "let it do neither, or accept it as replicated without a rule"
    )


def reductions(case: Case, strategy: Strategy, mesh: Mesh) -> str:
    """The reduction by which the value would be right where it is reduced otherwise, "" where none or it is not."""
    reduced = [s for _, s in strategy.axes if s.factor and s.output.kind == "P"]
    if not reduced:
        return ""
    others = (r for r in ("sum", "mean") if r != case.rule.reduce)  # those that a gradient passes
    return next((r for r in others if reduces_to_whole(case, reduced[0].factor, r, mesh)), "")


def reduces_to_whole(case: Case, factor: str, reduce: str, mesh: Mesh) -> bool:
    """Whether the operator's value is the ``reduce`` of its parts along a factor."""
    other = replace(case.without_gradients(), rule=replace(case.rule, reduce=reduce))
    ways = [s for s in other.strategies(mesh) if all(way.factor == factor for _, way in s.axes)]
    if not ways:
        return False
    found = found_differences(other, ways[0], mesh, None)
    return not isinstance(found, str) and all(d.error <= 1e-6 for d in found if d.what == "value")
