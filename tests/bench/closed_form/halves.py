"""Which rows of a table figures may be fitted on, and which their errors are reported on.

Of each table and device the rows are numbered from 0 in the order of the file, those that are left out not counted:
even ones are for fitting, odd ones are reported. All times of one row are in the same half, since they aren't
independent: a forward and a backward make the combined time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class OfRow(Protocol):
    """What belongs to a row of its table."""

    @property
    def row(self) -> int: ...


Held = TypeVar("Held", bound=OfRow)


def split(items: Iterable[Held]) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
    """The items of one table and device: (for fitting, reported)."""
    held: Sequence[Held] = tuple(items)
    fitted = set(sorted({item.row for item in held})[::2])
    return (
        tuple(item for item in held if item.row in fitted),
        tuple(item for item in held if item.row not in fitted),
    )
