"""The page of rehearsed jobs: what was run before stays with its date, what was never run is said so."""

from __future__ import annotations

import pytest

from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.search.space.systems import SYSTEMS as KNOWN
from tests.bench.rehearsals import HEADER, JOBS, SYSTEMS, Row, document, named, refusal, row, rows_of

RUN = Row("unet on 8", "dp=8", True, 8, 2, "1 of 1", 0.2, 0, 8, 0.8, 95, 0.6)


def test_rows_stay_with_their_dates_until_their_jobs_run_again() -> None:
    first = document({RUN.job: row(RUN.cells(), "2026-01-02")})
    known = rows_of(first)
    assert list(known) == [RUN.job] and known[RUN.job].endswith("| 2026-01-02 |")
    other = named("dlrm on 8", "zero3")
    second = document({**known, other: row([other, "failed"], "2026-01-03")})
    assert rows_of(second) == {**known, other: row([other, "failed"], "2026-01-03")}
    assert document(rows_of(second)) == second


def test_every_job_has_a_row_and_every_row_every_column() -> None:
    text = document({})
    assert all(f"| {named(job, system)} | not run |" in text for job in JOBS for system in SYSTEMS)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count(" |") + line.count("-|") for line in lines} == {len(HEADER)}


def test_named_systems_are_known_and_follow_in_a_table_of_their_own() -> None:
    assert all(system in KNOWN for system in SYSTEMS)
    ran = named("unet on 8", "zero3")
    chosen, others = document({ran: row([ran, "`dp=8`"], "2026-01-03")}).split("## Under named systems")
    assert ran in others and ran not in chosen


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DoesNotFitError("Llama", "does not fit: 9 GB on a device, of which 8 GB are parameters", "shrink"),
         "does not fit: 9 GB on a device"),
        (ParallelismError("dp=64", "the batch has 32 rows", "give more"), "refused: dp=64: the batch has 32 rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_says_why_in_one_cell(error: DoesNotFitError | ParallelismError, said: str) -> None:
    assert refusal(error) == said
