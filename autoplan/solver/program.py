"""A mixed-integer program in arrays, some of whose costs are bytes at a price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Program:
    """minimise cost·v with least ≤ A·v ≤ most, v ≥ 0; where v[i] is an option it is at most 1.

    first  [groups + 1] where each group's options begin among the variables
    time_s, state_bytes, kept_bytes  [variables] of which a cost is the weighted sum
    starts, columns, factors         A's rows, compressed: row r has entries [starts[r], starts[r + 1])
    least, most                      [rows]
    units                            bytes of a step of each of the last rows, which limit what is held; empty where
                                     there are no such rows
    """

    first: np.ndarray
    time_s: np.ndarray
    state_bytes: np.ndarray
    kept_bytes: np.ndarray
    starts: np.ndarray
    columns: np.ndarray
    factors: np.ndarray
    least: np.ndarray
    most: np.ndarray
    units: tuple[float, ...] = ()

    @property
    def options(self) -> int:
        """Variables that are 0 or 1."""
        return int(self.first[-1])

    @property
    def variables(self) -> int:
        return len(self.time_s)

    @property
    def constraints(self) -> int:
        return len(self.least)

    def cost(self, state: float, kept: float) -> np.ndarray:
        """Σ x (time + w_state·state + w_act·kept) + Σ y·arc + w_act Σ z·kept."""
        return self.time_s + state * self.state_bytes + kept * self.kept_bytes


def rows_of(found: Program) -> Iterator[tuple[list[tuple[int, float]], float, float]]:
    """Of each row: its entries (variable, factor), the least and the most that they come to."""
    columns, factors = found.columns.tolist(), found.factors.tolist()
    bounds = zip(found.least.tolist(), found.most.tolist(), strict=True)
    for start, end, (least, most) in zip(found.starts.tolist(), found.starts[1:].tolist(), bounds, strict=False):
        yield list(zip(columns[start:end], factors[start:end], strict=True)), least, most
