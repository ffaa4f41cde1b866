"""The page of rehearsed jobs: what was run before stays with its date, what was never run is said so."""

from __future__ import annotations

from tests.bench.rehearsals import HEADER, JOBS, Row, document, named, row, rows_of

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
    assert all(f"| {job} | not run |" in text for job in JOBS)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count(" |") + line.count("-|") for line in lines} == {len(HEADER)}
