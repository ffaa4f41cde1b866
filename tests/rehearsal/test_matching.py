from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.rehearsal.records import Call, Span
from autoplan.rehearsal.world.matching import Mismatch, mismatches
from tests.support.rehearsed import Program, renumbered, world_of

TP: Span = ((1, 4),)
PP: Span = ((4, 2),)


def layers(stage: int) -> list[Call]:
    """Eight layers of the same lines: like sums that only their microbatch and place tell apart."""
    p = Program()
    for i in range(8):
        during = f"forward {i} of stage {stage}"
        if stage:
            p.wait(p.receive(PP, -4, bytes=4_194_304, during=during, line="engine.py:10"))
        p.wait(p.collective(TP, bytes=1 << 20, during=during, line="program.py:31"))
        p.wait(p.collective(TP, bytes=1 << 20, during=during, line="program.py:33"))
        if not stage:
            p.wait(p.send(PP, 4, bytes=4_194_304, during=during, line="engine.py:12"))
    return p.calls


def two_stages() -> list[list[Call]]:
    return [layers(rank // 4) for rank in range(8)]


def found(ranks: list[list[Call]]) -> tuple[Mismatch, ...]:
    return mismatches(world_of(ranks, lambda rank: rank // 4))


def nth(calls: list[Call], number: int, **wanted: object) -> int:
    """The index of the nth call with these fields."""
    return [i for i, c in enumerate(calls) if all(getattr(c, k) == v for k, v in wanted.items())][number]


def test_what_meets_is_not_told() -> None:
    assert found(two_stages()) == ()


def test_a_dropped_collective_among_like_ones_is_named_where_it_lacks() -> None:
    ranks = two_stages()
    at = nth(ranks[1], 3, kind="collective", line="program.py:33")
    ranks[1] = renumbered(ranks[1][:at] + ranks[1][at + 2 :])
    (one,) = found(ranks)
    assert (one.ranks, one.line) == ((1,), "program.py:33")
    assert one.text == (
        "rank 1 (stage 0) leaves out all-reduce sum of 1.049 MB bf16 at program.py:33 (forward 3 of stage 0), "
        "its 8th among ranks 0, 1, 2, 3, and goes on to all-reduce sum of 1.049 MB bf16 at program.py:31 "
        "(forward 4 of stage 0); rank 0 (stage 0) issues all-reduce sum of 1.049 MB bf16 at program.py:33 "
        "(forward 3 of stage 0) there"
    )


def test_other_bytes_name_both_sides_of_the_first_call_that_differs() -> None:
    ranks = two_stages()
    at = nth(ranks[6], 2, kind="receive")
    ranks[6][at] = replace(ranks[6][at], bytes=8_388_608)
    (one,) = found(ranks)
    assert (one.ranks, one.line, [rank for rank, _ in one.calls]) == ((6,), "engine.py:10", [6, 2])
    assert one.text == (
        "rank 6 (stage 1) issues receive of 8.389 MB bf16 from rank 2 at engine.py:10 (forward 2 of stage 1) as its "
        "3rd; rank 2 (stage 0) issues send of 4.194 MB bf16 to rank 6 at engine.py:12 (forward 2 of stage 0) there"
    )


def test_a_dropped_send_is_found_by_what_like_ranks_send() -> None:
    ranks = two_stages()
    at = nth(ranks[3], 5, kind="send")
    ranks[3] = renumbered(ranks[3][:at] + ranks[3][at + 1 :])
    (one,) = found(ranks)
    assert (one.ranks, one.line) == ((3,), "engine.py:12")
    assert "leaves out send of 4.194 MB bf16 to rank 7 at engine.py:12 (forward 5 of stage 0), its 6th" in one.text


def test_a_receive_too_many_without_like_ranks_names_both() -> None:
    """One rank a stage: the seventh of eight like receives is one too many; the microbatch tells which."""
    ranks = [[replace(c, peer=c.peer // 4) for c in layers(s) if c.kind in ("send", "receive")] for s in (0, 1)]
    ranks = [[replace(c, span=((1, 2),)) for c in own] for own in ranks]
    ranks = [[*own, Call("wait", "wait", 99, of=tuple(c.number for c in own))] for own in ranks]
    ranks[1] = renumbered([*ranks[1][:4], *ranks[1][3:]])
    (one, waits) = sorted(mismatches(world_of(ranks, lambda rank: rank)), key=lambda m: -len(m.ranks))
    assert one.ranks == (0, 1) and one.calls[1][1].line == "engine.py:10"
    assert "rank 1 (stage 1)" in one.text and "forward 3" in one.text
    assert waits.ranks == (1,)


def test_like_sums_in_another_order_mix_tensors_without_a_hang() -> None:
    ranks = two_stages()
    first, second = (nth(ranks[2], 4, kind="collective", line=f"program.py:{n}") for n in (31, 33))
    a, b = ranks[2][first], ranks[2][second]
    ranks[2][first], ranks[2][second] = replace(b, number=a.number), replace(a, number=b.number)
    (one,) = found(ranks)
    assert (one.ranks, one.line) == ((2,), "program.py:33") and "in another order than rank 0" in one.text


def pair_sums() -> list[Call]:
    calls = [replace(c, span=((1, 2),)) for c in layers(0) if c.kind == "collective"]
    return renumbered([*calls, Call("wait", "wait", 99, of=tuple(c.number for c in calls))])


def test_in_a_pair_the_rank_is_named_that_like_ranks_elsewhere_contradict() -> None:
    ranks = [pair_sums() for _ in range(8)]
    ranks[5] = [replace(c, dtype="float32") if c.number == nth(ranks[5], 1, kind="collective") else c for c in ranks[5]]
    (one,) = found(ranks)
    assert one.ranks == (5,) and one.line == "program.py:33" and "float32" in one.text


def test_in_a_lonely_pair_both_are_named() -> None:
    ranks = [pair_sums() for _ in range(2)]
    ranks[1][4] = replace(ranks[1][4], bytes=3)
    (one,) = found(ranks)
    assert one.ranks in ((0, 1), (1, 0)) and one.line == "program.py:31"


def test_an_uneven_all_to_all_may_put_in_different_bytes() -> None:
    def exchange(rank: int, name: str) -> list[Call]:
        p = Program()
        p.wait(p.collective(TP, name=name, bytes=rank))
        return p.calls

    assert mismatches(world_of([exchange(rank, "all-to-all-v") for rank in range(4)])) == ()
    assert mismatches(world_of([exchange(rank, "all-to-all") for rank in range(4)]))


@pytest.mark.parametrize("kind", ["receive", "collective"])
def test_what_is_never_waited_for_is_told_once_a_line(kind: str) -> None:
    ranks = [renumbered([c for c in own if c.kind != "wait" or own[c.of[0]].kind != kind]) for own in two_stages()]
    told = [one for one in found(ranks) if one.ranks == (4,)]
    lines = ["engine.py:10"] if kind == "receive" else ["program.py:31", "program.py:33"]
    assert [one.line for one in told] == lines
    assert all("never waits" in one.text and one.text.endswith("nor for 7 more of that line") for one in told)


def test_a_wait_for_what_was_not_started_is_told() -> None:
    p = Program()
    p.wait(5)
    (one,) = mismatches(world_of([p.calls]))
    assert one.ranks == (0,) and one.line == "program.py:0" and "waits at program.py:0 for call 5" in one.text


def test_messages_in_a_batch_and_alone_run_on_different_communicators() -> None:
    sender, receiver = Program(), Program("other.py")
    sender.wait(sender.send(((1, 2),), 1, batch=1))
    receiver.wait(receiver.receive(((1, 2),), -1))
    assert {one.line for one in mismatches(world_of([sender.calls, receiver.calls], lambda rank: rank))} == {
        "program.py:0",
        "other.py:0",
    }


def test_a_rank_that_sums_where_its_class_mates_partner_doesn_t_is_named_in_a_real_group() -> None:
    """Rank 3 alone sums over stages; rank 7, its partner, is in a class with 4 to 6, which meet nobody there."""
    ranks = two_stages()
    p = Program()
    p.calls = list(ranks[3])
    p.wait(p.collective(((4, 2),), line="extra.py:1"))
    ranks[3] = p.calls
    (one,) = found(ranks)
    assert one.line == "extra.py:1" and "among ranks 3, 7" in one.text
    assert one.ranks == (3,)


def test_a_message_to_a_rank_that_receives_nothing_names_the_two() -> None:
    """Rank 5 sends back over stages to one that receives nothing there."""
    ranks = two_stages()
    p = Program()
    p.calls = list(ranks[5])
    p.wait(p.send(PP, -4, line="extra.py:1"))
    ranks[5] = p.calls
    (one,) = found(ranks)
    assert one.ranks == (5,) and one.line == "extra.py:1"
    assert "send of 4 bytes bf16 to rank 1" in one.text and "rank 1 (stage 0) issues no more" in one.text


def test_a_fault_of_a_whole_class_is_told_once() -> None:
    """All of stage 1 receive other bytes; a rank apart splits both stages, which tells nothing new."""
    ranks = two_stages()
    for rank in range(4, 8):
        ranks[rank] = [replace(c, bytes=2) if c.kind == "receive" else c for c in ranks[rank]]
    ranks[3] = [replace(c, flops=1) for c in ranks[3]]
    assert len(world_of(ranks, lambda rank: rank // 4).classes) == 4
    one, *others = found(ranks)
    assert one.ranks == (0, 4) and all(3 in other.ranks for other in others) and len(others) == 1
