"""Our rules beside DTensor's: wherever they disagree there is an explanation, and docs/appendix/rules.md tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.device_mesh import DeviceMesh

import autoplan.rules.builtin  # noqa: F401  registers them
from autoplan.ir.layout import P, R, S
from autoplan.rules.registry import registered
from tests.bench.dtensor_rules import behaviour, silent_meshes
from tests.bench.rules_compared import Way, comparable, placements, products, ways
from tests.bench.rules_explained import EXPLANATIONS, explanation_of, split_twice
from tests.support.rule_samples import s, samples, x
from tests.support.simulate import Case

CASES = [case for case in map(Case.of, samples()) if comparable(case)]
MANY = 60  # ways to place a sample's operands: with more, it is left to the slow test
EACH = 3  # of as many operators the quick test takes one
DOCUMENT = Path(__file__).parents[2] / "docs" / "appendix" / "rules.md"


@pytest.fixture(scope="module")
def meshes() -> Iterator[tuple[DeviceMesh, DeviceMesh]]:
    with silent_meshes() as meshes:
        yield meshes


@pytest.fixture(scope="module")
def pair(meshes: tuple[DeviceMesh, DeviceMesh]) -> DeviceMesh:
    return meshes[0]


def quick(cases: list[Case]) -> list[Case]:
    """Of some operators, always the same, the sample with the fewest ways, where they are few."""
    found: dict[str, tuple[int, Case]] = {}
    for case in cases:
        count = len(list(placements(case)))
        if count < found.get(case.node.op, (MANY, case))[0]:
            found[case.node.op] = (count, case)
    return [found[op][1] for op in sorted(found)[::EACH]]


def unexplained(found: list[Way]) -> list[str]:
    return [f"{way.case.sample}: {way}" for way in found if not way.agree and explanation_of(way) is None]


def test_disagreements_are_explained(pair: DeviceMesh) -> None:
    """Of some samples; the slow test takes all of them."""
    assert not [line for case in quick(CASES) for line in unexplained(ways(case, pair))]


@pytest.mark.slow
def test_all_disagreements_are_explained(pair: DeviceMesh) -> None:
    found = {case.sample: ways(case, pair) for case in CASES}
    assert not [line for single in found.values() for line in unexplained(single)]
    covered = {e.name for single in found.values() for w in single if not w.agree and (e := explanation_of(w))}
    assert covered == {e.name for e in EXPLANATIONS}, "an explanation explains nothing any more"


def test_the_comparison_tells_what_dtensor_does(pair: DeviceMesh) -> None:
    """The instrument itself, on what is known of DTensor."""
    linear = Case.of(s("aten.linear.default", x(4, 6, 8), x(12, 8)))

    def asked(*states: object) -> tuple[str, ...]:
        found = behaviour(linear, [(state,) for state in states], pair)
        return (found.kind, *found.output)

    assert asked(R, S(0)) == ("runs", "S(2)")
    assert asked(S(2), S(1)) == ("runs", "P")
    assert asked(S(0), S(0)) == ("moves",)
    assert asked(P, R) == ("runs", "P")
    added = Case.of(s("aten.add.Tensor", x(4, 8), x(4, 8)))
    assert behaviour(added, [(S(0),), (R,)], pair).kind == "slices"


def test_an_unknown_disagreement_has_no_explanation(pair: DeviceMesh) -> None:
    """A rule of ours that lacks a split, as if somebody had forgotten it."""
    case = Case.of(s("aten.relu.default", x(4, 8)))
    forgotten = [Way(way.case, way.inputs, (), way.theirs) for way in ways(case, pair) if way.inputs == ((S(1),),)]
    assert forgotten and unexplained(forgotten)
    invented = [Way(case, ((S(0),),), ((P,),), behaviour(case, [(S(0),)], pair))]
    assert unexplained(invented)


@pytest.mark.slow
def test_products_of_what_both_take(meshes: tuple[DeviceMesh, DeviceMesh]) -> None:
    """On two axes both take what they take on each, in samples whose dims divide by four, but for one that it fails."""
    pair, square = meshes
    cases = [Case.of(s("aten.linear.default", x(4, 4, 8), x(12, 8))), Case.of(s("aten.add.Tensor", x(4, 8), x(4, 8)))]
    found = [way for case in cases for way in products(case, ways(case, pair), square, 30)]
    assert len(found) > 20
    assert not [str(way) for way in found if not way.agree and not split_twice(way)]
    assert sum(map(split_twice, found)) <= 1, "one way to place the operands, not a class of them"


def operators_told() -> set[str]:
    _, _, listed = DOCUMENT.read_text().partition("<!-- operators -->")
    return set(re.findall(r"^\| `(.+?)` \|", listed, re.MULTILINE))


def test_the_document_tells_every_explanation() -> None:
    text = DOCUMENT.read_text()
    assert not [e.name for e in EXPLANATIONS if f"**{e.name}**" not in text or e.text not in text]
    assert "unexplained" not in text
    assert operators_told() <= {op.removeprefix("aten.") for op in registered()}


@pytest.mark.slow
def test_the_document_tells_every_operator() -> None:
    """``make rules`` after a rule was added."""
    assert operators_told() == {case.node.op.removeprefix("aten.") for case in CASES}
