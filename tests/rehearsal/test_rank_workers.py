"""Ranks in forks: answers in order, and one that dies without a word is told, not waited for."""

from __future__ import annotations

import os
import signal

from autoplan.rehearsal.rank_workers import in_forks


def doubled_or_killed(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)  # as a kernel out of memory does
    return 2 * number


def test_a_fork_that_is_killed_is_told_and_the_others_answer() -> None:
    found = in_forks(doubled_or_killed, [1, 2, 3, 4, 5])
    assert found == [2, 4, "its process ended with exit status -9, and said nothing", 8, 10]
