"""The pool of local ranks: results, process groups, and every way in which a rank can fail."""

from __future__ import annotations

import os
import pickle
import signal
import time
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh

from autoplan.errors import LayoutError
from autoplan.verify.local_ranks import RankError, RankPool, _Outcome, _Worker


def total(rank: int, size: int, x: torch.Tensor) -> tuple[int, torch.Tensor, int]:
    y = x * (rank + 1)
    distributed.all_reduce(y)
    return rank, y, os.getpid()


def product_and_gradient(rank: int, size: int, n: int) -> tuple[int, torch.Tensor]:
    """Work that would use the threads of an OpenMP pool, and autograd."""
    x = torch.ones(n, n, requires_grad=True)
    (x @ x).sum().backward()
    assert x.grad is not None
    distributed.all_reduce(x.grad)
    return torch.get_num_threads(), x.grad[0, 0]


def subgroup_sums(rank: int, size: int) -> list[float]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    sums = []
    for axis in ("dp", "tp"):
        x = torch.tensor(float(rank))
        distributed.all_reduce(x, group=mesh.get_group(axis))
        sums.append(x.item())
    return sums


def fail_on(rank: int, size: int, bad: int, how: str) -> None:
    if rank == bad:
        if how == "raise":
            raise ValueError("a planted mistake")
        if how == "autoplan":
            raise LayoutError("x", "its layout is wrong", "mend it")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(600)
    distributed.barrier()


def keep_groups(rank: int, size: int, kept: list) -> int:
    """Groups that something holds when they are destroyed, as torch's caches hold meshes."""
    kept += [distributed.new_group(list(range(size))) for _ in range(3)]
    held.append(kept)
    return os.getpid()


def unpicklable(rank: int, size: int) -> object:
    return lambda: rank


held: list[list] = []


def test_ranks_that_gather_threads_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoplan.verify.local_ranks.MOST_THREADS", 20)
    with RankPool(2, fork=True) as pool:
        processes = [pool.run(keep_groups, [])[0] for _ in range(6)]
    assert 1 < len(set(processes)) < len(processes)


def test_results_come_in_the_order_of_ranks_and_workers_live_on():
    with RankPool(4) as pool:
        first = pool.run(total, torch.ones(2))
        second = pool.run(total, torch.ones(2))
    assert [rank for rank, _, _ in first] == [0, 1, 2, 3]
    assert all(torch.equal(y, torch.full((2,), 10.0)) for _, y, _ in first)
    assert [pid for _, _, pid in first] == [pid for _, _, pid in second]
    assert len({pid for _, _, pid in first}) == 4


def test_device_meshes_work_in_one_run_after_another():
    with RankPool(4) as pool:
        for _ in range(2):
            assert pool.run(subgroup_sums) == [[2.0, 1.0], [4.0, 1.0], [2.0, 5.0], [4.0, 5.0]]


def test_a_fork_is_safe_after_the_parent_has_used_its_thread_pool():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        x = torch.ones(700, 700, requires_grad=True)
        (x @ x).sum().backward()
        with RankPool(2) as pool:
            results = pool.run(product_and_gradient, 400, timeout_s=60)
        (x @ x).sum().backward()  # the parent's pool is whole still
    finally:
        torch.set_num_threads(threads)
    assert results == [(1, 1600.0), (1, 1600.0)]


def test_no_fork_where_torch_is_built_for_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors stand for its devices, and give autograd threads, whether there is one or not."""
    built = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: (
        None if check_available else built
    ))  # fmt: skip
    assert not RankPool(1).fork
    with FakeTensorMode():
        torch.ones(2, requires_grad=True).sum().backward()
    with RankPool(1) as pool:
        assert pool.run(product_and_gradient, 2, timeout_s=60) == [(1, 4.0)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_fresh_interpreters_serve_as_forks_do(size):
    with RankPool(size, fork=False) as pool:
        assert [rank for rank, _, _ in pool.run(total, torch.ones(2))] == list(range(size))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "rank 2 failed:\nTraceback .*ValueError: a planted mistake"),
        ("kill", "rank 2 was ended by SIGKILL"),
    ],
)
def test_a_rank_that_fails_is_named_and_the_pool_recovers(how, message):
    with RankPool(4) as pool:
        with pytest.raises(RankError, match=f"(?s){message}") as caught:
            pool.run(fail_on, 2, how)
        assert caught.value.ranks == (2,)
        assert len(pool.run(total, torch.ones(1))) == 4


def test_one_of_our_own_errors_comes_along_as_the_cause():
    with RankPool(2) as pool, pytest.raises(RankError) as caught:
        pool.run(fail_on, 1, "autoplan")
    assert isinstance(caught.value.__cause__, LayoutError)
    assert str(caught.value.__cause__) == "x: its layout is wrong. mend it."


def test_the_rank_that_failed_first_is_named_whoever_is_heard_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pipes = [Pipe(), Pipe()]
    for (_, theirs), what, when in zip(pipes, ("its peer is gone", "its own mistake"), (2.0, 1.0), strict=True):
        theirs.send_bytes(pickle.dumps(_Outcome(error=what, ended_s=when)))
    with RankPool(2) as pool:
        workers = [_Worker(0, ours, Path(), lambda: None, lambda seconds: 0) for ours, _ in pipes]
        monkeypatch.setattr(pool, "_workers", workers)
        with pytest.raises(RankError, match=r"rank 1 failed:\nits own mistake"):
            pool._receive(0, pipes[0][0])


def test_a_rank_that_hangs_is_shown_where_it_stands():
    with RankPool(2) as pool, pytest.raises(RankError, match=r"did not finish within 3 s") as caught:
        pool.run(total, torch.ones(1))  # both have started: the seconds are those of the run alone
        pool.run(fail_on, 1, "hang", timeout_s=3)
    assert "in fail_on" in caught.value.text.split("rank 1 stood at")[1]
    assert "barrier" in caught.value.text.split("rank 1 stood at")[0]


def test_a_result_that_can_not_be_sent_is_an_error_of_its_rank():
    with RankPool(1) as pool, pytest.raises(RankError, match="rank 0 failed"):
        pool.run(unpicklable)


def test_no_process_is_left_behind():
    with RankPool(2) as pool:
        pids = [pid for _, _, pid in pool.run(total, torch.ones(1))]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_pool_ends_at_once_beside_a_younger_one():
    """The younger pool's ranks were forked with the parent's ends of the older pool's pipes open."""
    with RankPool(1) as younger, RankPool(1) as older:
        older.run(total, torch.ones(1))
        younger.run(total, torch.ones(1))
        (worker,) = older._workers
    assert worker.join(0) == 0, "it ended by itself"
