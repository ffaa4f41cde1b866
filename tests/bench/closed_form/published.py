"""Where published measurements are, and the results of all that are there.

Beside the checkout there may be a folder of them, ``../shared/data/published``. Where there is none, the few rows under
``data``: a selection spread over each file, its lines and columns as they are there, so that the command and its tests
run anywhere. Fewer rows say less; the document says which of the two it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.closed_form.case import Case
from tests.bench.closed_form.collectives import FILE as COLLECTIVES_FILE
from tests.bench.closed_form.collectives import collective_results
from tests.bench.closed_form.kernels import results as kernel_results
from tests.bench.closed_form.memory import memory_results
from tests.bench.closed_form.predict import result_of
from tests.bench.closed_form.result import TableResult
from tests.bench.closed_form.rows import Table, read_table, rows_of
from tests.bench.closed_form.tables import TABLES

SHIPPED = Path(__file__).parent / "data"
BESIDE = Path(__file__).resolve().parents[4] / "shared" / "data" / "published"


def _collectives(folder: Path) -> tuple[TableResult, ...]:
    path = folder / COLLECTIVES_FILE
    return collective_results(rows_of(path)) if path.exists() else ()


OTHERS: tuple[Callable[[Path], tuple[TableResult, ...]], ...] = (_collectives, kernel_results, memory_results)
"""What is no step or layer of a transformer: results of the files that a folder holds."""


def default_folder() -> Path:
    """The published tables beside the checkout, else those that the repository holds."""
    return BESIDE if BESIDE.is_dir() else SHIPPED


def all_results(folder: Path) -> tuple[TableResult, ...]:
    """The results of every known file in the folder. A ``FileNotFoundError`` where it holds none."""
    found = [result for table, path in _present(folder) for result in result_of(read_table(table, rows_of(path)))]
    for results in OTHERS:
        found += results(folder)
    if not found:
        raise FileNotFoundError(f"{folder} holds none of the published tables: {', '.join(t.file for t in TABLES)}")
    return tuple(found)


def cases_on(folder: Path, device: str) -> tuple[Case, ...]:
    """The steps and layers of a device in every table that figures may be fitted on."""
    return tuple(
        case for table, path in _present(folder) if table.fitted
        for case in read_table(table, rows_of(path)).cases if case.device == device
    )  # fmt: skip


def _present(folder: Path) -> Iterator[tuple[Table, Path]]:
    """The tables that the folder holds, and with them those that the repository alone holds."""
    inside = [table for table in TABLES if not table.shipped and (folder / table.file).exists()]
    for table in TABLES:
        if table in inside:
            yield table, folder / table.file
        elif table.shipped and inside:
            yield table, SHIPPED / table.file
