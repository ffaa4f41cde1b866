"""What a division's neighbours are: a segment on another stage, or recomputed on another stage of its rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from autoplan.pricing.chunks import splits
from autoplan.search.pieces import Division, Pieces

NEIGHBOURS = 48    # of a division, the most promising


def descend(pieces: Pieces, division: Division, paths: np.ndarray) -> Division:
    """The division that moves of single segments lead to, each the one that shortens the longest path most.

    paths  [paths, 3, v·d]
    """
    longest_s = float(np.tensordot(paths, pieces.durations_s(division), 2).max())
    for _ in range(2 * pieces.stages):
        near = next(promising(pieces, division, paths), None)
        if near is None:
            break
        after_s = float(np.tensordot(paths, pieces.durations_s(near), 2).max())
        if after_s >= longest_s * (1 - 1e-9):
            break
        division, longest_s = near, after_s
    return division


def promising(pieces: Pieces, division: Division, paths: np.ndarray) -> Iterator[Division]:
    """Divisions in which one stage has a segment less and another one more, by the length of their longest path, were
    all segments like the last of their stage."""
    ends = np.array([first for first, _ in division.stages] + [len(pieces)])
    givers = np.flatnonzero(np.diff(ends) > 1)
    if not givers.size:
        return
    last = ends[givers + 1] - 1
    weights_s = pieces.weights_s[last]
    one = np.stack([pieces.forward_s[last], pieces.backward_s[last] - weights_s, weights_s])[:, :, None]
    gained = sum(paths[:, kind, None] * seconds for kind, seconds in enumerate(one))  # of each giver's, on each stage
    left = np.take_along_axis(gained, givers[None, :, None], axis=2)
    reached = (np.tensordot(paths, pieces.durations_s(division), 2)[:, None, None] - left + gained).max(axis=0)
    reached[np.arange(givers.size), givers] = np.inf
    for place in np.argsort(reached, axis=None, kind="stable")[:NEIGHBOURS].tolist():
        number, target = divmod(place, pieces.stages)
        source = int(givers[number])
        if not np.isfinite(reached[number, target]):
            return
        moved, (low, high) = ends.copy(), sorted((source, target))
        moved[low + 1 : high + 1] += -1 if source < target else 1
        yield pieces.pinned(tuple(itertools.pairwise(moved.tolist())))


def elsewhere(pieces: Pieces, division: Division, paths: np.ndarray) -> Iterator[Division]:
    """Divisions in which a rank recomputes a segment less in full on one of its stages, and one more on another, by the
    length of their longest path, were all segments alike."""
    full, free = np.array(division.full), np.array(pieces.counts(division.stages)) - np.array(division.full)
    free = free - np.array(division.part)
    places = pieces.repeated.astype(bool)
    if not full.any() or pieces.recompute != "auto":
        return
    counts = paths[:, 1].copy()
    if splits(pieces.schedule):
        counts[:, 0] = paths[:, 2, 0]
    spent = pieces.by_rank(counts * float(pieces.full_s[places].mean()))    # [paths, v, ranks]
    lengths = np.tensordot(paths, pieces.durations_s(division), 2)[:, None, None, None]
    reached = (lengths - spent[:, :, None] + spent[:, None, :]).max(axis=0)  # [from v, to v, ranks]
    possible = (pieces.by_rank(full) > 0)[:, None] & (pieces.by_rank(free) > 0)[None]
    reached[~possible | np.eye(len(reached), dtype=bool)[:, :, None]] = np.inf
    for place in np.argsort(reached, axis=None, kind="stable")[:NEIGHBOURS].tolist():
        source, target, rank = np.unravel_index(place, reached.shape)
        if not np.isfinite(reached[source, target, rank]):
            return
        moved = full.copy()
        moved[[source * pieces.ranks + rank, target * pieces.ranks + rank]] += -1, 1
        yield replace(division, full=tuple(moved.tolist()))
