"""docs/redistribution.md says what the code says: its tables, its example, its figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoplan.ir.layout import State
from autoplan.redistribution import NEUTRAL_STEPS, STEPS
from tests.bench import bench_redistribution as bench
from tests.bench.rivals.engines import OURS, Setting, engines
from tests.bench.rivals.steps import pairs, receive_bound

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "redistribution.md").read_text()


def section(name: str) -> str:
    """What stands between the marks of a part."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", DOCUMENT, re.DOTALL)
    assert found is not None, f"docs/redistribution.md has no part {name!r}"
    return found[1]


def rows(table: str) -> list[list[str]]:
    """Cells, without the two lines of the head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def moved(cell: str) -> str:
    """What crosses the links: "" for "–", whatever it says of what a rank does by itself."""
    return "" if cell.startswith("–") else cell


def test_the_table_of_transitions_is_the_codes() -> None:
    told = {(row[0], row[1]): (row[2].strip("`"), moved(row[3]), moved(row[4])) for row in rows(section("transitions"))}
    assert told == {ends: (step.op, step.forward, step.backward) for ends, step in STEPS.items()}


def test_the_steps_without_gradients_are_the_codes() -> None:
    told = {(row[0], row[1]): (row[2].strip("`"), moved(row[3])) for row in rows(section("neutral transitions"))}
    more = {ends: (step.op, step.forward) for ends, step in NEUTRAL_STEPS.items() if ends not in STEPS}
    assert told == more
    assert all(step.op in (STEPS[ends].op, "all_reduce") for ends, step in NEUTRAL_STEPS.items() if ends in STEPS)


@pytest.mark.parametrize("ends", [("R", "I"), ("R", "P"), ("I", "P"), ("S", "P")], ids=" -> ".join)
def test_steps_that_move_nothing_say_what_the_others_hold(ends: tuple[str, str]) -> None:
    (row,) = [row for row in rows(section("transitions")) if (row[0], row[1]) == ends]
    assert "first" in row[5]


def test_the_backwards_that_are_steps_themselves_are_those_of_the_duals() -> None:
    for source, target, *_, backward, _ in rows(section("transitions")):
        named = re.search(r"(\S) → (\S)\)", backward)
        if named:
            duals = [State.parse(text.replace("S", "S(0)")).gradient for text in (target, source)]
            assert [str(dual)[0] for dual in duals] == [named[1], named[2]], (source, target)


def test_the_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", section("example"), re.DOTALL)
    exec(compile(code, "docs/redistribution.md", "exec"), {})
    assert capsys.readouterr().out == printed


def figure(pairs: int, engine: str) -> list[str]:
    """An engine's row in the table of bytes over so many pairs."""
    table = section("figures").partition(f"{pairs:,} pairs.\n")[2]
    return next(row for row in rows(table.split("\n\n")[0]) if row[0] == engine)


def test_the_figures_of_mindspores_pairs_are_ours() -> None:
    """The rivals' totals are held by test_rivals; here, that the document has them, and ours by execution."""
    chosen = pairs(bench.ONE_AXIS_A_DIM)
    told = {name: figure(len(chosen), name)[1] for name in ("MindSpore", "MindSpore, its default", "shortest path")}
    assert list(told.values()) == ["327.00 n", "451.50 n", "297.00 n"]
    sampled = chosen[::3]
    found = bench.results(engines(Setting(bench.SMALL, bench.MESH))[OURS], sampled)
    assert not any(result.over for result in found.values())
    bounds = {pair: receive_bound(*pair, bench.SIZES) * bench.SMALL.elements for pair in sampled}
    assert all(result.received == bounds[pair] for pair, result in found.items())
    assert figure(len(chosen), OURS)[1:5] == ["272.25 n", "1.00", "0", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("layouts", [bench.ONE_AXIS_A_DIM, bench.IN_MESH_ORDER, bench.EVERY], ids=len)
def test_the_tables_of_bytes_are_as_printed(layouts: tuple[bench.Dims, ...]) -> None:
    assert "\n".join(bench.bytes_table(pairs(layouts))) in section("figures")
