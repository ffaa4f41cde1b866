"""The table of systems: one row for each that there is, with its paper and what the matrix found."""

from __future__ import annotations

from autoplan.search.space.systems import ASYNCHRONOUS, SYSTEMS
from tests.bench.systems.cases import cells
from tests.bench.systems.document import renewed
from tests.bench.systems_table import MATRIX, PAPERS, ROOT, document, equalities, printed


def test_every_system_has_a_paper_and_a_row_in_both_tables() -> None:
    assert PAPERS.keys() == SYSTEMS.keys()
    lines = (ROOT / "docs/systems.md").read_text().splitlines()
    rows = [line.split(" | ")[0].strip("| `") for line in lines if line.startswith("| `")]
    assert rows == list(SYSTEMS) and equalities(MATRIX.read_text()).keys() == SYSTEMS.keys()


def test_what_the_matrix_says_of_a_system() -> None:
    text = "| system | ranks | a | b | c | d | e |\n| one | 4 | equal | equal |  |  |  |\n"
    found = equalities(text + "| two | 8 | equal | off by 3e-2 |  |  |  |\n| three | of | a | b | c | d | e |\n")
    assert found == {"one": "equal", "two": "equal; off by 3e-2"}
    assert all("rule" in told for name, told in equalities(MATRIX.read_text()).items() if name in ASYNCHRONOUS)


def test_rows_that_are_not_run_again_stay() -> None:
    """The matrix names its torch; the page has nothing else that a run may change."""
    assert renewed(MATRIX.read_text(), [], cells()) == MATRIX.read_text()
    page = (ROOT / "docs/systems.md").read_text()
    assert document(printed(page)) == page
