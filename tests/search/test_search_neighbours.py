"""Divisions of a chain, many at once, and what lies beside one: against segments counted one by one, and against every
division there is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from autoplan.cost.interleaved import ACCUMULATING, WAITING
from autoplan.search.budget import FAST
from autoplan.search.evaluate import Evaluator
from autoplan.search.inter_op.chain_costs import ChainCosts, Division, Divisions, even_stages
from autoplan.search.inter_op.interleaved import MEANS, DivisionSearch
from autoplan.search.inter_op.stage_model import FULL, PART
from autoplan.search.inter_op.tabu_search import MENDED, again_s, fitting, neighbours, recomputed_otherwise
from cost_models.pipeline.critical import script
from tests.support.random_chains import SCHEDULES, chain, divisions, walled
from tests.support.sampling import slow


def at_random(costs: ChainCosts, rng: random.Random) -> Division:
    cuts = (0, *sorted(rng.sample(range(1, len(costs)), costs.stages - 1)), len(costs))
    stages = tuple(itertools.pairwise(cuts))
    full = [rng.randint(0, n) for n in costs.counts(stages)]
    part = [rng.randint(0, n - a) for n, a in zip(costs.counts(stages), full, strict=True)]
    return Division(stages, tuple(full), tuple(part))


def joined(found: list[Division]) -> Divisions:
    each = [Divisions.of(division) for division in found]
    return Divisions(*(np.concatenate([getattr(one, name) for one in each]) for name in ("ends", "full", "part")))


def segments_of(costs: ChainCosts, division: Division, stage: int) -> list[tuple[int, str]]:
    """(segment, how it is kept) of a stage."""
    kinds = ["full"] * division.full[stage] + ["part"] * division.part[stage]
    found = []
    for place in range(*division.stages[stage]):
        found.append((place, kinds.pop(0) if costs.repeated[place] and kinds else ""))
    return found


def by_hand(costs: ChainCosts, division: Division) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds of each stage's actions, bytes of each moment, and with nothing in flight, segment by segment."""
    p, m, last, spent = costs, costs.memory, costs.stages - 1, np.zeros((5, costs.stages))
    held = [segments_of(p, division, k) for k in range(p.stages)]
    for k, mine in enumerate(held):
        again_s = sum({"full": p.full_s, "part": p.part_s, "": 0 * p.full_s}[kind][n] for n, kind in mine)
        weights_s = sum(p.weights_s[n] for n, _ in mine)
        spent[0, k] = sum(p.forward_s[n] for n, _ in mine)
        spent[1, k] = sum(p.backward_s[n] for n, _ in mine) + again_s
        if p.schedule == "zero-bubble":
            spent[1:3, k] = spent[1, k] - weights_s, weights_s
            if k == 0:
                spent[1:3, k] = 0.0, sum(p.whole_s[n] for n, _ in mine) + again_s
        spent[3, k] = p.messages_s[k, mine[0][0]] if k else 0.0
        spent[4, k] = p.messages_s[k + 1, held[k + 1][0][0]] if k < last else 0.0
    bytes_of = {"full": m.inputs, "part": m.selective, "": m.kept}
    moments, emptied = np.zeros((p.ranks, len(p.held_by_rank[0]))), []
    for rank in range(p.ranks):
        mine = range(rank, p.stages, p.ranks)
        here = [n for k in mine for n, _ in held[k]]
        states = sum(m.parameters[n] * m.state_share - m.elsewhere[n] * m.shard_share + m.frozen[n] for n in here)
        borders = [held[k][0][0] for k in mine if k] + [held[k + 1][0][0] for k in mine if k < last]
        buffers = m.messages * max(m.message[border] for border in borders)
        again_there = {"full": m.kept, "part": m.rebuilt, "": 0 * m.kept}
        again = max(again_there[kind][n] for k in mine for n, kind in held[k])
        beside = max(m.working[here]) + max(m.gathered[here]) + again
        for number, counts in enumerate(p.interleaved.held[rank]):
            stands = p.interleaved.standing[rank][number]
            total = states + gradients_by_hand(p, held, mine, stands) + buffers + beside
            for count, k in zip(counts, mine, strict=True):
                kept = sum(bytes_of[kind][n] for n, kind in held[k]) + max(m.constants[n] for n, _ in held[k])
                total += count * (kept + (m.unkept[held[k][0][0]] if k else 0.0))
            moments[rank, number] = total
        updating = sum(m.parameters[here] - m.untouched[here] - m.elsewhere[here]) * m.update_share
        left = gradients_by_hand(p, held, mine, p.interleaved.emptied)
        emptied.append(states + left + max(updating, max(m.alone[here])))
    return spent, moments, np.array(emptied)


def gradients_by_hand(
    p: ChainCosts, held: list[list[tuple[int, str]]], mine: Sequence[int], standing: np.ndarray
) -> float:
    m, total = p.memory, 0.0
    for state, k in zip(standing.tolist(), mine, strict=True):
        for n, _ in held[k]:
            touched = m.parameters[n] - m.untouched[n]
            total += touched * m.gradient_shares[state] - m.elsewhere[n] * m.sharded_gradients[state]
            total += m.bucketed[n] * (state in (WAITING, ACCUMULATING))
    return total


@pytest.mark.parametrize(
    ("schedule", "virtual", "many"), [*((*one, 6) for one in SCHEDULES), ("interleaved", 3, 6), ("interleaved", 3, 2)]
)
def test_many_divisions_are_each_its_segments(schedule: str, virtual: int, many: int) -> None:
    costs, rng = chain(7, schedule, virtual, "auto", 12, many, turns=True), random.Random(0)
    found = [at_random(costs, rng) for _ in range(30)]
    all_ = joined(found)
    assert [all_.one(number) for number in range(len(all_))] == found
    spent, steps = costs.all_durations_s(all_), costs.runs(all_).steps_s
    ranks = costs.before_recomputation(all_)
    moments, most = ranks.moments(all_.full.T, all_.part.T), ranks.most(all_.full.T, all_.part.T)
    for number, division in enumerate(found):
        spent_s, held, emptied = by_hand(costs, division)
        assert spent[number] == pytest.approx(spent_s)
        assert moments[..., number] + costs.memory_limit == pytest.approx(held)
        assert ranks.emptied[:, number] + costs.memory_limit == pytest.approx(emptied)
        assert most[number] + costs.memory_limit == pytest.approx(max(held.max(), emptied.max()))
        assert steps[number] == costs.step_s(division)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
def test_steps_of_many_durations_are_those_of_each(schedule: str) -> None:
    rng, found = np.random.default_rng(0), script(schedule, 3, 6, 2 if schedule == "interleaved" else 1)
    durations = rng.random((20, 5, found.count))
    durations[:5] = rng.integers(0, 3, (5, 5, found.count))
    runs, paths = found.line.runs(durations.reshape(20, -1)), [found.path(each) for each in durations]
    steps = runs.steps_s
    assert steps.tolist() == [path.step_s for path in paths]
    assert all((runs.path(number).counts == path.counts).all() for number, path in enumerate(paths))
    counts = [path.counts for path in paths]
    assert steps == pytest.approx([float((n * s).sum()) for n, s in zip(counts, durations, strict=True)])


@pytest.mark.parametrize("recompute", ["none", "full", "selective", "auto"])
@pytest.mark.parametrize("share", [0.9, 1.05, 3.0])
def test_neighbours_are_divisions_and_those_fit_that_are_said_to(recompute: str, share: float) -> None:
    costs = walled(chain(3, "interleaved", 2, recompute, 14, 6), share)
    here = costs.pinned(even_stages(costs))
    near, beyond = neighbours(costs, here, costs.interleaved.paths)
    assert (beyond <= 0).any() or share < 2
    for number in range(len(near)):
        found = near.one(number)
        assert costs.over(found) == pytest.approx(beyond[number])
        assert found.stages[0][0] == 0 and found.stages[-1][1] == len(costs)
        assert all(a < b == c for (a, b), (c, _) in itertools.pairwise(found.stages))
        pairs = zip(found.full, found.part, costs.counts(found.stages), strict=True)
        assert all(a >= 0 and b >= 0 and a + b <= n for a, b, n in pairs)
        if recompute != "auto":
            assert found == costs.pinned(found.stages)
    if share > 2:
        sizes = np.array([[b - a for a, b in near.one(n).stages] for n in range(len(near))])
        before = np.array([b - a for a, b in here.stages])
        moves = {tuple(row) for row in (sizes - before).tolist()}
        for source, size in enumerate(before.tolist()):
            for target in range(costs.stages):
                near_by = abs(source - target) == 1 or (source != target and (source - target) % 2 == 0)
                if size > 1 and near_by:
                    one = np.eye(costs.stages, dtype=int)
                    assert tuple((one[target] - one[source]).tolist()) in moves


def mended(costs: ChainCosts, here: Divisions, kind: str) -> tuple[Divisions, np.ndarray]:
    ranks = costs.before_recomputation(here)
    return fitting(costs, here, ranks, ranks.recomputing(here.full.T, here.part.T), kind)


@pytest.mark.parametrize(("kind", "other"), [("full", "part"), ("part", "full")])
def test_no_more_is_recomputed_beside_than_fits_without(kind: str, other: str) -> None:
    """Of what recomputes everything under an ample wall each rank recomputes less by as many as are looked at."""
    ample = walled(chain(3, "interleaved", 2, "auto", 14, 6), 3.0)
    here = Divisions.of(replace(ample.pinned(even_stages(ample)), **{kind: ample.counts(even_stages(ample))}))
    found, _ = mended(ample, here, FULL if kind == "full" else PART)
    fewer = ample.by_rank(getattr(here, kind) - getattr(found, kind)).sum(axis=1)
    assert (fewer == MENDED).all() and (getattr(found, other) == 0).all()


@pytest.mark.parametrize("kind", ["full", "part"])
def test_ranks_that_hold_too_much_recompute_as_little_as_fits(kind: str) -> None:
    costs = walled(chain(3, "interleaved", 2, "auto", 14, 6), 0.93)
    here = Divisions.of(costs.pinned(even_stages(costs)))
    found, beyond = mended(costs, here, FULL if kind == "full" else PART)
    assert beyond == pytest.approx(costs.most_excess(found))
    assert costs.most_excess(here) > 0 >= costs.most_excess(found)
    counts = getattr(found, kind)
    for stage in np.flatnonzero(counts[0]).tolist():
        less = counts.copy()
        less[0, stage] -= 1
        assert costs.most_excess(replace(found, **{kind: less})) > 0


@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
@pytest.mark.parametrize("share", [0.9, 3.0])
def test_a_search_ends_where_a_division_has_no_neighbours(recompute: str, share: float) -> None:
    """As many segments as stages: none can be moved."""
    costs = walled(chain(3, "interleaved", 2, recompute, 4, 6), share)
    here = costs.pinned(even_stages(costs))
    near, beyond = neighbours(costs, here, costs.interleaved.paths)
    assert (len(near), len(beyond)) == (0, 0)
    found = DivisionSearch(costs, few_integers=0).run()
    assert found is None if share < 1 else found is not None and found.division == here


@pytest.mark.parametrize(("seed", "segments"), [(0, 7), *(slow((seed, 9)) for seed in range(8))])
def test_going_from_neighbour_to_neighbour_finds_what_trying_everything_does(seed: int, segments: int) -> None:
    """Whole numbers in no program, recomputation free, walls under which even stages hold too much."""
    costs = walled(chain(seed, "interleaved", 2, "auto", segments, 4), (0.75, 0.8, 0.85, 0.9)[seed % 4])
    best_s = min((costs.step_s(d) for d in divisions(costs) if costs.over(d) <= 0), default=np.inf)
    found = DivisionSearch(costs, few_integers=0).run()
    if found is None:
        assert np.isinf(best_s)
        return
    assert costs.over(found.division) <= 0
    assert found.cuts.objective_s == pytest.approx(best_s, rel=1e-9)


@pytest.mark.parametrize("virtual", [2, 3])
def test_what_is_recomputed_changes_on_a_stage_or_moves_within_its_rank(virtual: int) -> None:
    costs = chain(5, "interleaved", virtual, "auto", 12, 6)
    division = replace(costs.pinned(even_stages(costs)), full=(1, 0) * virtual)
    here, paths = Divisions.of(division), costs.interleaved.paths
    lengths_s = np.tensordot(paths, costs.durations_s(division), 2)
    near = recomputed_otherwise(costs, here, lengths_s, again_s(costs, paths))
    assert len(near) and len(set(near.keys)) == len(near)
    assert (near.ends == here.ends).all() and (near.full + near.part <= costs.counts_of(here)).all()
    moves = 0
    for full, part in zip(near.full - here.full, near.part - here.part, strict=True):
        stages = np.flatnonzero((full != 0) | (part != 0))
        assert len(stages) == 1 or (len(stages) == 2 and len(set(stages % costs.ranks)) == 1 and not full.sum())
        moves += len(stages) == 2
    assert moves


def test_neighbours_are_searched_once_beside_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    search, seen = DivisionSearch(walled(chain(3, "interleaved", 2, "auto", 9, 4), 0.8), few_integers=0), list[float]()
    monkeypatch.setattr(search, "tabu_search", lambda start, mean: seen.append(mean))
    search.run(thorough=False)
    assert seen == list(MEANS[:1])


def test_a_search_that_no_limit_ended_goes_on_under_a_higher_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends as one without a limit, and what was searched isn't searched again."""
    costs, seen = walled(chain(3, "interleaved", 2, "auto", 9, 4), 0.8), list[float]()
    free = DivisionSearch(costs, few_integers=0)
    at_once, whole = free.run(), DivisionSearch.tabu_search
    assert at_once is not None

    def tabu_search(search: DivisionSearch, start: Division, mean: float) -> None:
        seen.append(mean)
        whole(search, start, mean)

    monkeypatch.setattr(DivisionSearch, "tabu_search", tabu_search)
    search = DivisionSearch(costs, free.best_s * 0.98, few_integers=0)
    search.run()
    assert seen == list(MEANS[:1]) and not search.given_up
    search.limit_s = np.inf
    assert search.run() == at_once and seen == list(MEANS)
    search.run()
    assert len(seen) == 2
    search.limit_s, search.stopped = free.best_s * 0.9, True
    assert search.given_up


def test_a_search_ends_where_its_pace_does_not_reach_the_limit() -> None:
    search = DivisionSearch(walled(chain(3, "interleaved", 2, "auto", 9, 4), 0.8), 1.0)
    for best_s, before_s, far in ((1.10, 1.14, True), (1.10, 1.16, False), (1.02, 1.02, False), (np.inf, np.inf, True)):
        search.best_s = best_s
        assert search.out_of_reach(before_s) == far


def test_leaner_operators_are_tried_where_the_last_plan_is_near_the_limit() -> None:
    """The first of them from farther than the others; those of one stage on a rank from anywhere."""
    own = SimpleNamespace(budget=FAST)

    def far(schedule: str, step_s: float) -> list[bool]:
        found = SimpleNamespace(candidate=SimpleNamespace(schedule=schedule), step_s=step_s)
        return [Evaluator.out_of_reach(own, found, 1.0, number) for number in range(3)]  # type: ignore[arg-type]

    assert far("interleaved", 1.02) == [False, False, False] and far("interleaved", 1.2) == [True, True, True]
    assert far("interleaved", 1.05) == [False, True, True] and far("1f1b", 1.2) == [False, False, False]
