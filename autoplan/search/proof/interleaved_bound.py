"""What no plan undercuts where pipeline ranks hold several stages each, whatever its operators.

The linear program of ``chunk_rows``, over stages in fractions of segments. A rank's memory rounds to no fraction of a
segment: where that bound leaves a gap, the segments of each type that a rank holds (of few stages: that each holds),
and those that it recomputes, are whole numbers.

All segments of a block have the same operators, recomputed or not. What those of the heaviest can be is divided into
cells (``cells``), the one with the least bound again and again.

The schedule is in it as a whole where it is short (``chunk_timeline``). Of others some paths are: those of
``known_paths``, and the longest through the schedule with each answer's seconds, for as long as these raise the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from autoplan.cost.interleaved import rank_paths, splits
from autoplan.search.inter_op.chain_costs import Pieces, even_stages
from autoplan.search.proof.boxes import MOST_CELLS, Bound, Cell, Cells, least_of_cells
from autoplan.search.proof.interleaved_lp import Leaner, Rows, Tilt
from autoplan.search.proof.schedule_lp import short, timeline

NODES = 50           # of the search for whole numbers
CHUNKS = 4           # on which paths turn from one rank to another
SPARE = 0.3          # of the wall, that even stages of the fastest leave: then bytes don't matter
ENOUGH = 1e-3        # a relative gap of that one that is as good as none
ROUNDS = 16          # of paths that answers in fractions lead to
STALLED = 2          # such rounds that may raise nothing, one after another
RANKS_STAGES = 128   # of more stages whole numbers on each rank take seconds to say little
TINY = 2_000         # actions, times stages, of a schedule that is looked at in whole numbers first
EASY = 5_000         # the same of one that is in each cell
LIGHT = 5_000        # actions, times stages, of a schedule that is looked at as a whole in each cell
LIGHT_CELLS = 20     # that are then divided
CELL_STAGES = 16     # of more stages cells take seconds to say little
TIMED = 1_600        # actions of a schedule that is looked at in whole numbers: of twice as many it takes far longer
FEW_CELLS = 16       # that are divided, of many stages
TELLING = 0.98       # of the whole schedule's bound, which paths say at least where whole numbers by them are worth it

Held = Callable[[Cell], tuple[Pieces, Leaner]]
"""The pieces, and what leaner operators take, where those of the heaviest block are in a cell."""


def least_chunks_s(
    pieces: Pieces,
    leaner: Leaner | None = None,
    limit_s: float = np.inf,
    tilt: Tilt | None = None,
    divided: tuple[Cells, Held] | None = None,
    *,
    whole: bool = False,
) -> float:
    """Seconds that no cuts of the chain undercut, whatever of it is recomputed and however leanly its operators run;
    ``limit_s`` is enough.

    pieces   of the fastest operators, holding what the leanest do
    leaner   None: no bytes matter
    tilt     None: all operators take the forward and the backward as the fastest do
    divided  what the heaviest block's operators can be; None: that isn't divided
    whole    as tight as is known, which takes many times as long
    """
    if len(pieces) < pieces.stages:
        return np.inf
    root = _Asked(pieces, leaner, limit_s, tilt, list(known_paths(pieces)))
    bound_s = root.by_paths_s()
    if not whole or bound_s >= limit_s:
        return bound_s
    many = pieces.stages > CELL_STAGES
    if divided is not None and many and pieces.stages == len(pieces):
        return root.in_cells_s(*divided, bound_s, FEW_CELLS)
    paths_s, bound_s = root.in_fractions_s(bound_s)
    telling = paths_s >= TELLING * bound_s
    first = root.size <= TINY or root.light
    if first and bound_s < limit_s:
        bound_s = max(bound_s, root.as_whole_s(telling or root.size <= TINY))
    if divided is not None and bound_s < limit_s and (root.light or not many):
        bound_s = root.in_cells_s(*divided, bound_s, LIGHT_CELLS if root.light else MOST_CELLS)
    return bound_s if bound_s >= limit_s or first else max(bound_s, root.as_whole_s(telling))


@dataclass(frozen=True)
class _Asked:
    """One question; ``paths`` grow by what answers lead to."""

    pieces: Pieces
    leaner: Leaner | None
    limit_s: float
    tilt: Tilt | None
    paths: list[np.ndarray] = field(default_factory=list)

    def rows(self) -> Rows:
        return Rows(self.pieces, self.leaner, self.paths, self.tilt)

    def in_fractions_s(self, known_s: float) -> tuple[float, float]:
        """In fractions of segments: by paths; and by the whole schedule where it is short and they aren't enough."""
        paths_s = max(known_s, self.by_paths_s(ROUNDS))
        timed = paths_s < self.limit_s and short(self.pieces)
        return paths_s, max(paths_s, self.by_schedule_s()) if timed else paths_s

    def in_cells_s(self, cells: Cells, held: Held, known_s: float, most: int) -> float:
        """By what it is in each cell of the heaviest block's operators. In those that hold no less than an answer that
        is all they hold: there the bound is sought in whole numbers, where that is easy. Where the whole schedule is
        light it is asked of each cell that comes first."""

        def of(cell: Cell) -> _Asked:
            pieces, leaner = held(cell)
            return replace(self, pieces=pieces, leaner=leaner, paths=list(self.paths))

        def whole_s(cell: Cell) -> float:
            asked = of(cell)
            assert asked.leaner is not None
            return replace(asked, leaner=asked.leaner.unpriced()).as_whole_s(telling=True)

        further: tuple[Bound, ...] = ()
        slower: tuple[Bound, ...] = (whole_s,) if self.easy else ()
        if self.light:
            further = (lambda cell: of(cell).by_schedule_s(),)
            slower = (lambda cell: of(cell).by_schedule_s(whole=True),)
        return least_of_cells(cells, lambda cell: of(cell).by_paths_s(), self.limit_s, known_s, slower, most, further)

    @property
    def easy(self) -> bool:
        """Whether whole numbers are sought in cells: of small schedules, or where each stage has one segment."""
        return self.size <= EASY or self.pieces.stages == len(self.pieces)

    @property
    def size(self) -> int:
        """Actions, times stages."""
        return int(self.pieces.rounds.script.kinds.size) * self.pieces.stages

    def as_whole_s(self, telling: bool) -> float:
        """In whole numbers: by the paths, where these tell what counts; and by the whole schedule, where that is short
        and they aren't enough."""
        paths_s = self.in_whole_numbers_s() if telling else 0.0
        timed = paths_s < self.limit_s and self.timed
        return max(paths_s, self.by_schedule_s(whole=True)) if timed else paths_s

    @property
    def light(self) -> bool:
        """Whether it is in each cell, too."""
        return self.timed and self.size <= LIGHT

    @property
    def timed(self) -> bool:
        """Whether the whole schedule is looked at in whole numbers."""
        return short(self.pieces) and int(self.pieces.rounds.script.kinds.size) <= TIMED

    def by_paths_s(self, rounds: int = 1) -> float:
        """By the paths, which grow by those that the answers lead to, in so many rounds."""
        rows, bound_s, stalled = self.rows(), 0.0, 0
        for _ in range(rounds):
            found = rows.linear().solved(enough=self.limit_s * rows.scale)
            stalled = 0 if found.bound / rows.scale > bound_s * (1 + ENOUGH) else stalled + 1
            bound_s = max(bound_s, found.bound / rows.scale)
            if rounds == 1 or found.values is None or stalled > STALLED or splits(self.pieces.schedule):
                break
            self.paths.append(self.pieces.rounds.script.path(rows.durations_s(found.values)).counts)
            rows = self.rows()
        return bound_s

    def in_whole_numbers_s(self) -> float:
        """By the paths, in whole numbers: of few stages the segments on each, else those of each rank."""
        if self.pieces.stages > RANKS_STAGES:
            return 0.0
        rows = self.rows()
        program = rows.linear()
        return program.bound(whole=True, nodes=NODES, gap=ENOUGH) / rows.scale

    def by_schedule_s(self, *, whole: bool = False) -> float:
        """By the whole schedule, in fractions or in whole numbers."""
        rows = self.rows()
        if not whole:
            return timeline(rows).bound() / rows.scale
        found = timeline(rows, self.limit_s, whole=True).bound(whole=True, nodes=NODES, gap=ENOUGH)
        return min(found / rows.scale, self.limit_s)


def roomy(pieces: Pieces) -> bool:
    """Whether so much is free that no plan worth a thought is short of bytes; pieces of the fastest operators."""
    if pieces.recompute not in ("auto", "none"):
        return False
    return pieces.over(pieces.pinned(even_stages(pieces))) <= -SPARE * pieces.wall


def known_paths(pieces: Pieces) -> np.ndarray:
    """[paths, 3, v·d]: those that any schedule of its kind has. Where the backward is split: to each rank by the first
    microbatch's forward, then all that the rank does."""
    ranks, many = pieces.ranks, pieces.microbatches
    if splits(pieces.schedule):
        even = pieces.path(pieces.pinned(even_stages(pieces))).counts
        found = np.zeros((ranks, 3, pieces.stages))
        for rank in range(ranks):
            found[rank, 0, :rank] = 1
            found[rank, :, rank::ranks] = many
        return np.concatenate([found, pieces.rounds.paths, even[None]])
    rows = rank_paths(ranks, many, pieces.virtual_stages)
    chunks = np.unique(np.linspace(0, pieces.virtual_stages - 1, CHUNKS).round().astype(int))
    rows = np.concatenate([rows[c * ranks : (c + 1) * ranks] for c in chunks])
    return np.stack([rows, rows, 0 * rows], axis=1)
