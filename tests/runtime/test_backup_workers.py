"""Servers with backup workers, of a hand-written program: equal to their rule, whoever is late or dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autoplan.options import Training
from autoplan.runtime.parallel.servers.backups import Backups, Taken, in_turns
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankError, RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.asynchronous import RATE, How, Simulated, first_workers
from tests.support.mortal_ranks import in_processes
from tests.support.sampling import sampled
from tests.support.taken_up import assert_same

STEPS, WORKERS, LAYERS = 5, 4, tiny.LAYERS
TRAINING = Training(precision="fp64", learning_rate=RATE, compile=False)
Found = tuple[list[float], dict[str, Tensor], list[Taken], list[int]]
"""(losses, parameters, who was taken, steps in which this rank computed nothing)"""


def made(servers: int, backups: int, microbatches: int = 1) -> Program:
    spec = tiny.spec(dp=WORKERS, microbatches=microbatches, training=TRAINING)
    asked = replace(spec.parallelism, servers=servers, backups=backups)
    return Program(replace(spec, parallelism=asked), tiny.program())


def train(
    rank: int, world: int, servers: int, backups: int, microbatches: int = 1, pinned: Sequence[Taken] | None = None,
    late: int = -1, dies: int = -1,
) -> Found:  # fmt: skip
    """``late``: a rank that begins the second step, and is done with the fourth, when others have been taken; ``dies``:
    a rank, killed before the third."""
    program = made(servers, backups, microbatches)
    program.load_weights(tiny.reference().state_dict())
    assert program.backups is not None
    program.backups.pinned, program.backups.recorded = pinned, []
    losses, idle = [], []
    for step, batch in enumerate(tiny.batches(STEPS)):
        if rank == late and step == 1:
            wait_for_others(program.backups)
        if rank == late and step == 3:
            program.backups.run = partial(computed_late, program.backups)  # type: ignore[method-assign]
        if (rank, step) == (dies, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        losses.append(program.step(batch).item())
        program.optimizer.step()
        idle += [step] * program.backups.idle
    assert program.servers is not None
    program.servers.settle()  # before this process ends
    if dies < 0:
        return losses, dict(program.full_state_dict()), program.backups.recorded, idle
    return losses, {h.name: h.values.clone() for h in program.held}, program.backups.recorded, idle


def wait_for_others(backups: Backups) -> None:
    until = time.monotonic() + 30
    while not backups.dropped() and time.monotonic() < until:
        time.sleep(0.01)


def computed_late(backups: Backups, compute: Callable[..., Tensor], *given: object) -> Tensor:
    del backups.run
    loss = backups.run(compute, *given)
    wait_for_others(backups)
    return loss


def simulated(order: Sequence[Taken], microbatches: int = 1) -> Simulated:
    how = How(lambda module, batch: module(**batch))
    return first_workers(tiny.reference(), list(tiny.batches(STEPS)), WORKERS, order, microbatches, how)


CASES = [(servers, backups, microbatches) for servers in (1, 2, 4) for backups in (1, 2) for microbatches in (1, 2)]


@pytest.mark.parametrize(("servers", "backups", "microbatches"), sampled(CASES, [(2, 1, 2), (4, 2, 1)]))
def test_equals_its_rule_of_an_order_that_is_pinned(
    pool: RankPool, servers: int, backups: int, microbatches: int
) -> None:
    """Servers, and those who have most, are dropped in turn, too."""
    order = [in_turns(step, WORKERS, WORKERS - backups) for step in range(STEPS)]
    results = pool.run(train, servers, backups, microbatches, order)
    assert all(losses == results[0][0] and recorded == order for losses, _, recorded, _ in results)
    assert_same(results[0][:2], simulated(order, microbatches), 1e-11)


def test_a_worker_that_is_late_is_dropped_and_catches_up(pool: RankPool) -> None:
    """Whoever else is late: the run is that of the order that it had, and is so again."""
    results = pool.run(train, 2, 1, 1, None, 3)
    order, idle = results[0][2], results[3][3]
    assert all(losses == results[0][0] and recorded == order for losses, _, recorded, _ in results)
    assert 3 not in order[1] and 1 in idle, "it had nothing to compute"
    assert 3 not in order[3], "what it had computed was dropped"
    assert_same(results[0][:2], simulated(order), 1e-11)
    again = pool.run(train, 2, 1, 1, order)
    assert again[0][0] == results[0][0]
    assert all(torch.equal(value, results[0][1][name]) for name, value in again[0][1].items())


def test_what_is_pinned_takes_as_many_as_the_plan(pool: RankPool) -> None:
    with pytest.raises(RankError, match=r"of step 2 it says \(0, 0, 1\), and 3 of 4 workers are taken"):
        pool.run(train, 1, 1, 1, [(0, 1, 2), (0, 0, 1)])


def test_servers_go_on_without_a_worker_that_died(tmp_path: Path) -> None:
    """Three of four are waited for, and three are left; it is told once."""
    found = in_processes(tmp_path, WORKERS, train, 2, 1, dies=3)
    logs = [(tmp_path / f"{rank}.log").read_text() for rank in range(WORKERS)]
    assert found.keys() == {0, 1, 2}, logs
    order = found[0][2]
    assert all(3 not in taken for taken in order[2:]) and all(each[2] == order for each in found.values())
    assert sum(text.count("worker 3 is gone") for text in logs) == 2, "by each server"
    expected = simulated(order)
    for losses, values, _, _ in found.values():
        known = {name: value for name, value in expected.parameters.items() if name in values}
        assert_same((losses, values), Simulated(expected.losses, known), 1e-11)
        assert len(known) > LAYERS


def test_without_its_server_no_worker_goes_on(tmp_path: Path) -> None:
    """They end with an error; a new start takes the last checkpoint up, as after any death."""
    found = in_processes(tmp_path, WORKERS, train, 1, 1, dies=0)
    logs = [(tmp_path / f"{rank}.log").read_text() for rank in range(1, WORKERS)]
    assert not found and all("Error" in text for text in logs), logs
