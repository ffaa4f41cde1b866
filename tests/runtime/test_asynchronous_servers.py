"""Servers that apply gradients as they arrive, of a hand-written program: equal to their record's replay, who ever is
late or dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from autoplan.errors import InputsError, ParallelismError
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Training
from autoplan.runtime.optim.asynchronous.arrivals import Arrival, in_turn
from autoplan.runtime.optim.asynchronous.arriving_shard import Shard
from autoplan.runtime.optim.asynchronous.asynchronous_servers import AsynchronousServers
from autoplan.runtime.program import Program
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.verify.compare import Run
from autoplan.verify.local_ranks import RankError, RankPool
from autoplan.verify.one_process.applied_arrivals import Batch, Orders, replay
from tests.bench.live.clusters import ROOT
from tests.fixtures import tiny_program as tiny
from tests.support.asynchronous import replica_rows
from tests.support.asynchronous_trainings import ADAMW, MOMENTUM, mean_loss
from tests.support.mortal_ranks import in_processes
from tests.support.sampling import sampled

STEPS, WORKERS = 6, 4
RATES = replace(ADAMW, lr_schedule=LRSchedule("linear", steps=STEPS, warmup=2))
TRAININGS = {"adamw": ADAMW, "momentum": replace(MOMENTUM, learning_rate=1e-3), "rates": RATES}
TRAININGS["compensated"] = replace(TRAININGS["momentum"], delay_compensation=0.5)


@dataclass(frozen=True)
class Found:
    """Of one rank: losses, its shard's arrivals, parameters, and how many steps ahead of the slowest it has been."""

    losses: list[float]
    arrivals: list[Arrival]
    parameters: dict[str, Tensor]


def spec_of(servers: int, ahead: int | str, training: Training = ADAMW, microbatches: int = 1) -> ProgramSpec:
    spec = tiny.spec(dp=WORKERS, microbatches=microbatches, training=training)
    return replace(spec, parallelism=replace(spec.parallelism, servers=servers, ahead=ahead))


def train(
    rank: int, world: int, servers: int, ahead: int | str, kind: str = "adamw", microbatches: int = 1, late: int = -1,
    orders: Orders | None = None, folder: str = "", at: int = 0, dies: int = -1, behind: int = 0,
) -> Found:  # fmt: skip
    """``late``: a rank that takes its time in each step; ``at``: a step after which a checkpoint is taken, and gone on
    from by a new program; ``dies``: a rank, killed before the third; ``behind``: steps that all others have taken
    before rank 0, a server, takes its second."""
    spec = spec_of(servers, ahead, TRAININGS[kind], microbatches)
    program = Program(spec, tiny.program())
    program.load_weights(tiny.reference().state_dict())
    losses, arrivals, mine = [], [], of(program)
    mine.record()
    mine.pin(orders)
    for step, batch in enumerate(tiny.batches(STEPS), start=1):
        if rank == late:
            time.sleep(0.02)
        if rank == 0 and step == 2 and behind:
            wait_for_others(mine, behind)
        if (rank, step) == (dies, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        losses.append(program.step(batch).item())
        program.optimizer.step()
        if step == at:
            program.save_checkpoint(folder)
            arrivals += mine.recorded or []
            program.close()
            program = Program(spec, tiny.program())
            program.load_checkpoint(folder)
            mine = of(program)
            mine.record()
    if dies >= 0:
        mine.close()
        return Found(losses, mine.recorded or [], own_shard(program))
    parameters = dict(program.full_state_dict())
    arrivals += [replace_read(one, len(arrivals) if at else 0) for one in mine.recorded or []]
    program.close()
    return Found(losses, arrivals, parameters)


def wait_for_others(servers: AsynchronousServers, steps: int) -> None:
    until = time.monotonic() + 60
    assert servers.shard is not None
    while min(taken for worker, taken in servers.shard.steps.items() if worker) < steps:
        assert time.monotonic() < until, servers.shard.steps
        time.sleep(0.01)
    time.sleep(0.2)  # in which they would take more


def replace_read(one: Arrival, before: int) -> Arrival:
    return one._replace(read=one.read + before)


def of(program: Program) -> AsynchronousServers:
    assert isinstance(program.servers, AsynchronousServers)
    return program.servers


def own_shard(program: Program) -> dict[str, Tensor]:
    shard = of(program).shard
    return {} if shard is None else {name: copy.detach().clone() for name, copy in shard.copies.items()}


def replayed(servers: int, ahead: int | str, orders: Orders, kind: str, microbatches: int = 1, told: int = 0) -> Run:
    batches = [replica_rows(batch, WORKERS, microbatches) for batch in tiny.batches(STEPS)]

    def loss_of(module: nn.Module, rows: Batch) -> float:
        loss = mean_loss(module, rows)
        loss.backward()
        return float(loss.detach())

    spec = spec_of(servers, ahead, TRAININGS[kind], microbatches)
    return replay(
        tiny.reference(), loss_of, lambda worker, step: batches[step][worker], TRAININGS[kind], spec, orders, told
    )


def orders_of(results: Sequence[Found]) -> dict[int, list[Arrival]]:
    return {rank: found.arrivals for rank, found in enumerate(results) if found.arrivals}


def assert_equal(results: Sequence[Found], servers: int, ahead: int | str, kind: str, microbatches: int = 1) -> None:
    orders = orders_of(results)
    assert len(orders) == servers and all(len(order) == WORKERS * STEPS for order in orders.values())
    for rank, found in enumerate(results):
        wanted = replayed(servers, ahead, orders, kind, microbatches, told=rank)
        assert found.losses == pytest.approx(wanted.losses, rel=1e-11)
        for name, value in wanted.parameters.items() if rank == 0 else ():
            assert float((found.parameters[name] - value).norm()) <= 1e-11 * float(value.norm()), name


CASES = [
    (1, "unbounded", "adamw", 1), (2, 1, "momentum", 2), (4, "unbounded", "rates", 1), (4, 2, "adamw", 1),
    (3, "unbounded", "momentum", 2), (2, "unbounded", "compensated", 1),
]  # fmt: skip


@pytest.mark.parametrize(("servers", "ahead", "kind", "microbatches"), sampled(CASES, [CASES[1], CASES[2], CASES[5]]))
def test_equals_the_replay_of_its_record(
    pool: RankPool, servers: int, ahead: int | str, kind: str, microbatches: int
) -> None:
    """Whoever came first, in a run of its own, with one worker that is late."""
    results = pool.run(train, servers, ahead, kind, microbatches, 3)
    assert_equal(results, servers, ahead, kind, microbatches)


def test_compensation_is_the_term_of_the_paper() -> None:
    """g + λ·g²·(w - v), by hand: two workers push one after the other, both of the weights that all began with."""
    values, gradient = torch.arange(3, dtype=torch.float64), torch.full((3,), 2.0, dtype=torch.float64)
    held = SimpleNamespace(name="w", values=values, updated=values, stored=SimpleNamespace(names=("w",)))
    plain = replace(TRAININGS["compensated"], momentum=None, weight_decay=None)
    shard = Shard(spec_of(1, "unbounded", plain), [held], WORKERS)  # type: ignore[list-item]
    shard.begin({})
    for worker in range(2):
        before = shard.copies["w"].detach().clone()
        shard.push(worker, {"w": gradient}, [0.1])
        given = gradient + 0.5 * gradient * gradient * (before - values)
        assert torch.allclose(before - shard.copies["w"].detach(), 0.1 * given, rtol=1e-12)
        assert (worker > 0) == (not torch.equal(given, gradient))
    assert shard.latest == 1


def ages(order: Sequence[Arrival]) -> list[int]:
    """Updates between what a gradient is of and what it changes."""
    return [place - one.read for place, one in enumerate(order)]


def steps_apart(order: Sequence[Arrival]) -> int:
    """The most steps that a worker had taken more than another, when it pushed."""
    taken, most = [0] * WORKERS, 0
    for one in order:
        taken[one.worker] += 1
        most = max(most, max(taken) - min(taken))
    return most


def test_no_worker_waits_for_another_beyond_the_bound(pool: RankPool) -> None:
    """A late one is left behind by as many steps as there are, or as the bound lets them."""
    free = pool.run(train, 1, "unbounded", "adamw", 1, -1, None, "", 0, -1, STEPS)[0].arrivals
    assert steps_apart(free) == STEPS - 1
    bounded = pool.run(train, 1, 1, "adamw", 1, -1, None, "", 0, -1, 3)[0].arrivals
    assert steps_apart(bounded) == 2 and max(ages(bounded)) <= (WORKERS - 1) * 3


def test_a_record_is_repeated_bit_for_bit(pool: RankPool) -> None:
    results = pool.run(train, 2, 1, "adamw", 1, 3)
    again = pool.run(train, 2, 1, "adamw", 1, 0, orders_of(results))
    assert [found.losses for found in again] == [found.losses for found in results]
    assert orders_of(again) == orders_of(results)
    assert all(torch.equal(value, results[0].parameters[name]) for name, value in again[0].parameters.items())


def test_workers_that_push_in_turn(pool: RankPool) -> None:
    orders = dict.fromkeys(range(WORKERS), in_turn(WORKERS, STEPS))
    results = pool.run(train, 4, 1, "adamw", 1, -1, orders)
    assert orders_of(results) == orders and max(ages(orders[0])) == WORKERS - 1
    assert_equal(results, 4, 1, "adamw")


def test_what_is_pinned_says_who_is_next(pool: RankPool) -> None:
    with pytest.raises(RankError, match="it says nothing of update 9"):
        pool.run(train, 1, 1, "adamw", 1, -1, {0: in_turn(WORKERS, 2), 1: [], 2: [], 3: []})


def update_twice(rank: int, world: int) -> str:
    program = Program(spec_of(2, 1), tiny.program())
    program.load_weights(tiny.reference().state_dict())
    program.step(next(iter(tiny.batches(1))))
    program.optimizer.step()
    with pytest.raises(InputsError) as told:
        program.optimizer.step()
    program.close()
    return str(told.value)


def test_gradients_are_applied_once(pool: RankPool) -> None:
    """They are gone: a second update would count a step and do nothing."""
    assert all("have gone to the servers" in said for said in pool.run(update_twice))


def unevenly(rank: int, world: int, ahead: int | str) -> tuple[list[dict[str, Tensor]], int]:
    """Steps of one worker alone beyond the bound, before all come to one point; one has taken none since the last."""
    program = Program(spec_of(2, ahead), tiny.program())
    program.load_weights(tiny.reference().state_dict())
    batch = next(iter(tiny.batches(1)))
    found = []

    def evaluate() -> None:
        with pytest.raises(ParallelismError, match="made by hand"):  # which comes after all have come to one point
            program.evaluate(batch)

    for most, call in ((4, program.full_state_dict), (5, evaluate)):
        for _ in range(0 if (rank, most) == (3, 5) else most if rank == 1 else 1):
            program.step(batch)
            program.optimizer.step()
        call()
        mine = of(program)
        found.append({h.name: h.values.clone() for shard in mine.shards.values() for h in shard})
    program.step(batch)  # the bound counts from that point on: the one that was ahead goes on with all
    program.optimizer.step()
    of(program).come()
    assert mine.shard is None or not mine.shard.settling
    program.close()
    return found, program.steps


@pytest.mark.parametrize("ahead", [1, "unbounded"])
def test_all_come_to_one_point_though_one_has_more_steps_to_take(pool: RankPool, ahead: int | str) -> None:
    """It hung: who had come waited for that one, and that one for who had come."""
    results = pool.run(unevenly, ahead)
    assert [steps for _, steps in results] == [3, 10, 3, 2]
    for each in zip(*(found for found, _ in results), strict=True):
        assert each[0] and all(torch.equal(value, each[0][name]) for values in each for name, value in values.items())


def test_goes_on_from_a_checkpoint(pool: RankPool, tmp_path: Path) -> None:
    """All come to one point for it; the optimizer's state of each shard is in it."""
    results = pool.run(train, 2, "unbounded", "adamw", 1, 3, None, str(tmp_path / "saved"), 3)
    assert_equal(results, 2, "unbounded", "adamw")


def until_it_dies(rank: int, world: int, folder: str) -> Found:
    """Rank 0, a server, is killed a step after a checkpoint: before others, a step ahead, can come to their end."""
    program = Program(spec_of(2, 1), tiny.program())
    program.load_weights(tiny.reference().state_dict())
    of(program).record()
    for step, batch in enumerate(tiny.batches(STEPS), start=1):
        if (rank, step) == (0, 4):
            os.kill(os.getpid(), signal.SIGKILL)
        program.step(batch)
        program.optimizer.step()
        if step == 2:
            program.save_checkpoint(f"{folder}/step-00000002")
            there = (of(program).recorded or [])[: step * world]  # others may have pushed since
            torch.save(there, f"{folder}/{rank}.order")
    raise AssertionError("its servers are all there")


def from_its_checkpoint(rank: int, world: int, folder: str) -> Found:
    program = Program(spec_of(2, 1), tiny.program())
    found = program.latest_checkpoint(folder)
    assert found is not None
    program.load_checkpoint(found)
    of(program).record()
    losses = []
    for batch in list(tiny.batches(STEPS))[program.steps :]:
        losses.append(program.step(batch).item())
        program.optimizer.step()
    parameters = dict(program.full_state_dict())
    before = torch.load(f"{folder}/{rank}.order", weights_only=False)
    after = [replace_read(one, len(before)) for one in of(program).recorded or []]
    program.close()
    return Found(losses, [*before, *after], parameters)


def test_a_server_goes_on_serving_without_a_worker_that_died(tmp_path: Path) -> None:
    """Nobody waits for it, though a worker is to be one step ahead at most."""
    found = in_processes(tmp_path, WORKERS, train, 1, 1, "adamw", 1, -1, None, "", 0, 3)
    logs = [(tmp_path / f"{rank}.log").read_text() for rank in range(WORKERS)]
    assert found.keys() == {0, 1, 2}, logs
    assert sum(text.count("worker 3 is gone") for text in logs) == 1
    order = found[0].arrivals
    assert [sum(one.worker == worker for one in order) for worker in range(WORKERS)] == [STEPS, STEPS, STEPS, 2]
    wanted = replayed(1, 1, {0: order}, "adamw")
    for name, value in wanted.parameters.items():
        pieces = [v for n, v in found[0].parameters.items() if n.split("[")[0] == name]  # in the program's order
        if pieces:
            assert float((torch.cat(pieces) - value).norm()) <= 1e-11 * float(value.norm()), name


def test_a_server_that_is_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Without it the others end with an error; started anew, all together are the run of its two records."""
    found = in_processes(tmp_path, WORKERS, until_it_dies, str(tmp_path))
    logs = [(tmp_path / f"{rank}.log").read_text() for rank in range(1, WORKERS)]
    assert not found and all("LostRankError: the parameter server on rank" in text for text in logs), logs
    again = in_processes(tmp_path, WORKERS, from_its_checkpoint, str(tmp_path))
    assert again.keys() == set(range(WORKERS))
    orders = orders_of([again[rank] for rank in range(WORKERS)])
    assert [len(order) for order in orders.values()] == [WORKERS * STEPS] * 2
    wanted = replayed(2, 1, orders, "adamw", told=3)
    assert again[3].losses == pytest.approx(wanted.losses[2:], rel=1e-11)
    for name, value in wanted.parameters.items():
        assert float((again[0].parameters[name] - value).norm()) <= 1e-11 * float(value.norm()), name


class Bad(Exception):
    """What a user's script raises."""


def broken(rank: int, world: int, closes: bool) -> None:
    program = Program(spec_of(4, "unbounded"), tiny.program())
    program.load_weights(tiny.reference().state_dict())
    with program if closes else nullcontext():
        for step in range(1000):
            program.step(next(tiny.batches(1)))
            program.optimizer.step()
            if (rank, step) == (2, 2):
                raise Bad


def test_a_rank_that_ends_by_an_error_ends_all(tmp_path: Path) -> None:
    """At once: its server serves nobody to the end of a long training."""
    assert not in_processes(tmp_path, WORKERS, broken, True)
    logs = [(tmp_path / f"{rank}.log").read_text() for rank in range(WORKERS)]
    assert "Bad" in logs[2] and all("LostRankError" in logs[rank] for rank in (0, 1, 3)), logs


SCRIPT = """
import sys
import torch
from tests.fixtures import tiny_program as tiny
from dataclasses import replace
from autoplan.runtime.program import Program

spec = tiny.spec(dp=2)
asked = replace(spec.parallelism, servers=2, ahead="unbounded")
program = Program(replace(spec, parallelism=asked), tiny.program())
program.load_weights(tiny.reference().state_dict())
for batch in tiny.batches(2):
    program.step(batch)
    program.optimizer.step()
print("done", flush=True)
"""


def test_a_script_that_closes_nothing_ends_well(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [*torchrun, str(tmp_path / "script.py")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done") == 2 and "terminate" not in ended.stderr
