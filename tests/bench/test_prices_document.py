"""docs/appendix/prices.md: its formulas and figures are those that the cost functions print now, and true."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sympy

from cost_models import collective, compute
from cost_models.hardware import Link
from cost_models.sensitivity import symbol
from tests.bench.prices import __main__ as command
from tests.bench.prices.document import FORMULAS, parts, readable, rewritten
from tests.bench.prices.examples import (
    POINT,
    RECIPES,
    at_least_one,
    bandwidths_gb_per_s,
    by_batch,
    by_network,
    by_sequence,
    held_bytes,
    slopes,
    step_s,
)
from tests.bench.prices.formulas import symbolic_device, tidy

PATH = Path(__file__).resolve().parents[2] / "docs" / "appendix" / "prices.md"
DOCUMENT = PATH.read_text(encoding="utf-8")
FIGURE = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]\d+)?[kMG]?")


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    return parts()


def section(name: str) -> str:
    return DOCUMENT.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_are_the_cost_functions(name: str, printed: dict[str, str]) -> None:
    """No figure of a profile is in them: they change with the code alone."""
    assert section(name) == printed[name], "a cost function has changed: run make prices, and read what it says of it"


@pytest.mark.parametrize("name", ["closed forms", "sensitivities", "crossovers"])
def test_figures_are_those_of_the_profile(name: str, printed: dict[str, str]) -> None:
    assert section(name) == printed[name], "a figure of h100-sxm or of a step has changed: run make prices"


def test_every_mark_is_a_part(printed: dict[str, str]) -> None:
    marks = re.findall(r"<!-- (?!end of )(.*?) -->", DOCUMENT)
    assert marks == list(printed)
    assert re.findall(r"<!-- end of (.*?) -->", DOCUMENT) == marks


def test_the_command_writes_what_it_prints(
    printed: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "parts", lambda: printed)  # what it works out takes seconds, and is known
    path = tmp_path / "prices.md"
    path.write_text(FIGURE.sub("0", DOCUMENT), encoding="utf-8")
    assert command.main(["--write", str(path)]) == 0
    written, told = path.read_text(encoding="utf-8"), capsys.readouterr().out
    for name, text in printed.items():
        assert f"<!-- {name} -->\n{text}\n<!-- end of {name} -->" in written and text in told
    with pytest.raises(ValueError, match="no part 'memory': put <!-- memory --> and <!-- end of memory -->"):
        rewritten(DOCUMENT.replace("<!-- memory -->", ""), printed)


def test_a_tidied_formula_is_the_formula() -> None:
    """With numbers put into what is printed, the cost function's own answer to those numbers."""
    values = {"m": 4096, "n": 1024, "k": 512, "F": 1e15, "e": 0.8, "B": 3e12, "launch": 2e-6, "R": 128, "C": 256,
              "P": 132, "k0": 100}  # fmt: skip
    device = symbolic_device()
    sizes = [symbol(name) for name in "mnk"]
    exact = compute.matmul_seconds(*sizes, 1, "bfloat16", device)
    at = {symbol(name): value for name, value in values.items()}
    assert float(tidy(exact).subs(at)) == pytest.approx(float(exact.subs(at)))
    told = dict(FORMULAS["collectives"]())["all-to-all over M nodes"]
    links = {"s": 1e-5, "t": 1e-6, "β": 4e11, "s2": 2e-5, "t2": 5e-6, "β2": 5e10, "bytes": 1e8, "N": 8, "M": 4}
    path = ((8, Link(1e-6, 4e11, 1e-5)), (4, Link(5e-6, 5e10, 2e-5)))
    by_name = {symbol(name): value for name, value in links.items()}
    assert float(tidy(told).subs(by_name)) == pytest.approx(collective.all_to_all_seconds(1e8, path))
    assert readable(sympy.sympify("Max(x**2, 3*y)")) == "max(x², 3·y)"


@pytest.mark.parametrize("name", RECIPES)
def test_elasticities_are_what_a_little_more_does(name: str) -> None:
    """Of the call itself, whose whole tiles it averages over: so much more of a size that it gains some."""
    node, network = bandwidths_gb_per_s()
    point = dict(batch=POINT["batch"], sequence=POINT["sequence"], node=node, network=network)
    found = slopes(name)
    for by in point:
        less, more = ({**point, by: point[by] * factor} for factor in (0.5, 2.0))
        low, high = step_s(name, **less), step_s(name, **more)
        steep = (math.log(high) - math.log(low)) / math.log(4)
        assert found[by].elasticity == pytest.approx(steep, abs=0.12), by
    assert found["batch"].seconds == pytest.approx(step_s(name, **point), rel=0.05)


@pytest.mark.parametrize("name", RECIPES)
def test_the_bytes_in_the_document_are_those_of_the_call(name: str) -> None:
    line = next(line for line in section("closed forms").splitlines() if line.startswith(f"{name}, bytes"))
    slope, whole = (float(each) for each in re.findall(r"(\d\S*e\+\d+)", line))
    assert slope * 8192 + whole == pytest.approx(held_bytes(name, 8192.0), rel=0.01)


def test_crossovers_are_where_the_calls_cross() -> None:
    """Just below and above each border the calls' order is the sentence's."""
    node, _ = bandwidths_gb_per_s()
    asked = (
        (by_sequence(), lambda name, tokens: at_least_one(name, 2**20 / tokens, tokens)),
        (by_batch(), lambda name, batch: at_least_one(name, batch, 8192.0)),
        (by_network(), lambda name, speed: step_s(name, 128.0, 8192.0, node, speed)),
    )
    for comparison, price in asked:
        for first, second in pairwise(comparison.spans):
            below, above = first.high * 0.97, second.low * 1.03
            assert price(first.name, below) < price(second.name, below), comparison.sentences
            assert price(second.name, above) < price(first.name, above), comparison.sentences
    assert np.all([len(comparison.spans) >= 1 for comparison, _ in asked])
