"""What a block's operators can be, divided by what they hold: the hull of ``bounds`` without its holes.

Prices of bytes find answers on a convex hull alone. A bound by them has all segments of a block run by a mixture of two
answers, which none does: they all have the same operators. So the answers are divided into cells,

    state ≤ bytes of parameters < state_below        kept ≤ bytes kept < kept_below

in each of which the integer program says what a segment takes at least, were borders and gradients free. The answer
that it gives divides its cell in three: what holds no less of both, which is as quick at most; what keeps as much and
has fewer bytes of parameters; and what keeps less. Whoever bounds a plan takes the cell with the least bound, divides
it, and so on, until that cell holds no less than its own answer: then it is as good as one answer alone.

What has far more bytes of parameters than the leanest is quick, in many ways, and seldom fits: first of all the cells
are bands of these bytes, so that it goes at once.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autoplan.search.intra_op.problem import Problem
from autoplan.search.intra_op.pruning import variables
from autoplan.search.intra_op.solve import Infeasible, Solver

GAP = 1e-3        # relative, of the integer programs
SMALLER = 1e-4    # a relative difference of bytes that is as good as none, and more than solvers round
LARGE = 5_000     # variables of a program that isn't worth its time
MOST_CELLS = 14   # of a bound's, divided
BANDS = (1.02, 1.1, 1.25, 1.5, 2.0, 4.0)  # times the bytes of parameters of the leanest


@dataclass(frozen=True)
class Cell:
    """Seconds, and bytes, are of one segment."""

    least_s: float
    state: float
    kept: float
    state_below: float = float("inf")
    kept_below: float = float("inf")


Answer = tuple[float, float, float] | None
"""(seconds, bytes of parameters, bytes kept) of the quickest of a cell; None where there is none."""


@dataclass
class Cells:
    """The cells of one block. Nothing is solved twice, whoever asks.

    problem  of the block alone (``bounds.alone``)
    count    segments that have it
    leanest  bytes of parameters of one
    steps    of the simplex method (``Engine``) for each answer
    spent    the same for all answers that were asked for, known or not
    until    how much may be spent before nothing more is divided
    """

    problem: Problem
    count: int
    leanest: float
    answers: dict[tuple[float, float, float], Answer] = field(default_factory=dict)
    steps: dict[tuple[float, float, float], int] = field(default_factory=dict)
    spent: int = 0
    until: float = float("inf")

    def __post_init__(self) -> None:
        self.solver = Solver(self.problem)

    @property
    def small(self) -> bool:
        """Whether the integer programs take less than seconds: those of several tensor axes don't."""
        return variables(self.problem) <= LARGE

    def bands(self) -> tuple[Cell, ...]:
        """All there is."""
        edges = [0.0, *(times * self.leanest for times in BANDS), float("inf")]
        return tuple(Cell(0.0, low, 0.0, high) for low, high in itertools.pairwise(edges) if low < high)

    def answer(self, cell: Cell) -> Answer:
        limits = (cell.state, cell.state_below, cell.kept_below)
        if limits not in self.answers:
            before = self.solver.steps
            self.answers[limits] = self.solved(cell)
            self.steps[limits] = self.solver.steps - before
        self.spent += self.steps[limits]
        return self.answers[limits]

    def solved(self, cell: Cell) -> Answer:
        """The program's answer; where the solver has none in time, that nothing is known."""
        count = self.count
        states = (cell.state * count, cell.state_below * count)
        try:
            found = self.solver.within(states, cell.kept_below * count, GAP)
        except Infeasible:
            return (cell.least_s, cell.state, cell.kept)
        return None if found is None else (found.bound / count, found.state_bytes / count, found.kept_bytes / count)

    def divided(self, cell: Cell) -> tuple[Cell, ...]:
        """The cells that a cell consists of, none quicker than its answer; the first has nothing less than that."""
        answer = self.answer(cell)
        if answer is None:
            return ()
        state, kept = (held * (1 - SMALLER) for held in answer[1:])
        inside = replace(cell, least_s=max(cell.least_s, answer[0]))
        state = state if cell.state < state < cell.state_below else cell.state
        kept = kept if cell.kept < kept < cell.kept_below else cell.kept
        parts = [replace(inside, state=state, kept=kept)]
        if state > cell.state:
            parts.append(replace(inside, kept=kept, state_below=state))
        if kept > cell.kept:
            parts.append(replace(inside, kept_below=kept))
        return tuple(parts)


Bound = Callable[[Cell], float]


def least_of_cells(
    cells: Cells,
    quick: Bound,
    enough_s: float,
    known_s: float = 0.0,
    slower: Sequence[Bound] = (),
    most: int = MOST_CELLS,
    further: Sequence[Bound] = (),
) -> float:
    """What no plan undercuts, by what it says of each cell; infinite where none fits.

    quick     asked of every cell
    enough_s  beyond which it doesn't matter
    known_s   known already
    slower    asked of those that hold no less than an answer, one after another
    most      cells that are divided
    further   asked of each that comes first, one after another, before it is divided
    """
    numbers = itertools.count()
    queue: list[tuple[float, int, Sequence[Bound], bool, Cell]] = []

    def add(bound_s: float, questions: Sequence[Bound], whole: bool, cell: Cell) -> None:
        heapq.heappush(queue, (bound_s, next(numbers), questions, whole, cell))

    for band in cells.bands():
        add(max(known_s, quick(band)), further, False, band)
    while queue and queue[0][0] < enough_s:
        bound_s, _, questions, whole, cell = heapq.heappop(queue)
        if questions:
            add(max(bound_s, questions[0](cell)), questions[1:], whole, cell)
        elif not whole and most and cells.spent < cells.until:
            most -= 1
            for number, part in enumerate(cells.divided(cell)):
                asked = (*further, *slower) if number == 0 else further
                add(max(bound_s, quick(part)), asked, number == 0, part)
        else:
            return bound_s
    return queue[0][0] if queue else float("inf")
