"""Cuts of a chain into several stages on each rank: against every cut there is, and against the schedule as run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoplan.cost.interleaved import (
    ACCUMULATING,
    REDUCED,
    WAITING,
    InterleavedSchedule,
    actions,
    least_held,
    least_interleaved_slots,
    rank_paths,
)
from autoplan.search.inter_op import interleaved
from autoplan.search.inter_op.chain_costs import ChainCosts, even_stages, fitted
from autoplan.search.inter_op.interleaved import DivisionSearch
from autoplan.search.inter_op.interleaved_milp import PartitionMilp, SegmentRuns
from cost_models.pipeline import in_flight, simulate
from cost_models.pipeline.critical import script
from cost_models.pipeline.shared import Sharing
from tests.support.random_chains import SCHEDULES, chain, divisions, walled

EXACTLY = {"gap": 1e-10, "whole_cuts": 200, "few_integers": 1000}


CASES = [
    *((n, *SCHEDULES[n % 3], "none", 7, (2, 4, 6)[n % 3], (1.02, 1.1, 1.3)[n // 3 % 3]) for n in range(12)),
    *((seed, "interleaved", 2, kind, 7, 4, 1.05) for seed, kind in enumerate(("full", "selective") * 2)),
    *((seed, "interleaved", 2, "auto", 6, 4, (0.8, 0.85, 0.9)[seed % 3]) for seed in range(3)),
]


@pytest.mark.parametrize(("seed", "schedule", "virtual", "recompute", "segments", "microbatches", "share"), CASES)
def test_the_cuts_are_the_best_there_are(
    seed: int, schedule: str, virtual: int, recompute: str, segments: int, microbatches: int, share: float
) -> None:
    costs = walled(chain(seed, schedule, virtual, recompute, segments, microbatches), share)
    best_s = min((costs.step_s(d) for d in divisions(costs) if costs.over(d) <= 0), default=np.inf)
    exact = DivisionSearch(costs, **EXACTLY)  # type: ignore[arg-type]
    found, quick = exact.run(), DivisionSearch(costs).run()
    assert (found is None) == np.isinf(best_s)
    if found is not None:
        assert found.cuts.objective_s == pytest.approx(best_s, rel=1e-9)
        assert costs.over(found.division) <= 0
    if quick is not None:
        assert quick.cuts.bound_s <= best_s * (1 + 1e-9) <= quick.cuts.objective_s * (1 + 2e-9)


@pytest.mark.parametrize(("seed", "schedule", "virtual", "recompute", "segments", "kinds"), [
    (0, "interleaved", 2, "none", 10, (0, 1)), (1, "interleaved", 2, "full", 9, (0, 0, 1)),
    (2, "zero-bubble", 2, "none", 10, (0, 1, 0, 2)), (3, "zero-bubble", 1, "selective", 10, (0, 1, 2)),
    (4, "interleaved", 2, "auto", 6, (0, 1)), (5, "zero-bubble", 1, "auto", 6, (0, 1)),
])  # fmt: skip
def test_kinds_that_take_turns_are_counted_by_kind(
    seed: int, schedule: str, virtual: int, recompute: str, segments: int, kinds: tuple[int, ...]
) -> None:
    """In fractions that bounds every division, about as tightly as a run for each segment does; and no division that
    fits is ruled out."""
    free = chain(seed, schedule, virtual, recompute, segments, 4, by_turns=kinds)
    costs = walled(free, 0.9 if recompute == "auto" else 1.1)
    fitting = [d for d in divisions(costs) if costs.over(d) <= 0]
    bounds_s = []
    for turns in (False, True):
        runs = SegmentRuns.of(costs, turns=turns)
        milp = PartitionMilp(costs, 1.0, runs)
        some = fitting[:: len(fitting) // 8 + 1]
        for path in [*costs.interleaved.paths, *(costs.path(division).counts for division in some)]:
            milp.add_path(path)
        milp.hold(10)
        bounds_s.append(milp.solve(relaxed=True).bound_s)
        for division in some:
            borders = [first for first, _ in division.stages]
            for ends in (milp.lp.low, milp.lp.high):
                ends[milp.q[:-1]] = runs.before[:, borders].T
            assert milp.solve(relaxed=True).bound_s <= costs.step_s(division) * (1 + 1e-9)
    assert runs.several.any() and len(runs.sizes) == max(kinds) + 3
    assert bounds_s[0] * 0.97 <= bounds_s[1] <= min(costs.step_s(d) for d in fitting) * (1 + 1e-9)


def test_a_search_goes_on_from_its_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds is what it finds at once, and the program is built once."""
    built: list[PartitionMilp] = []

    def build(costs: ChainCosts, first_s: float, runs: SegmentRuns) -> PartitionMilp:
        built.append(PartitionMilp(costs, first_s, runs))
        return built[-1]

    monkeypatch.setattr(interleaved, "PartitionMilp", build)
    for seed in range(4):
        costs = walled(chain(seed, "interleaved", 2, "auto", 14, 8), 0.8)
        at_once = DivisionSearch(costs).run()
        built.clear()
        search = DivisionSearch(costs)
        glanced = search.glance()
        assert search.run() == at_once and len(built) == 1 and glanced is not None and at_once is not None
        assert at_once.cuts.objective_s <= glanced.cuts.objective_s
        search.limit_s = at_once.cuts.bound_s * 0.5
        assert search.run() is None, "even stages are far from the limit"


def test_even_stages_recompute_selectively_first() -> None:
    """In full only where all of it selectively is not enough, and then nowhere less than that."""
    costs, seen = chain(0, "interleaved", 2, "auto", 8, 4), set[tuple[bool, bool]]()
    even = costs.pinned(even_stages(costs))
    for share in np.linspace(1.01, 0.5, 30):
        own = walled(costs, share)
        found = fitted(own, even)
        if found is None:
            continue
        counts = np.array(own.counts(even.stages)) - found.full - found.part
        left, full = own.by_rank(counts).sum(axis=0), own.by_rank(np.array(found.full)).sum(axis=0)
        assert own.over(found) <= 0 and found.stages == even.stages and not (left[full > 0]).any()
        seen.add((any(found.part), any(found.full)))
    assert {(False, False), (True, False)} <= seen and any(full for _, full in seen)


def test_what_cannot_win_is_given_up() -> None:
    costs = chain(1, "interleaved", 2, "none", 12, 8)
    found = DivisionSearch(costs).run()
    assert found is not None and DivisionSearch(costs, found.cuts.bound_s * 0.99).run() is None


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("factor", [1.0, 60.0])
@pytest.mark.parametrize(("schedule", "virtual"), [*SCHEDULES, ("interleaved", 3)])
def test_seconds_and_bytes_are_those_of_the_schedule(schedule: str, virtual: int, factor: float, ahead: int) -> None:
    """With messages of about a tenth of an action, and with such that outlast actions."""
    costs = chain(3, schedule, virtual, "none", 10, 6)
    interleaved = InterleavedSchedule(schedule, costs.ranks, 6, virtual, ahead)
    costs = replace(costs, messages_s=factor * costs.messages_s, interleaved=interleaved)
    division = costs.pinned(even_stages(costs))
    spent = costs.durations_s(division)
    split = schedule == "zero-bubble"
    line = simulate(
        schedule, list(spent[0]), list(spent[1] + spent[2]), list(spent[3, 1:]), 6,
        weight_s=list(spent[2]) if split else None, return_s=list(spent[4, :-1]), virtual_stages=virtual, ahead=ahead,
    )  # fmt: skip
    path = costs.path(division)
    assert path.step_s == pytest.approx(line.step_s) == pytest.approx(float((path.counts * spent).sum()))
    assert tuple(int(held.sum(axis=1).max()) for held in costs.interleaved.held) == line.in_flight


@pytest.mark.parametrize(("ranks", "microbatches", "virtual"), [(2, 6, 2), (4, 8, 2), (3, 9, 3), (4, 3, 2), (4, 16, 4)])
def test_no_stages_undercut_the_known_paths_and_rounds(ranks: int, microbatches: int, virtual: int) -> None:
    rng, sizes = np.random.default_rng(0), (ranks, microbatches, virtual)
    paths, least = rank_paths(*sizes), least_interleaved_slots("interleaved", *sizes, Sharing())
    for number in range(40):
        spent = np.zeros((5, ranks * virtual))
        spent[:2], ahead = rng.random((2, ranks * virtual)) ** 3, number % 2
        interleaved = InterleavedSchedule("interleaved", *sizes, ahead)
        spent[3, 1:] = spent[4, :-1] = rng.random(ranks * virtual - 1) ** 3
        step_s = interleaved.script.path(spent).step_s
        assert float((paths @ spent[:2].sum(axis=0)).max()) <= step_s * (1 + 1e-9)
        assert float((interleaved.paths * spent).sum(axis=(1, 2)).max()) <= step_s * (1 + 1e-9)
        assert least * spent[:2].sum() / ranks <= step_s * (1 + 1e-9)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
def test_the_critical_path_holds_its_messages(schedule: str, ahead: int) -> None:
    """Its counts times any other durations undercut these durations' step."""
    rng, found = np.random.default_rng(1), script(schedule, 3, 6, 2 if schedule == "interleaved" else 1, ahead)
    each = rng.random((30, 5, found.count)) ** 2
    each[:, 3, 0] = each[:, 4, -1] = 0.0
    paths = [found.path(spent) for spent in each]
    for path, spent in zip(paths, each, strict=True):
        assert float((path.counts * spent).sum()) == pytest.approx(path.step_s)
        assert path.counts[3:].any() and not path.counts[3, 0] and not path.counts[4, -1]
        assert max(float((other.counts * spent).sum()) for other in paths) <= path.step_s * (1 + 1e-9)


@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble"])
@pytest.mark.parametrize(("ranks", "microbatches", "virtual"), [(2, 18, 2), (4, 20, 3), (3, 15, 2), (4, 3, 2)])
def test_what_a_rank_holds(schedule: str, ranks: int, microbatches: int, virtual: int) -> None:
    """The rounds between are alike, and every stage of a rank holds its least at once."""
    held = InterleavedSchedule(schedule, ranks, microbatches, virtual).held
    most = in_flight(schedule, ranks, microbatches, virtual)
    assert tuple(int(rows.sum(axis=1).max()) for rows in held) == most
    for rows, least in zip(held, least_held(schedule, ranks, microbatches), strict=True):
        assert int(rows.min(axis=1).max()) >= least


@pytest.mark.parametrize(("ranks", "microbatches", "virtual"), [(2, 2, 3), (4, 6, 2), (4, 3, 4)])
def test_what_stands_where_stages_go_back_in_turn(ranks: int, microbatches: int, virtual: int) -> None:
    """By the order of actions: no backward finds more in flight or more gradients than a moment that is counted, and
    each of these is met."""
    interleaved = InterleavedSchedule("interleaved", ranks, microbatches, virtual, turns=True)
    for rank in range(ranks):
        columns = (map(tuple, of[rank].tolist()) for of in (interleaved.held, interleaved.standing))
        counted = set(zip(*columns, strict=True))
        flying, done, met = [0] * virtual, [0] * virtual, set()
        for stage, kind, _ in actions("interleaved", rank, ranks, microbatches, virtual):
            acting = stage // ranks
            flying[acting] += kind == "F"
            if kind == "B":
                states = [WAITING if not n else REDUCED if n == microbatches else ACCUMULATING for n in done]
                states[acting] = ACCUMULATING
                met.add((tuple(flying), tuple(states)))
                done[acting] += 1
                flying[acting] -= 1
        assert counted <= met
        for held, states in met:
            below = (all(a <= b for a, b in zip(held + states, one + two, strict=True)) for one, two in counted)
            assert any(below)
