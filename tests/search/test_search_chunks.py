"""Cuts of a chain into several stages on each rank: against every cut there is, and against the schedule as run."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from autoplan.cost.interleaved import least_chunk_rounds, least_held, rank_paths, rounds_of
from autoplan.search.inter_op.chain_costs import Division, Pieces, even_stages
from autoplan.search.inter_op.interleaved import choose_chunks
from autoplan.search.proof import interleaved_bound, interleaved_lp
from autoplan.search.proof.boxes import Cell, Cells
from autoplan.search.proof.interleaved_bound import known_paths, least_chunks_s
from autoplan.search.proof.interleaved_lp import Leaner, Rows, Tilt
from autoplan.search.proof.schedule_lp import short, timeline
from cost_models.pipeline import in_flight, simulate
from cost_models.pipeline.shared import Sharing
from tests.support.sampling import sampled

SCHEDULES = [("interleaved", 2), ("zero-bubble", 1), ("zero-bubble", 2)]
EXACTLY = {"gap": 1e-10, "whole_cuts": 200, "few_integers": 1000}


def chain(seed: int, schedule: str, virtual_stages: int, recompute: str, segments: int, microbatches: int) -> Pieces:
    """A random chain, its first and last segment unlike the others, under no wall."""
    rng, ranks = random.Random(seed), 2
    kinds = rng.choice([1, 2])
    order = [kinds, *(i * kinds // (segments - 2) for i in range(segments - 2)), kinds + 1]

    def along(low: float, high: float) -> np.ndarray:
        return np.array([rng.uniform(low, high) for _ in range(kinds + 2)])[order]

    forward, kept, inputs = along(1, 3), along(5, 10), np.ones(segments)
    weights = 2 * forward * along(0.3, 0.6) * (schedule == "zero-bubble")
    messages = np.array([[rng.uniform(0.05, 0.2) * (k > 0)] * segments for k in range(ranks * virtual_stages)])
    buffers = microbatches * inputs * 0.5
    return Pieces(
        forward, 2 * forward, weights, 2 * forward, forward, 0.3 * forward, along(10, 30), kept, inputs, 0.5 * kept,
        0.8 * kept, along(0, 1), along(2, 6), along(0, 2), buffers, buffers, 0.1 * inputs, along(0, 3), along(0, 2),
        along(0, 4), messages,
        np.array([kind < kinds for kind in order]), recompute, schedule, ranks, virtual_stages, microbatches, 1e9,
        rounds_of(schedule, ranks, microbatches, virtual_stages),
    )  # fmt: skip


def walled(pieces: Pieces, share: float) -> Pieces:
    """Under a wall of a share of what even stages hold."""
    return replace(pieces, wall=share * (pieces.over(pieces.pinned(even_stages(pieces))) + pieces.wall))


def divisions(pieces: Pieces) -> list[Division]:
    """Every cut, and every count that may be recomputed."""
    found = []
    for cuts in itertools.combinations(range(1, len(pieces)), pieces.stages - 1):
        stages = tuple(itertools.pairwise((0, *cuts, len(pieces))))
        if pieces.recompute != "auto":
            found.append(pieces.pinned(stages))
            continue
        options = [[(a, b) for a in range(n + 1) for b in range(n + 1 - a)] for n in pieces.counts(stages)]
        for chosen in itertools.product(*options):
            found.append(Division(stages, tuple(a for a, _ in chosen), tuple(b for _, b in chosen)))
    return found


CASES = [
    *((n, *SCHEDULES[n % 3], "none", 7, (2, 4, 6)[n % 3], (1.02, 1.1, 1.3)[n // 3 % 3]) for n in range(12)),
    *((seed, "interleaved", 2, kind, 7, 4, 1.05) for seed, kind in enumerate(("full", "selective") * 2)),
    *((seed, "interleaved", 2, "auto", 6, 4, (0.8, 0.85, 0.9)[seed % 3]) for seed in range(3)),
]


@pytest.mark.parametrize(("seed", "schedule", "virtual", "recompute", "segments", "microbatches", "share"), CASES)
def test_the_cuts_are_the_best_there_are(
    seed: int, schedule: str, virtual: int, recompute: str, segments: int, microbatches: int, share: float
) -> None:
    pieces = walled(chain(seed, schedule, virtual, recompute, segments, microbatches), share)
    best_s = min((pieces.step_s(d) for d in divisions(pieces) if pieces.over(d) <= 0), default=np.inf)
    found, quick = choose_chunks(pieces, **EXACTLY), choose_chunks(pieces)  # type: ignore[arg-type]
    assert (found is None) == np.isinf(best_s)
    assert least_chunks_s(pieces) <= best_s * (1 + 1e-9)
    if found is not None:
        assert found.cuts.objective_s == pytest.approx(best_s, rel=1e-9)
        assert pieces.over(found.division) <= 0
    if quick is not None:
        assert quick.cuts.bound_s <= best_s * (1 + 1e-9) <= quick.cuts.objective_s * (1 + 2e-9)


@pytest.mark.parametrize("seed", sampled(range(12), range(4)))  # both schedules
def test_no_operators_undercut_the_bound_of_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ways to run the repeated segments, each with all cuts and counts under a tight wall, against one bound."""
    rng, schedule = random.Random(seed), ("interleaved", "zero-bubble")[seed % 4 == 3]
    fast = walled(chain(2 * seed, schedule, 2, "auto", 6, 4), rng.choice([0.8, 0.85, 0.9]))
    ways = [fast, *(slower(fast, rng) for _ in range(2))]
    kept, states = (np.minimum.reduce([getattr(way, name) for way in ways]) for name in ("kept", "states"))
    lean = replace(fast, kept=kept, states=states, selective=np.minimum.reduce([way.selective for way in ways]))
    prices, flight = np.array([0.0, 0.1, 0.3, 1.0, 3.0]), float(fast.rounds.held[0][0].mean())
    spent_s = [way.forward_s + way.backward_s for way in ways]
    held = [way.kept + way.states / flight for way in ways]
    all_s = np.array([s[:, None] + prices * h[:, None] for s, h in zip(spent_s, held, strict=True)]).min(axis=0)
    slower_s = all_s - spent_s[0][:, None] - prices * (kept + states / flight)[:, None]
    leaner = Leaner(prices, prices / flight, 1.0, slower_s, np.zeros(len(fast)))
    tilt = Tilt(*(
        np.max([getattr(fast, name) - getattr(way, name) for way in ways], axis=0)
        for name in ("forward_s", "backward_s")
    ))  # fmt: skip
    best_s = min(w.step_s(d) for w in ways for d in divisions(w) if w.over(d) <= 0)
    rough_s, bound_s = least_chunks_s(lean, leaner), least_chunks_s(lean, leaner, tilt=tilt, whole=True)
    assert 0.7 * best_s <= rough_s <= bound_s * (1 + 1e-6) and bound_s <= best_s * (1 + 1e-6) < np.inf
    assert least_chunks_s(lean, leaner, best_s * 1.001, tilt, whole=True) <= best_s * (1 + 1e-6)
    known = least_chunks_s(lean, leaner, best_s * 0.999, tilt, whole=True)
    assert known <= best_s * (1 + 1e-6)
    divided = Ways(ways), partial(held_by, ways, lean, leaner)
    in_cells_s = least_chunks_s(lean, leaner, tilt=tilt, divided=divided, whole=True)
    assert rough_s <= in_cells_s * (1 + 1e-6) and in_cells_s <= best_s * (1 + 1e-6)
    monkeypatch.setattr(interleaved_bound, "LIGHT", 0)  # the whole schedule isn't asked of each cell
    in_cells_s = least_chunks_s(lean, leaner, tilt=tilt, divided=divided, whole=True)
    assert rough_s <= in_cells_s * (1 + 1e-6) and in_cells_s <= best_s * (1 + 1e-6)
    monkeypatch.setattr(interleaved_lp, "FEW_STAGES", 2)  # fewer than the stages: whole numbers on each rank
    monkeypatch.setattr(interleaved_bound, "CELL_STAGES", 2)
    by_ranks_s = least_chunks_s(lean, leaner, tilt=tilt, whole=True)
    assert rough_s <= by_ranks_s * (1 + 1e-6) and by_ranks_s <= best_s * (1 + 1e-6)
    monkeypatch.setattr(interleaved_bound, "EASY", 0)  # no whole numbers in cells
    in_cells_s = least_chunks_s(lean, leaner, tilt=tilt, divided=divided, whole=True)
    assert rough_s <= in_cells_s * (1 + 1e-6) and in_cells_s <= best_s * (1 + 1e-6)


class Ways(Cells):
    """Cells of given ways to run the repeated segments: seconds and bytes as times those of the first of them."""

    def __init__(self, ways: list[Pieces]) -> None:
        place = int(np.flatnonzero(ways[0].repeated)[0])
        columns = [np.array([getattr(way, name)[place] for way in ways]) for name in ("states", "kept")]
        spent = np.array([(way.forward_s + way.backward_s)[place] for way in ways])
        self.ways = list(zip(*(part / part[0] for part in (spent, *columns)), strict=True))
        self.leanest = min(state for _, state, _ in self.ways)

    def answer(self, cell: Cell) -> tuple[float, float, float] | None:
        left = [way for way in self.ways if cell.state <= way[1] < cell.state_below and way[2] < cell.kept_below]
        return min(left, default=None)


def held_by(ways: list[Pieces], lean: Pieces, leaner: Leaner, cell: Cell) -> tuple[Pieces, Leaner]:
    fast, mine = ways[0], ways[0].repeated
    sure_s = np.maximum(cell.least_s - 1, 0.0) * (fast.forward_s + fast.backward_s)
    more = (
        np.where(mine, np.maximum(times * held - least, 0.0), 0.0)
        for times, held, least in ((cell.kept, fast.kept, lean.kept), (cell.state, fast.states, lean.states))
    )
    return leaner.within(lean, np.where(mine, sure_s, 0.0), *more)


def slower(fast: Pieces, rng: random.Random) -> Pieces:
    """Other operators for the repeated segments: longer, and keeping less, or with fewer bytes of parameters."""
    mine = fast.repeated.astype(float)
    longer, less, states = (1 + rng.uniform(0, 0.3) * mine for _ in range(3))
    there = 1 + rng.uniform(-0.2, 0.3) * mine if fast.schedule != "zero-bubble" else longer
    forward_s, kept = fast.forward_s * there, fast.kept / less
    backward_s = (fast.forward_s + fast.backward_s) * longer - forward_s
    return replace(
        fast, forward_s=forward_s, backward_s=backward_s, full_s=np.maximum(fast.full_s, forward_s),
        part_s=np.maximum(fast.part_s, 0.3 * forward_s),
        weights_s=fast.weights_s * longer, whole_s=fast.whole_s * longer, kept=kept, selective=0.5 * kept,
        states=fast.states * rng.choice([states, 1 / states]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_a_schedule_in_fractions_is_the_schedule_where_nothing_is_left_to_divide(seed: int) -> None:
    """One segment on each stage: the linear program's time is that of the schedule as run."""
    pieces = chain(seed, "interleaved", 3, "none", 6, (2, 4, 6, 8)[seed])
    rows = Rows(pieces, None, list(known_paths(pieces)))
    by_hand = pieces.step_s(pieces.pinned(even_stages(pieces)))
    assert short(pieces) and timeline(rows).bound() / rows.scale == pytest.approx(by_hand, rel=1e-6)
    assert rows.linear().bound() / rows.scale <= by_hand


def test_a_schedule_in_fractions_bounds_all_divisions_and_more_than_paths_do() -> None:
    pieces = walled(chain(2, "interleaved", 2, "none", 9, 4), 1.05)
    best_s = min(pieces.step_s(d) for d in divisions(pieces) if pieces.over(d) <= 0)
    rows = Rows(pieces, None, list(known_paths(pieces)))
    by_paths_s = rows.linear().bound() / rows.scale
    fractions_s, whole_s = (
        timeline(Rows(pieces, None, rows.paths), whole=whole).bound(whole=whole, nodes=10_000) / rows.scale
        for whole in (False, True)
    )
    assert by_paths_s <= fractions_s * (1 + 1e-6) and fractions_s <= whole_s * (1 + 1e-6)
    assert whole_s <= best_s * (1 + 1e-6)
    limited = timeline(Rows(pieces, None, rows.paths), whole_s * 0.99, whole=True)
    assert np.isinf(limited.bound(whole=True, nodes=10_000))


def test_what_cannot_win_is_given_up() -> None:
    pieces = chain(1, "interleaved", 2, "none", 12, 8)
    found = choose_chunks(pieces)
    assert found is not None and choose_chunks(pieces, limit_s=found.cuts.bound_s * 0.99) is None


@pytest.mark.parametrize(("schedule", "virtual"), [*SCHEDULES, ("interleaved", 3)])
def test_seconds_and_bytes_are_those_of_the_schedule(schedule: str, virtual: int) -> None:
    pieces = chain(3, schedule, virtual, "none", 10, 6)
    division = pieces.pinned(even_stages(pieces))
    spent = pieces.durations_s(division)
    split = schedule == "zero-bubble"
    line = simulate(
        schedule, list(spent[0]), list(spent[1] + spent[2]), [0.0] * (pieces.stages - 1), 6,
        weight_s=list(spent[2]) if split else None, virtual_stages=virtual,
    )  # fmt: skip
    path = pieces.path(division)
    assert path.step_s == pytest.approx(line.step_s) == pytest.approx(float((path.counts * spent).sum()))
    assert tuple(int(held.sum(axis=1).max()) for held in pieces.rounds.held) == line.in_flight


@pytest.mark.parametrize(("ranks", "microbatches", "virtual"), [(2, 6, 2), (4, 8, 2), (3, 9, 3), (4, 3, 2), (4, 16, 4)])
def test_no_stages_undercut_the_known_paths_and_rounds(ranks: int, microbatches: int, virtual: int) -> None:
    rng = np.random.default_rng(0)
    rounds, paths = rounds_of("interleaved", ranks, microbatches, virtual), rank_paths(ranks, microbatches, virtual)
    least = least_chunk_rounds("interleaved", ranks, microbatches, virtual, Sharing())
    for _ in range(40):
        spent = np.concatenate([rng.random((2, ranks * virtual)) ** 3, np.zeros((1, ranks * virtual))])
        step_s = rounds.script.path(spent).step_s
        assert float((paths @ spent[:2].sum(axis=0)).max()) <= step_s * (1 + 1e-9)
        assert least * spent.sum() / ranks <= step_s * (1 + 1e-9)


@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble"])
@pytest.mark.parametrize(("ranks", "microbatches", "virtual"), [(2, 18, 2), (4, 20, 3), (3, 15, 2), (4, 3, 2)])
def test_what_a_rank_holds(schedule: str, ranks: int, microbatches: int, virtual: int) -> None:
    """The rounds between are alike, and every stage of a rank holds its least at once."""
    held = rounds_of(schedule, ranks, microbatches, virtual).held
    most = in_flight(schedule, ranks, microbatches, virtual)
    assert tuple(int(rows.sum(axis=1).max()) for rows in held) == most
    for rows, least in zip(held, least_held(schedule, ranks, microbatches), strict=True):
        assert int(rows.min(axis=1).max()) >= least
