"""What devices take from one another: a collective from the compute beside it, processes from those they share with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from cost_models.calibrate.cases import Collective
from cost_models.calibrate.collectives import start
from cost_models.calibrate.operators import Run
from cost_models.calibrate.world import World

_ROUNDS = 5
_DELAY_ROUNDS = 9
_SIDE = 384             # of the square matrices that are multiplied
_SHARES = 1.2           # times as fast as with the others at work: those who share processors
_LEAST_BYTES = 2**18
_LARGEST_BYTES = 2**26
_DELAY_BYTES = 2**18  # of a collective between computing: as small as what tensor parallelism adds up
_BETWEEN_S = 0.012      # computing from one to the next: a few of a scheduler's slices
_LONGEST_SHARE = 0.95   # of a collective's time that the compute is told to lose: beyond, slowdowns have no bound


def measure_sharing(world: World, budget_s: float) -> tuple[int, float]:
    """(``Device.sharers``, ``Device.alone``): how many devices share processors, and how many times as fast one
    computes while the others wait. (1, 1.0) where each has its own.

    Nodes that are parts of one machine may share, too: then one node is faster while the others wait.
    """
    y = torch.randn(_SIDE, _SIDE, device=world.device)
    single_s = _seconds(lambda: _multiply(y, 4), world) / 4
    products = max(1, round(budget_s / (2 * _ROUNDS) / single_s))

    def among(count: int) -> float:
        """Seconds of the first ``count`` ranks while the others wait for them."""
        return _seconds(lambda: _multiply(y, products if world.rank < count else 0), world)

    rounds = [(among(world.size), among(world.devices_per_node), among(1)) for _ in range(_ROUNDS)]
    all_s, node_s, alone_s = (statistics.median(times) for times in zip(*rounds, strict=True))
    return sharing(all_s, node_s, alone_s, world.nodes, world.devices_per_node)


def sharing(all_s: float, node_s: float, alone_s: float, nodes: int, devices_per_node: int) -> tuple[int, float]:
    """``measure_sharing`` from the seconds of the same work: on all devices at once, on one node's, on one."""
    alone = all_s / alone_s
    if alone < _SHARES:
        return 1, 1.0
    together = nodes > 1 and all_s / node_s >= _SHARES
    return (nodes if together else 1) * devices_per_node, alone


def measure_overlap(world: World, budget_s: float) -> float:
    """``Device.overlap_slowdown``: of an all-reduce over all ranks under matmuls that take half as long again.

    budget_s  for all of it: the all-reduce is as large as fits, up to 64 MiB
    """
    x = torch.ones(_LEAST_BYTES // 4, device=world.device)
    longest_s = budget_s / _ROUNDS / 6

    comm_s = _seconds(lambda: dist.all_reduce(x), world)
    while 4 * comm_s < longest_s and x.nbytes < _LARGEST_BYTES:
        x = x.repeat(4)
        comm_s = _seconds(lambda: dist.all_reduce(x), world)  # noqa: B023 - called before x changes
    y = torch.randn(_SIDE, _SIDE, device=world.device)
    products = max(1, round(1.5 * comm_s / _seconds(lambda: _multiply(y, 4), world) * 4))
    rounds = [_round(x, y, products, world) for _ in range(_ROUNDS)]
    return statistics.median(slowdown(*times) for times in rounds)


def measure_start_delay(world: World, kind: str, budget_s: float) -> float:
    """Seconds by which a collective, or a send, takes longer where devices come to it from computing than where one
    follows another, as ``collectives`` are timed: at least 0.

    Where devices share processors, a scheduler runs them in turns, and who is there first waits for the turn of the
    last. Over the groups of the innermost axis, each as often as fits into the budget.
    """
    axis = world.axes[0]
    work = start(Collective(kind, axis, _DELAY_BYTES), world.group(axis), world.device)
    y = torch.randn(_SIDE, _SIDE, device=world.device)
    products = max(1, round(_BETWEEN_S / _seconds(lambda: _multiply(y, 16), world) * 16))
    turn_s = _seconds(lambda: _alternate(work, y, products, 4), world) / 4
    turns = max(8, round(budget_s / (2 * _DELAY_ROUNDS) / turn_s))

    def more() -> float:
        """Of one of them between products, over the two apart."""
        both_s = _seconds(lambda: _alternate(work, y, products, turns), world)
        compute_s = _seconds(lambda: _multiply(y, products * turns), world)
        comm_s = _seconds(lambda: _alternate(work, y, 0, turns), world)
        return (both_s - compute_s - comm_s) / turns

    return max(0.0, statistics.median(more() for _ in range(_DELAY_ROUNDS)))


def _alternate(work: Run, y: torch.Tensor, products: int, turns: int) -> None:
    for turn in range(turns):
        _multiply(y, products)
        work(turn)


def slowdown(comm_s: float, compute_s: float, both_s: float) -> float:
    """The share by which compute slows while a collective runs, where compute outlasts it: the inverse of
    ``cost_models.collective.overlapped``, by which both take compute + comm · s/(1 + s)."""
    lost = min(max((both_s - compute_s) / comm_s, 0.0), _LONGEST_SHARE)
    return lost / (1 - lost)


def _round(x: torch.Tensor, y: torch.Tensor, products: int, world: World) -> tuple[float, float, float]:
    """Seconds of the all-reduce, of the products, and of both at once."""

    def both() -> None:
        work = dist.all_reduce(x, async_op=True)
        _multiply(y, products)
        assert work is not None
        work.wait()

    alone_s = _seconds(lambda: dist.all_reduce(x), world)
    return alone_s, _seconds(lambda: _multiply(y, products), world), _seconds(both, world)


def _multiply(y: torch.Tensor, products: int) -> None:
    for _ in range(products):
        torch.mm(y, y)


def _seconds(run: Callable[[], object], world: World) -> float:
    """The longest over the ranks, which begin together."""
    world.barrier()
    world.synchronize()
    began = time.perf_counter()
    run()
    world.synchronize()
    return world.largest([time.perf_counter() - began])[0]
