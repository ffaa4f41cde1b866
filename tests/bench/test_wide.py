"""The wide table keeps what earlier runs found."""

from tests.bench.wide.cells import Cell, Row
from tests.bench.wide.document import document, summary
from tests.bench.wide.page import BEFORE, line_of, lines_in

GOOD, ONE = Cell(plan="dp=4", equal=True), Cell(error="ParallelismError: pp=2: the model is a chain of 1 parts.")
UNEQUAL = Cell(plan="dp=4", errors=(1.0,), error="NOT equal")
ROWS = (
    Row("torch clip", "", {"auto": GOOD, "tp=4": Cell("tp=4", True, split=0.834), "pp=2 tp=2": ONE}, "abc"),
    Row("torch dice", "Unsupported: it", {"auto": GOOD, "ddp": UNEQUAL, "tp=4": GOOD, "pp=2 tp=2": UNEQUAL}, "abd"),
    Row("torch gnn", "", dict.fromkeys(("auto", "ddp"), Cell(error="KeyError: 'x'", clear=False)), "abd"),
)


def test_a_page_is_read_as_it_was_written() -> None:
    lines = [line_of(row, "PyTorch") for row in ROWS]
    page = document(lines)
    assert list(lines_in(page).values()) == lines and document(list(lines_in(page).values())) == page
    assert [(line.equal, line.bad) for line in lines] == [(True, False), (False, True), (False, True)]
    assert lines[0].split == 83 and lines[1].reasons == ("ddp, pp=2 tp=2: NOT equal",)


def test_rows_that_name_no_commit_say_so() -> None:
    (line,) = lines_in("| torch vae | PyTorch | yes | equal | equal | equal | error | 100% |").values()
    assert (line.at, line.split, line.bad, line.equal) == (BEFORE, 100, False, False)


def test_what_rows_come_to() -> None:
    said = summary([line_of(row, "PyTorch") for row in ROWS])
    assert "3 models; torch.export traces 2 of them alone. Of those, 1 (50.0%) are planned and equal" in said
    assert "2 rows are neither equal nor a clear error" in said and "splits 83.0% of FLOPs" in said
