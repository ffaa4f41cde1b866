"""A rule for an operator that has none, found by trying: which dims go together, and which of them split.

It is a guess from one call with a few small random tensors. ``check_rule`` on the user's own inputs is the proof.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from autoplan.ir.graph import Argument, Node, TensorType, map_refs
from autoplan.ir.mesh import Mesh
from autoplan.rules.check.case import Case, Sample
from autoplan.rules.check.check import TOLERANCES
from autoplan.rules.check.counterexamples import found_differences
from autoplan.rules.check.shapes import Factors, Shape, find_factors, notation_of
from autoplan.rules.check.simulate import gradient_of, run_whole
from autoplan.rules.notation import Rule
from autoplan.rules.operator_names import known_overload
from autoplan.rules.strategies import Strategy, split_factor

HALVES = Mesh.of(tp=2)
SMALL = 2**16  # elements of a tensor that is tried as it is
SIZES = (4, 6, 8, 10, 12, 14, 16, 20)  # in place of longer ones: distinct, and halved without a rest


@dataclass(frozen=True)
class Suggestion:
    """A rule that held where it was tried.

    tried  whether the operator ran on small tensors; else only its shapes speak for the rule
    """

    rule: Rule
    tried: bool

    def __str__(self) -> str:
        """As it is written: Rule('a b, b -> a b', whole='b', linear=((0,),))."""
        words = [repr(self.rule.spec)]
        whole = tuple(sorted(self.rule.whole_factors))
        if whole:
            words.append(f"whole={whole if len(whole) > 1 else whole[0]!r}")
        if self.rule.linear:
            words.append(f"linear={self.rule.linear!r}")
        if self.rule.reduce != "sum":
            words.append(f"reduce={self.rule.reduce!r}")
        return f"Rule({', '.join(words)})"


def suggested_rule(node: Node, types: Mapping[str, TensorType]) -> Suggestion | None:
    """A rule by which a node could be split; None where none is plausible, or the operator can't be called here."""
    operands = [types[name] for name in node.operands]
    if known_overload(node.op) is None or not operands:
        return None
    sizes = smaller_sizes([*operands, node.type])
    for device in ("cpu", "meta"):
        for shapes in ([tuple(sizes.get(s, s) for s in t.shape) for t in operands], [t.shape for t in operands]):
            if device == "cpu" and any(TensorType(shape, "bool").elements > SMALL for shape in shapes):
                continue
            found = tried(Trial(node, tuple(operands), device), shapes)
            if found is not None:
                return found if found.rule.whole_factors < frozenset(found.rule.factors) else None
    return None


def smaller_sizes(types: Sequence[TensorType]) -> dict[int, int]:
    """A small size for each long one."""
    long = sorted({size for t in types for size in t.shape if size > SIZES[0]})
    return dict(zip(long, SIZES, strict=False)) if len(long) <= len(SIZES) else {}


@dataclass(frozen=True)
class Trial:
    """Calls of one operator on other sizes."""

    node: Node
    operands: tuple[TensorType, ...]
    device: str

    def sample(self, shapes: Sequence[Shape], dtype: torch.dtype) -> Sample:
        """The call with random tensors of these shapes."""
        generator = torch.Generator().manual_seed(0)
        pairs = zip(shapes, self.operands, strict=True)
        tensors = iter([values(shape, kind, self.device, generator, dtype) for shape, kind in pairs])

        def given(argument: Argument) -> Argument:
            return map_refs(argument, lambda _: next(tensors))

        args = tuple(map(given, self.node.args))
        return Sample(self.node.op, args, tuple((key, given(value)) for key, value in self.node.kwargs))

    def run(self, shapes: Sequence[Shape], dtype: torch.dtype) -> Shape | None:
        """The result's shape; None where the operator refuses the operands', for whatever reason."""
        whole = Rule(f"{', '.join('[]' for _ in self.operands)} -> []")
        try:
            return tuple(Case.of(self.sample(shapes, dtype), whole).result.shape)
        except Exception:  # an operator of the user's may refuse sizes by any error; a guess is all that is lost
            return None


def values(
    shape: Shape, kind: TensorType, device: str, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Random numbers within what most operators take: positive, or 0 and 1."""
    if device == "meta":
        return torch.empty(shape, dtype=dtype if kind.floating else getattr(torch, kind.dtype), device="meta")
    if kind.floating:
        return (0.5 + torch.rand(shape, generator=generator, dtype=dtype)).requires_grad_()
    return torch.randint(2, shape, generator=generator).to(getattr(torch, kind.dtype))


def tried(trial: Trial, shapes: Sequence[Shape]) -> Suggestion | None:
    """The rule that is found at these sizes; None where the operator doesn't run on them."""
    for dtype, tolerance in TOLERANCES.items():
        factors = find_factors(shapes, partial(trial.run, dtype=dtype))
        if factors is None:
            continue
        candidate = candidate_rule(factors, shapes, trial, dtype)
        if candidate is None or trial.device == "meta":
            return None if candidate is None else Suggestion(candidate, False)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Suggestion(held(trial.sample(shapes, dtype), candidate, tolerance), True)
    return None


def candidate_rule(factors: Factors, shapes: Sequence[Shape], trial: Trial, dtype: torch.dtype) -> Rule | None:
    """What the shapes alone say: every factor that may split by them does."""
    result = trial.run(shapes, dtype)
    assert result is not None
    found = notation_of(factors, shapes, result)
    if found is None:
        return None
    spec, whole = found
    rule = Rule(spec)
    if trial.device == "meta":  # whether what the result lacks adds up, shapes don't tell
        whole |= {f for f in rule.factors if all(f not in term for term in rule.result)}
    return Rule(spec, whole=frozenset(whole))


def held(sample: Sample, rule: Rule, tolerance: float) -> Rule:
    """The rule with what fails on two ranks taken back, and what passes partial sums added."""
    case = Case.of(sample, rule)
    try:
        run_whole(case, gradient_of(case))
    except Exception:  # an operator without a gradient is tried by its value alone
        case = case.without_gradients()
    reduced = [f for f in rule.factors if all(f not in term for term in rule.result) and f not in rule.whole_factors]
    for reduce in ("sum", "mean", "max") if reduced else ():
        if any(splits(replace(case, rule=replace(rule, reduce=reduce)), f, tolerance) for f in reduced):
            rule = replace(rule, reduce=reduce)
            break
    case = replace(case, rule=rule)
    failing = {f for f in rule.factors if split_factor(rule, f) and not splits(case, f, tolerance)}
    rule = replace(rule, whole=rule.whole_factors | failing)
    return replace(rule, linear=linear_groups(replace(case, rule=rule), tolerance))


def splits(case: Case, factor: str, tolerance: float) -> bool:
    """Whether a factor was split over two ranks, with nothing wrong in it."""
    ways = [s for s in case.strategies(HALVES) if s.on("tp").factor == factor]
    return bool(ways) and all(equal(case, s, tolerance) for s in ways)


def linear_groups(case: Case, tolerance: float) -> tuple[tuple[int, ...], ...]:
    """Operands, one or all floating ones together, through which partial sums pass."""
    floating = [i for i, t in enumerate(case.types) if t.floating]
    groups = [(i,) for i in floating] + ([tuple(floating)] if len(floating) > 1 else [])
    if not case.node.type.floating:
        return ()
    return tuple(group for group in groups if passes(case, group, tolerance))


def passes(case: Case, group: tuple[int, ...], tolerance: float) -> bool:
    alone = replace(case, rule=replace(case.rule, linear=(group,), whole=frozenset(case.rule.factors)))
    ways = [s for s in alone.strategies(HALVES) if "P" in {state.kind for state in s.on("tp").inputs}]
    return bool(ways) and all(equal(alone, s, tolerance) for s in ways)


def equal(case: Case, strategy: Strategy, tolerance: float) -> bool:
    found = found_differences(case, strategy, HALVES, gradient_of(case))
    return not isinstance(found, str) and all(d.error <= tolerance for d in found)

