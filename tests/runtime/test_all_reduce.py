"""Gradients summed on a tree and over two levels: equal to one device, beside the backward, errors told."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.options import Training
from autoplan.runtime.parallel.bucket_sums import HierarchicalSum, SumQueue, TreeSum
from autoplan.runtime.parallel.gradient_buckets import Bucket
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny

TRAINING = Training(precision="fp64", learning_rate=1e-2, compile=False)
MESHES = {
    "dp4": dict(dp=4, microbatches=2),
    "dp2 tp2": dict(dp=2, tp=2, microbatches=2),
    "dp2 pp2": dict(dp=2, pp=2, microbatches=2),
    "dp2 pp2, two stages on each": dict(
        dp=2, pp=2, microbatches=4, virtual_stages=2, pipeline_schedule="interleaved",
    ),
}  # fmt: skip
NODES = {"dp4": 2, "dp2 tp2": 2, "dp2 pp2": 2, "dp2 pp2, two stages on each": 2}
RULES = ("ring", "tree", "hierarchical", "tree<1KiB<hierarchical")
THREAD = "autoplan-sums"


def made(mesh: str, rule: str | None, training: Training = TRAINING) -> Program:
    spec = tiny.spec(**MESHES[mesh], training=training)
    spec = replace(spec, parallelism=replace(spec.parallelism, all_reduce=rule), node=NODES[mesh])
    return Program(spec, tiny.program(len(spec.lowered.stages)))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD]


def summed(rank: int, world: int, mesh: str, rule: str | None, training: Training) -> tuple:
    """(the gradients of two steps, what summed each bucket, whether a thread was there and is gone)"""
    found = []
    with made(mesh, rule, training) as program:
        program.load_weights(tiny.reference().state_dict())
        for batch in tiny.batches(2):
            program.step(batch)
            found.append(program.full_grads())
            program.optimizer.zero_grad()
        kinds = [type(b.phased[0]).__name__ if b.phased else "" for b in program.sums.buckets]
        during = threads()
    return found, kinds, during, threads()


def one_device() -> list[Mapping[str, Tensor]]:
    model, found = tiny.reference(), []
    for batch in tiny.batches(2):
        model.zero_grad()
        model(**batch).backward()
        named = model.named_parameters(remove_duplicate=False)
        found.append({name: p.grad.clone() for name, p in named if p.grad is not None})
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mesh", MESHES)
def test_a_step_is_one_devices(pool: RankPool, mesh: str, rule: str) -> None:
    whole, several = one_device(), set[str]()
    for rank, (found, kinds, during, after) in enumerate(pool.run(summed, mesh, rule, TRAINING)):
        several |= set(kinds)
        assert during == [THREAD] * any(kinds) and not after
        for step, wanted in zip(found, whole, strict=True):
            for name in step if rank == 0 else ():
                off = ((step[name] - wanted[name]).norm() / wanted[name].norm()).item()
                assert off < 1e-12, f"{name}: {off:.1e}"
    two_levels = mesh in ("dp4", "dp2 tp2")  # of tp's, what it sums with dp
    assert several - {""} == {
        "ring": set(), "tree": {"TreeSum"}, "hierarchical": {"HierarchicalSum"} if two_levels else set(),
        "tree<1KiB<hierarchical": {"dp4": {"HierarchicalSum"}, "dp2 tp2": {"TreeSum"}}.get(mesh, set()),
    }[rule]  # fmt: skip


def test_sums_are_rounded_as_asked(pool: RankPool) -> None:
    exact = pool.run(summed, "dp4", None, TRAINING)[0][0]
    for rule in ("tree", "hierarchical"):
        narrow = pool.run(summed, "dp4", rule, replace(TRAINING, reduce_dtype="fp32"))[0][0]
        for name, gradient in exact[0].items():
            off = ((narrow[0][name] - gradient).norm() / gradient.norm()).item()
            assert 1e-9 < off < 1e-6, f"{name} by {rule}: {off:.1e}"


def algorithms(rank: int, world: int, length: int) -> list[tuple[Tensor, ...]]:
    """What each leaves on this rank of sums of three buckets that are begun one after another."""
    pairs, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    across, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    several, _ = dist.new_subgroups_by_enumeration([[0, 1, 2], [3]])
    assert pairs is not None and across is not None and several is not None and dist.group.WORLD is not None
    found, queue = [], SumQueue()
    for sum_up in (TreeSum(dist.group.WORLD), TreeSum(several), HierarchicalSum(pairs, across)):
        flats = [(rank + 1.0) * torch.arange(1.0, length + 1) + number for number in range(3)]
        begun = [queue.begin(sum_up, flat) for flat in flats]
        for work in begun:
            work.wait()
        found.append(tuple(flats))
    queue.close()
    return found


def test_each_leaves_the_sum_everywhere(pool: RankPool) -> None:
    length = 6
    for rank, found in enumerate(pool.run(algorithms, length)):
        for kind, flats in enumerate(found):
            ranks = ([0, 1, 2] if rank < 3 else [3]) if kind == 1 else range(4)
            for number, flat in enumerate(flats):
                wanted = sum((r + 1.0) * torch.arange(1.0, length + 1) + number for r in ranks)
                assert torch.equal(flat, torch.as_tensor(wanted))


def lacking(rank: int, world: int, levels: bool) -> list[Tensor | None]:
    """Gradients of three parameters: the first has all ranks', of the second rank 1 has none, of the third nobody."""
    pairs, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    across, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    assert pairs is not None and across is not None and dist.group.WORLD is not None
    parameters = [torch.nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in (3, 5, 2)]
    held: list[Any] = [SimpleNamespace(parameter=p, values=p.data, sharded=False) for p in parameters]
    queue = SumQueue()
    sum_up = HierarchicalSum(pairs, across) if levels else TreeSum(dist.group.WORLD)
    bucket = Bucket(held, [dist.group.WORLD], [1, 1, 1], phased=(sum_up, queue))
    assert bucket.flat.numel() % sum_up.multiple == 0
    for _ in range(2):
        for number, parameter in enumerate(parameters):
            none = number == 2 or (number == 1 and rank == 1)
            parameter.grad = None if none else torch.full_like(parameter, 10.0**rank)
        bucket.begin(1)
        bucket.start()
        bucket.finish()
    queue.close()
    return [None if p.grad is None else p.grad.clone() for p in parameters]


@pytest.mark.parametrize("levels", [False, True], ids=["tree", "hierarchical"])
def test_a_gradient_that_some_ranks_lack_is_the_others_sum(pool: RankPool, levels: bool) -> None:
    for first, second, third in pool.run(lacking, levels):
        assert (first == 1111).all() and (second == 1101).all() and third is None


def broken(rank: int, world: int) -> str:
    """A sum of a tensor that doesn't divide among a node's ranks."""
    assert dist.group.WORLD is not None
    queue = SumQueue()
    work = queue.begin(HierarchicalSum(dist.group.WORLD, dist.group.WORLD), torch.zeros(7))
    try:
        work.wait()
    except RuntimeError as error:
        return str(error)
    finally:
        queue.close()
    return ""


def test_what_the_thread_meets_is_raised_where_it_is_waited_for(pool: RankPool) -> None:
    assert all("size" in said for said in pool.run(broken))
