"""The page of measured memory: rows stay until their plans run again, and the summary is read off them."""

from __future__ import annotations

from tests.bench.memory.cases import CASES
from tests.bench.memory.table import document, rows_of


def line(name: str, off: str, rehearsed: str) -> str:
    return f"| {name} | `dp=4` | 2.0 MB | 1.9 MB | {off} | 2.0 MB | {rehearsed} | 3.0 MB |"


ROWS = {
    "ddp": line("ddp", "-1.5%", "-0.01%"),
    "zero1": line("zero1", "+2.0%", "-0.02%"),
    "mixture, experts, untrained router": line("mixture, experts, untrained router", "-7.0%", "-9.31%"),
}


def test_rows_stay_until_their_plans_run_again() -> None:
    text = document(ROWS)
    assert rows_of(text) == ROWS and document(rows_of(text)) == text
    again = {**ROWS, "ddp": line("ddp", "+0.1%", "+0.00%")}
    assert rows_of(document(again)) == again
    assert list(rows_of(document({**ROWS, "no case": line("no case", "+9.0%", "+0.00%")}))) == list(ROWS)


def test_untrained_routers_are_told_apart() -> None:
    said = document(ROWS).splitlines()[-1]
    assert said == (
        "3 plans. Furthest off: predicted +2.0%, rehearsed -0.02%. With untrained routers: predicted "
        "-7.0%, rehearsed -9.31%."
    )
    alone = document({"ddp": ROWS["ddp"]}).splitlines()[-1]
    assert alone == "1 plans. Furthest off: predicted -1.5%, rehearsed -0.01%."
    assert sum(case.untrained for case in CASES.values()) == 2
