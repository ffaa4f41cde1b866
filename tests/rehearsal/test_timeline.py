from __future__ import annotations

import pytest

from autoplan.rehearsal.records import HOST, Call, Span
from autoplan.rehearsal.world.deadlock import Deadlock
from autoplan.rehearsal.world.simulated_step import Timeline, simulate
from tests.support.rehearsed import Program, every_rank, price, world_of

PAIR: Span = ((1, 2),)


def timed(ranks: list[list[Call]], eager_bytes: int | None = None) -> Timeline:
    found = simulate(world_of(ranks), price, eager_bytes)
    assert isinstance(found, Timeline), found
    return found


def stuck(ranks: list[list[Call]], eager_bytes: int | None = None) -> Deadlock:
    found = simulate(world_of(ranks), price, eager_bytes)
    assert isinstance(found, Deadlock)
    return found


def test_operators_of_a_stream_run_in_order_and_streams_beside_each_other() -> None:
    p = Program()
    p.compute(3)
    p.compute(5, stream=1)
    p.compute(2)
    (one,) = timed([p.calls]).classes
    assert one.start.tolist() == [0, 0, 3] and one.end.tolist() == [3, 5, 5]
    assert (one.busy, one.exposed, one.idle) == (5, 0, 0)


def test_a_join_waits_for_what_the_other_stream_holds_so_far() -> None:
    p = Program()
    p.compute(3, stream=1)
    p.join(0, 1)
    p.compute(2)
    p.compute(7, stream=1)
    assert timed([p.calls]).classes[0].start.tolist() == [0, 0, 3, 3]


def test_the_host_stops_until_a_stream_has_drained() -> None:
    p = Program()
    p.compute(4)
    p.stop()
    p.compute(2, stream=1)
    (one,) = timed([p.calls]).classes
    assert one.start.tolist() == [0, 0, 4] and one.end.tolist() == [4, 4, 6]


def test_work_of_the_host_delays_what_it_issues_after() -> None:
    p = Program()
    p.compute(4, stream=HOST)
    p.compute(2)
    p.compute(1, stream=HOST)
    p.compute(1)
    assert timed([p.calls]).classes[0].start.tolist() == [0, 4, 4, 6]


def overlapped(before: int) -> list[Call]:
    p = Program()
    p.compute(before)
    gathered = p.collective(PAIR, 10)
    p.compute(6)
    p.wait(gathered)
    p.compute(1)
    return p.calls


def test_a_collective_runs_beside_its_stream_and_begins_when_all_are_there() -> None:
    """Rank 0 comes at 2, rank 1 at 5: both from 5 to 15. Rank 0 computes to 8 and waits, rank 1 to 11."""
    found = timed([overlapped(2), overlapped(5)])
    assert found.seconds == 16
    first, second = found.classes
    assert first.start.tolist() == [0, 5, 2, 8, 15] and first.end.tolist() == [2, 15, 8, 15, 16]
    assert second.start.tolist() == [0, 5, 5, 11, 15]
    assert (first.busy, first.exposed, first.idle) == (9, 7, 0)
    assert (second.busy, second.exposed, second.idle) == (12, 4, 0)


def test_one_communicator_works_in_order_and_two_beside_each_other() -> None:
    for group, end in ((0, 9), (1, 5)):
        p = Program()
        calls = p.collective(PAIR, 4), p.collective(PAIR, 5, group=group)
        p.wait(*calls)
        assert timed([p.calls] * 2).seconds == end


def test_the_greatest_price_among_the_members_counts() -> None:
    slow, fast = Program(), Program()
    slow.wait(slow.collective(PAIR, 4))
    fast.wait(fast.collective(PAIR, 3))
    assert timed([slow.calls, fast.calls]).seconds == 4


def test_a_collective_from_a_later_stream_waits_for_the_communicators_earlier_one() -> None:
    """The host issues the first from a busy stream; the second, from a free one, comes after it all the same."""
    p = Program()
    p.compute(7)
    first = p.collective(PAIR, 1)
    second = p.collective(PAIR, 1, stream=1)
    p.wait(second, stream=1)
    p.wait(first)
    assert timed([p.calls] * 2).classes[0].start.tolist() == [0, 7, 8, 0, 7]


def pipeline(
    stage: int, stages: int, microbatches: int, forward: int = 2, backward: int = 4, hop: int = 1
) -> list[Call]:
    """1F1B with tensor parallelism of 2 within a stage: each pass ends with a sum of 1 second."""
    p, across = Program(f"stage{stage}.py"), ((2, stages),)

    def work(seconds: int, during: str) -> None:
        p.compute(seconds, during=during)
        p.wait(p.collective(PAIR, 1, during=during), during=during)

    def exchange(*messages: tuple[str, int]) -> None:
        wanted = [(kind, way) for kind, way in messages if 0 <= stage + way < stages]
        batch = p.next_batch()
        numbers = [p.message(kind, across, 2 * way, hop, batch=batch) for kind, way in wanted]
        if numbers:
            p.wait(*numbers)

    warm = min(stages - 1 - stage, microbatches)
    for i in range(warm):
        exchange(("receive", -1))
        work(forward, f"forward {i}")
        exchange(("send", 1))
    for i in range(microbatches - warm):
        if i == 0:
            exchange(("receive", -1))
        work(forward, f"forward {warm + i}")
        exchange(("send", 1), ("receive", 1))
        work(backward, f"backward {i}")
        last = i == microbatches - warm - 1
        exchange(("send", -1), *(() if last else [("receive", -1)]))
    for i in range(warm):
        exchange(("receive", 1))
        work(backward, f"backward {microbatches - warm + i}")
        exchange(("send", -1))
    return p.calls


def pipelined(stages: int, microbatches: int, **more: int) -> list[list[Call]]:
    return [pipeline(rank // 2, stages, microbatches, **more) for rank in range(2 * stages)]


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("microbatches", [4, 7])
def test_1f1b_without_transfer_time_takes_what_the_textbook_says(stages: int, microbatches: int) -> None:
    """(microbatches + stages - 1) times 3 + 5 seconds, 2 + 1 and 4 + 1 with their sums (Narayanan et al. 2021)."""
    ranks = pipelined(stages, microbatches, hop=0)
    for eager in (None, 4):
        found = timed(ranks, eager)
        assert found.seconds == (microbatches + stages - 1) * 8
        assert len(found.classes) == stages
        for one in found.classes:
            assert (one.busy, one.exposed) == (6 * microbatches, 2 * microbatches)


def test_1f1b_of_two_stages_with_transfers_by_hand() -> None:
    """Two microbatches. Stage 0: F0 0-3, send -4, F1 4-7, then F1 over and B0 back in one batch.

    Stage 1: F0 4-7; B0 7-12; its gradient and F1 in one batch with what stage 0 posted at 7: both 12-13. F1 13-16,
    B1 16-21, its gradient 21-22. Stage 0: B0 13-18, waits, B1 22-27.
    """
    found = timed(pipelined(2, 2))
    assert found.seconds == 27
    first = found.classes[0]
    ends = {c.during: e for c, e in zip(*[pipelined(2, 2)[0], first.end.tolist()], strict=True) if c.kind == "wait"}
    assert {k: v for k, v in ends.items() if k} == {"forward 0": 3, "forward 1": 7, "backward 0": 18, "backward 1": 27}


def ring(rank: int, ranks: int, batched: bool) -> list[Call]:
    p, on, back = Program(), (rank + 1) % ranks - rank, (rank - 1) % ranks - rank
    batch = p.next_batch() if batched else 0
    p.compute(rank)
    sent = p.send(((1, ranks),), on, 2, batch=batch)
    if not batched:
        p.wait(sent)
    got = p.receive(((1, ranks),), back, 2, batch=batch)
    p.wait(*((sent, got) if batched else (got,)))
    return p.calls


def test_a_ring_in_one_batch_goes_round() -> None:
    """Rank r posts at r; its message to the next begins at r + 1, the last one's at its own time."""
    found = timed([ring(r, 4, True) for r in range(4)])
    assert found.seconds == 5
    assert [one.end[-1] for one in found.classes] == [5, 4, 4 + 1, 5]


def test_a_ring_that_sends_first_deadlocks_unless_sends_are_eager() -> None:
    ranks = [ring(r, 3, False) for r in range(3)]
    found = stuck(ranks)
    assert [one.rank for one in found.cycle] == [0, 1, 2]
    assert [one.waits_for for one in found.cycle] == [(1,), (2,), (0,)]
    assert all(one.call.kind == "send" and one.call.line == "program.py:1" for one in found.cycle)
    assert (
        "rank 0 (stage 0) stands at send of 4 bytes bf16 to rank 1 at program.py:1 and waits for rank 1" in found.text
    )
    assert timed(ranks, eager_bytes=4).seconds == 4
    assert isinstance(simulate(world_of(ranks), price, 3), Deadlock)


def test_an_eager_send_ends_by_itself_a_blocking_one_with_its_receive() -> None:
    sender, receiver = Program(), Program()
    sender.wait(sender.send(PAIR, 1, 3))
    receiver.compute(10)
    receiver.wait(receiver.receive(PAIR, -1, 3))
    ranks = [sender.calls, receiver.calls]
    assert timed(ranks).seconds == 13
    eager = timed(ranks, eager_bytes=4)
    assert eager.seconds == 10 and eager.classes[0].end.tolist() == [3, 3]


def crossed(first: int, second: int, wait: bool) -> list[Call]:
    p = Program(f"order{first}.py")
    for group in (first, second):
        number = p.collective(PAIR, 1, group=group)
        if wait:
            p.wait(number)
    return p.calls


def test_two_communicators_in_crossed_order_deadlock_when_each_is_waited_for() -> None:
    found = stuck([crossed(0, 1, True), crossed(1, 0, True)])
    assert [(one.rank, one.waits_for, one.call.line) for one in found.cycle] == [
        (0, (1,), "order0.py:0"),
        (1, (0,), "order1.py:0"),
    ]
    assert timed([crossed(0, 1, False), crossed(1, 0, False)]).seconds == 1


def test_crossed_order_from_streams_of_their_own_completes() -> None:
    def other(first: int) -> list[Call]:
        p = Program()
        for group in (first, 1 - first):
            p.wait(p.collective(PAIR, 1, group=group, stream=group), stream=group)
        return p.calls

    assert timed([other(0), other(1)]).seconds == 1


def test_who_waits_for_a_rank_that_has_ended_is_told() -> None:
    p = Program()
    p.wait(p.collective(PAIR, 1))
    found = stuck([p.calls, []])
    assert found.cycle == () and [one.rank for one in found.stuck] == [0]
    assert found.text.endswith("waits for rank 1; rank 1 (stage 0) has ended without it")


def test_a_circle_names_ranks_that_really_wait_for_each_other() -> None:
    """Two pairs of two stages, (0, 2) and (1, 3); classes are two, the circle stays in one pair."""
    ranks = []
    for rank in range(4):
        p, peer = Program(), 2 if rank < 2 else -2
        p.wait(p.send(((2, 2),), peer))
        p.wait(p.receive(((2, 2),), peer))
        ranks.append(p.calls)
    found = stuck(ranks)
    assert len(found.stuck) == 2 and [one.rank for one in found.cycle] == [0, 2]


@pytest.mark.parametrize("stages", [2, 4])
def test_classes_and_single_ranks_take_the_same_step(stages: int) -> None:
    ranks = pipelined(stages, 5)
    few, all_ = simulate(world_of(ranks), price), simulate(every_rank(ranks), price)
    assert isinstance(few, Timeline) and isinstance(all_, Timeline)
    assert few.seconds == all_.seconds and len(few.classes) == stages and len(all_.classes) == 2 * stages
