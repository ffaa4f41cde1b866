"""A program closed in a process group of the user's takes its own groups, their threads and sockets with it."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch.distributed as dist

from autoplan.errors import LaunchError
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled

PLANS = (dict(dp=4, zero=3), dict(tp=2, dp=2, zero=1), dict(tp=2, dp=2), dict(pp=2, tp=2))


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4, timeout_s=240) as ranks:
        yield ranks


def open_now() -> tuple[int, int]:
    """File descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def opened_and_closed(rank: int, world: int, plan: dict, folder: str) -> list[tuple[int, int]]:
    """What is open before a first program, and after each of four, the last of which is still referred to."""
    dist.barrier()
    found = [open_now()]
    for number in range(4):
        with Program(tiny.spec(**plan), tiny.program(plan.get("pp", 1))) as program:
            program.load_weights(tiny.reference(2).state_dict())
            program.step(next(tiny.batches(1)))
            program.optimizer.step()
            program.save_checkpoint(f"{folder}/step-{number}", asynchronous=True)
            assert open_now() > found[0]
        found.append(settled(found[-1]))
    return found


def settled(expected: tuple[int, int]) -> tuple[int, int]:
    """What is open once the thread that saved has ended."""
    deadline = time.monotonic() + 5
    while any(a > b for a, b in zip(open_now(), expected, strict=True)) and time.monotonic() < deadline:
        time.sleep(0.02)
        gc.collect()
    return open_now()


@pytest.mark.parametrize("plan", sampled(PLANS, [PLANS[-1]]), ids=str)
def test_nothing_stays_open(pool: RankPool, tmp_path, plan: dict) -> None:
    for found in pool.run(opened_and_closed, plan, str(tmp_path)):
        assert all(b <= a for before, after in pairwise(found) for a, b in zip(before, after, strict=True)), found


def used_after(rank: int, world: int) -> tuple[str, bool]:
    outer = Program(tiny.spec(dp=4), tiny.program(1))
    outer.load_weights(tiny.reference(2).state_dict())
    with Program(tiny.spec(tp=2, dp=2), tiny.program(1)) as inner:
        inner.load_weights(tiny.reference(2).state_dict())
    inner.close()
    loss = outer.step(next(tiny.batches(1)))  # the other program's groups are its own, and stand
    outer.close()
    try:
        outer.step(next(tiny.batches(1)))
    except LaunchError as error:
        return str(error), bool(loss.isfinite())
    return "", False


def test_a_closed_program_says_so_and_leaves_others_alone(pool: RankPool) -> None:
    for said, went_on in pool.run(used_after):
        assert said.startswith("a program that is closed: forward and backward is asked of it")
        assert went_on
