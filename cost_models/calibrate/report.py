"""What a calibration found, for its reader: the error of each kind, and every point as a row of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields

from rich.table import Table

from cost_models.calibrate.cases import AnyCase, Errors, Split, errors


def held_out_errors(points: Split[AnyCase], predict: Callable[[AnyCase], float]) -> tuple[Errors, ...]:
    """The errors of each family over the points that were not fitted."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for sample in points.held_out:
        pairs.setdefault(sample.case.family, []).append((predict(sample.case), sample.seconds))
    return errors(pairs)


def mean_error(found: Sequence[Errors]) -> float:
    """Over all points alike; 0 where there are none."""
    count = sum(each.count for each in found)
    return sum(each.mean * each.count for each in found) / count if count else 0.0


def error_table(found: Sequence[Errors]) -> Table:
    """|predicted - measured| / measured by kind."""
    table = Table("kind", title="error on sizes not fitted", title_justify="left")
    for column in ("points", "mean", "max"):
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(each.kind, str(each.count), f"{each.mean:.1%}", f"{each.maximum:.1%}")
    return table


def rows(points: Split[AnyCase], predict: Callable[[AnyCase], float]) -> Iterator[Mapping[str, object]]:
    """Every point: its kind and sizes, seconds measured and predicted, and whether it was fitted."""
    for fitted, samples in ((1, points.fitted), (0, points.held_out)):
        for sample in samples:
            yield {
                "kind": sample.case.family,
                "case": sizes_text(sample.case),
                "measured_s": f"{sample.seconds:.4g}",
                "predicted_s": f"{predict(sample.case):.4g}",
                "fitted": fitted,
            }


def sizes_text(case: AnyCase) -> str:
    """The case's numbers by name, such as "m=64 n=64 k=64"."""
    numbers = ((field.name, getattr(case, field.name)) for field in fields(case))
    return " ".join(f"{name}={value}" for name, value in numbers if isinstance(value, int) and value is not True)
