"""Of ranks that all stand still, the one that the others wait for is told from what each said."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import torch
import torch.distributed as dist

from autoplan.runtime.elastic import rendezvous
from autoplan.runtime.elastic.hang_report import BETWEEN, Heartbeat, lost_rank, stack_position, stalled_ranks

STEP = Heartbeat(beats=9, entered=20, step=7, phase="forward and backward", since_s=31.0, place="engine.py:40 (run)",
            waits=True)  # fmt: skip
SCRIPT = replace(STEP, entered=19, phase=BETWEEN, place="train.py:41 (main)", waits=False)


def later(*beats: Heartbeat | None) -> list[Heartbeat | None]:
    """As they beat on, without going on."""
    return [None if b is None else replace(b, beats=b.beats + 5, since_s=b.since_s + 2) for b in beats]


def test_a_rank_that_has_entered_less_is_behind() -> None:
    beats = [STEP, STEP, SCRIPT, STEP]
    error = lost_rank(beats, later(*beats), 30.0)
    assert str(error) == (
        "rank 2 of 4: the others have waited for it for 30 s. rank 2: after step 7, the script between steps, at "
        "train.py:41 (main); ranks 0-1, 3: step 8, forward and backward. see what it does there; "
        "train.py --timeout and plan.program(timeout_s=…) say how long others wait."
    )


def test_of_ranks_in_the_same_phase_the_one_that_does_not_wait_is_behind() -> None:
    beats = [STEP, replace(STEP, place="user.py:3 (slow)", waits=False), STEP]
    assert stalled_ranks(beats, later(*beats)) == ([1], False)


def test_a_rank_that_says_nothing_any_more_is_named_first() -> None:
    before = [STEP, STEP, SCRIPT, STEP]
    after = later(*before)
    after[3] = before[3]
    assert stalled_ranks(before, after) == ([3], True)
    assert "rank 3 of 4: it says nothing any more" in str(lost_rank(before, after, 30.0))
    never = [STEP, None, STEP]
    text = str(lost_rank(never, later(*never), 30.0))
    assert "rank 1 of 3: it says nothing" in text and "rank 1: before its first word" in text


def test_where_all_wait_for_one_another_all_are_named() -> None:
    beats = [STEP, replace(STEP, place="engine.py:50 (other)")]
    text = str(lost_rank(beats, later(*beats), 30.0))
    assert text.startswith("ranks 0-1 of 2: no step has ended for 30 s, and all of them wait for one another")


def stack_of(ready: threading.Event, thread: threading.Thread) -> tuple[str, bool]:
    ready.wait(5)
    assert thread.ident is not None
    return stack_position(sys._current_frames()[thread.ident])


def test_a_thread_in_the_script_does_not_wait_for_others() -> None:
    ready, done = threading.Event(), threading.Event()

    def script() -> None:
        ready.set()
        while not done.is_set():
            torch.ones(3).sum()

    thread = threading.Thread(target=script, daemon=True)
    thread.start()
    place, waits = stack_of(ready, thread)
    done.set()
    thread.join()
    assert not waits and __file__ in place and "script" in place


def test_a_thread_in_the_runtime_or_in_torch_distributed_waits() -> None:
    ready, store = threading.Event(), dist.HashStore()
    where = rendezvous.RankInfo(0, 2, "", 0, True, "0")

    def rank() -> None:
        ready.set()
        rendezvous.invite_ranks(store, where, rendezvous.time.monotonic() + 2)

    thread = threading.Thread(target=rank, daemon=True)
    thread.start()
    ready.wait(5)
    rendezvous.time.sleep(0.2)
    place, waits = stack_of(ready, thread)
    thread.join()
    assert waits and "rendezvous.py" in place


def test_a_thread_that_has_ended_stands_at_its_end() -> None:
    assert stack_position(None) == ("its end", False)
