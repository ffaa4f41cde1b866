"""Caches of tables that lie off the devices: how large each is, and how many rows it misses."""

from __future__ import annotations

import math

from autoplan.cluster import ClusterSpec
from autoplan.ir.tables import Box, Cached, Placed
from autoplan.option_values import ON_DISK
from autoplan.options import Parallelism

SHARES = (0.2, 0.1, 0.05, 0.02, 0.0)
"""Of a table's rows those that a cache has room for, as they are tried; the first is TorchRec's. 0: no more than one
microbatch may look up, which there is room for in any case."""
EULER = 0.5772156649


def cached(placed: Placed, pinned: Parallelism, state: str) -> Cached:
    """What lies where.

    pinned  with the rows of a microbatch, and the cache's share
    state   as of ``Cached``
    """
    assert pinned.tables is not None and pinned.micro_batch is not None and pinned.table_cache is not None
    sizes = tuple(size_of(placed, box, pinned) for box in placed.boxes)
    return Cached(pinned.tables, state, sizes)


def size_of(placed: Placed, box: Box, pinned: Parallelism) -> tuple[int, int]:
    """(rows that there is room for, rows of a microbatch that are missing) of a box.

    Of a table split by rows each box has its part of the look-ups, where they are spread evenly.
    """
    assert pinned.micro_batch is not None and pinned.table_cache is not None
    table = placed.tables[box.table]
    looked_up = pinned.micro_batch * table.length
    slots = min(box.rows, max(math.ceil(box.rows * pinned.table_cache), looked_up, 1))
    misses = 1 - hits(box.rows, slots) if pinned.table_misses is None else pinned.table_misses
    own = min(box.rows, looked_up * box.rows / table.rows)
    return slots, min(math.ceil(own * misses), box.rows - slots)


def hits(rows: int, slots: int) -> float:
    """Of look-ups that are spread by Zipf's law over so many rows, the share that the most frequent ones have: of row k
    as often as 1/k (Breslau et al. 1999 found exponents of 0.64 to 0.83 of web pages, Zipf 1 of words)."""
    return harmonic(slots) / harmonic(rows)


def harmonic(count: int) -> float:
    """1 + 1/2 + … + 1/count, to a hundredth (Euler-Maclaurin)."""
    return math.log(count) + EULER + 1 / (2 * count) - 1 / (12 * count**2)


def check_cached(cluster: ClusterSpec, pinned: Parallelism) -> str:
    """What devices lack for it; "" for nothing."""
    device = cluster.profile()[0]
    if device.host is None:
        return f"the profile of {device.name} has no figures of a host (a table [host])"
    if pinned.tables == ON_DISK and device.host.disk is None:
        return f"the profile of {device.name} has no figures of a disk (a table [host.disk])"
    return ""
