from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.errors import RehearsalError
from autoplan.rehearsal.records import Call, RankClass, Span
from autoplan.rehearsal.world.rank_equivalence import group_of, refine
from tests.support.rehearsed import Program, partition, trace_of, world_of

TP: Span = ((1, 2),)
DP: Span = ((2, 4),)


def using(*spans: Span, peers: tuple[int, ...] = (), across: Span = DP) -> list[Call]:
    program = Program()
    for span in spans:
        program.collective(span)
    for peer in peers:
        program.send(across, peer)
    return program.calls


def test_a_group_keeps_the_other_coordinates() -> None:
    assert group_of(13, ((8, 2), (1, 4))).tolist() == [4, 5, 6, 7, 12, 13, 14, 15]
    assert group_of(5, ()).tolist() == [5]


def test_like_ranks_stay_one_class() -> None:
    world = world_of([using(TP, DP)] * 8)
    (one,) = world.classes
    assert one.ranks == tuple(range(8)) and one.members == {TP: ((0, 2),), DP: ((0, 4),)} and one.first == 0


def test_a_rank_apart_sets_apart_whoever_meets_it() -> None:
    """Rank 5's neighbour along tp, those along dp, and through them the neighbours of both; then nobody else."""
    ranks = [using(TP, DP)] * 8
    ranks[5] = using(TP, DP, DP)
    world = world_of(ranks)
    assert [one.ranks for one in world.classes] == [(0, 2, 6), (1, 3, 7), (4,), (5,)]
    assert world.classes[0].members == {TP: ((0, 1), (1, 1)), DP: ((0, 3), (2, 1))}
    assert world.class_of.tolist() == [0, 1, 0, 1, 2, 3, 0, 1]


def test_ranks_that_meet_nobody_apart_are_left_together() -> None:
    """Four stages of two ranks that only sum over tp: what stage 3 does is nothing to stage 0."""
    ranks = [using(TP)] * 8
    ranks[7] = using(TP, TP)
    assert [one.ranks for one in world_of(ranks).classes] == [(0, 1, 2, 3, 4, 5), (6,), (7,)]


def test_a_peer_of_another_class_splits() -> None:
    """Ranks 0 to 3 send to 4 to 7, of which 7 is another."""
    ranks = [using(peers=(4,))] * 4 + [using(peers=(-4,))] * 4
    ranks[7] = using(TP, peers=(-4,))
    world = world_of(ranks)
    assert [one.ranks for one in world.classes] == [(0, 1, 2), (3,), (4, 5, 6), (7,)]
    assert [one.peers for one in world.classes] == [{4: 2}, {4: 3}, {-4: 0}, {-4: 1}]


@pytest.mark.parametrize(
    ("calls", "cause"),
    [
        (using(((4, 4),)), "reaches beyond"),
        (using(((2, 2), (3, 2))), "is none"),
        (using(((0, 2),)), "is none"),
        (using(peers=(9,)), "its peer would be rank 9 of 8"),
        (using(peers=(-1,)), "its peer would be rank -1 of 8"),
        (using(peers=(0,)), "its peer would be rank 0 of 8"),
    ],
)
def test_what_reaches_beyond_the_world_is_told_with_its_line(calls: list[Call], cause: str) -> None:
    with pytest.raises(RehearsalError, match=cause) as error:
        world_of([calls] + [using()] * 7)
    assert "rank 0 at program.py:0" in str(error.value)


@pytest.mark.parametrize(
    ("classes", "cause"),
    [([(0, 1), (1, 2, 3)], "no other class holds"), ([(0, 1)], "in no class"), ([(0, 1, 2, 3), ()], "no other class")],
)
def test_classes_that_are_no_partition(classes: list[tuple[int, ...]], cause: str) -> None:
    with pytest.raises(RehearsalError, match=cause):
        refine(4, [RankClass(ranks, "stage 0") for ranks in classes], [trace_of(0, [])] * len(classes))


SPANS: tuple[Span, ...] = ((), ((1, 2),), ((2, 2),), ((4, 3),), ((4, 3), (1, 2)), ((2, 2), (1, 2)), ((1, 4),))


spans_of_kinds = st.lists(st.sets(st.sampled_from(SPANS)), min_size=3, max_size=3)


@given(st.lists(st.integers(0, 2), min_size=12, max_size=12), spans_of_kinds)
def test_the_classes_are_stable_and_no_coarser_ones_are(kinds: list[int], spans: list[set[Span]]) -> None:
    """Against refinement by hand: split until every group is the same multiset, from the same start."""
    ranks = [
        using(*sorted(spans[kind]), peers=(1,) if rank < 11 else (), across=((1, 12),))
        for rank, kind in enumerate(kinds)
    ]
    world = world_of(ranks)
    classes, _ = partition(ranks)
    colour: list[object] = [0] * 12
    for number, one in enumerate(classes):
        for rank in one.ranks:
            colour[rank] = number
    for _ in range(12):
        seen = [
            (
                colour[rank],
                [
                    sorted(map(str, (colour[m] for m in group_of(rank, call.span))))
                    for call in ranks[rank]
                    if call.kind == "collective"
                ],
                colour[rank + 1] if rank < 11 else None,
            )
            for rank in range(12)
        ]
        known = sorted(set(map(str, seen)))
        colour = [known.index(str(one)) for one in seen]
    for a in range(12):
        for b in range(12):
            assert (world.class_of[a] == world.class_of[b]) == (colour[a] == colour[b])


def big() -> tuple[list[RankClass], list[list[Call]]]:
    """16 stages x 128 x 8 with a rank apart: sums over tp and its parts, over parts of dp, and over these with tp."""
    nested = [8 << i for i in range(8)]
    spans = [((8, size // 8),) for size in nested[1:]] + [((1, size),) for size in (2, 4, *nested)]
    spans += [((1024, 16), *span) for span in spans[:7]]
    first, middle, last = (using(*spans, peers=peers) for peers in ((1024,), (-1024, 1024), (-1024,)))
    ranks = np.arange(16384)
    alone = 7777
    stages = [tuple(int(r) for r in ranks[ranks // 1024 == s] if r != alone) for s in range(16)]
    classes = [RankClass(own, f"stage {s}") for s, own in enumerate(stages)] + [RankClass((alone,), "alone")]
    return classes, [first, *[middle] * 14, last, middle]


def test_sixteen_thousand_ranks_in_a_second() -> None:
    """By the distance from the rank apart: 4 along tp, 8 along dp, times 16 stages; in 24 spans."""
    classes, calls = big()
    traces = [trace_of(c.first, own) for c, own in zip(classes, calls, strict=True)]
    start = time.process_time()
    world = refine(16384, classes, traces)
    assert time.process_time() - start < 1.0
    assert sum(len(one.ranks) for one in world.classes) == 16384
    assert len(world.classes) == 16 * 4 * 8
