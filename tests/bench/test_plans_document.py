"""docs/appendix/plans.md: every published case is in its table, ours never slower; its sentences add up."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.bench.plans_document import HEADER, flops_of, measured_s, parts, reason, rows
from tests.bench.prices.document import rewritten
from tests.bench.published_choices import CASES, Found, Priced

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "appendix" / "plans.md").read_text(encoding="utf-8")
OURS = Priced("tp=2", 10.0, 0.5, 60 * 10**9, 0.0, 1.0, 2.0, 0.0, 8, 8, 2, 4)
THEIRS = Priced("tp=8 pp=4", 15.0, 1 / 3, 50 * 10**9, 1.5, 4.5, 0.5, 0.5, 8, 8, 8, 1)
FOUND = Found(OURS, THEIRS, ("Priced with pipeline_schedule left to the search.",), 1024, 312e12, 80 * 10**9)


def section(name: str) -> str:
    return DOCUMENT.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]


def written() -> list[list[str]]:
    """The cells of the document's table, its header and rule apart."""
    header, rule, *lines = ([c.strip() for c in line.strip("|").split("|")] for line in section("table").splitlines())
    assert tuple(header) == HEADER and set(rule) == {"---"}
    return lines


def seconds(cell: str) -> float:
    return float(cell.removesuffix(" s"))


def test_every_case_is_in_the_table_measured_theirs_and_ours() -> None:
    expected = [(case.name, whose) for case in CASES for whose in ("measured", "theirs", "ours")]
    assert [(line[0], line[1]) for line in written()] == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ours_is_never_slower_than_theirs_and_fits(case) -> None:
    plans = {line[1]: line for line in written() if line[0] == case.name}
    used, wall = map(float, re.findall(r"[\d.]+", plans["ours"][6]))
    assert used <= wall
    if plans["theirs"][3] != "-":
        assert seconds(plans["ours"][3]) <= seconds(plans["theirs"][3])
    assert float(plans["measured"][4]) == case.tflops


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_has_its_reason_and_its_source(case) -> None:
    assert sum(line.startswith(f"- **{case.name}.** ") for line in section("reasons").splitlines()) == 1
    assert f"- {case.name}: {case.tflops:.0f} TFLOP/s a device; {case.source}." in section("sources").splitlines()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_row_has_one_count_of_flops(case) -> None:
    """TFLOP/s and MFU both fall as the step gets longer: their products with it are the same in every row."""
    lines = [line for line in written() if line[0] == case.name and line[3] != "-"]
    for one, other in pairwise(lines):
        for column in (4, 5):
            first, second = (seconds(line[3]) * float(line[column].rstrip("%")) for line in (one, other))
            assert first == pytest.approx(second, rel=0.02)


def test_published_sizes_multiply_to_the_devices() -> None:
    for case in CASES:
        nodes, each = re.fullmatch(r"(\d+)x(\d+) .*", case.cluster).groups()
        given = [case.published.dp, case.published.tp, case.published.pp]
        product = 1
        for size in given:
            product *= size or 1
        devices = int(nodes) * int(each)
        assert product == devices if None not in given else devices % product == 0
        assert f"{devices:,}" in case.name


def test_the_sentence_names_the_parts_of_the_difference_the_largest_first() -> None:
    told = reason(OURS, THEIRS)
    assert told.startswith("Ours takes 5.00 s (33.3%) less a step: it waits 3.50 s less for collectives of the tensor")
    assert "waits 1.50 s more for collectives of the data axis" in told
    assert "it computes 1.00 s less (it recomputes 8 of 8 blocks where theirs recomputes 8, and has" in told
    assert "has microbatches of 4 rows over 2 devices where theirs has 1 row over 8 devices)" in told
    assert OURS.computes_s + 3.0 == OURS.step_s
    assert reason(OURS, replace(OURS, step_s=10.0)) == "Ours is theirs."
    assert reason(OURS, replace(OURS, plan="ZeRO-2", step_s=9.999)).startswith("Both take as long, to 0.01%")


def test_a_case_of_which_nothing_published_fits_says_so() -> None:
    case = CASES[0]
    lines = rows(case, replace(FOUND, theirs=None))
    assert [line[1:4] for line in lines][1] == ("theirs", "doesn't fit, see below", "-")
    printed = parts({case.name: replace(FOUND, theirs=None)})
    told = "No plan under the published fields fits. Priced with pipeline_schedule left to the search."
    assert told in printed["reasons"]


def test_the_measured_step_takes_the_published_flops() -> None:
    for case in CASES:
        assert measured_s(case, FOUND) * FOUND.devices * case.tflops * 1e12 == pytest.approx(flops_of(case, FOUND))


def test_every_mark_is_a_part() -> None:
    printed = parts({case.name: FOUND for case in CASES})
    assert re.findall(r"<!-- (?!end of )(.*?) -->", DOCUMENT) == list(printed)
    assert printed["table"] in rewritten(DOCUMENT, printed)
