"""What a link between nodes lets through at once after a pause: a shaper's bucket of tokens."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from cost_models.calibrate.world import World

_LEAST_BYTES, _LARGEST_BYTES = 2**20, 2**26
_LONG_S = 0.03          # of a message: beside it a wake-up's time is small
_ROUNDS = (3, 15)       # at least and at most
_PAUSES = 2.0           # times a message's seconds: a bucket that holds as much is full again
_LEAST_SHARE = 0.02     # of a message: less can't be told from the clock's noise


def measure_burst(world: World, budget_s: float) -> float:
    """Bytes that a node's card sends at once after a pause, beyond its bandwidth: of the first two nodes one rank each,
    while the others wait. 0.0 where there is one node, or where it can't be told from noise.
    """
    if world.nodes < 2:
        return 0.0
    axis = next(axis for axis in world.axes if axis.levels == (("nic", world.nodes),))
    group, place = world.group(axis), world.rank // world.devices_per_node
    sends = place < 2 and world.rank % world.devices_per_node == 0
    size = _LEAST_BYTES

    def seconds(messages: int, bytes: int) -> float:
        """Of so many messages one way and a small one back, after a pause."""
        return world.largest([_there_and_back(messages, bytes, group, place, world.device) if sends else 0.0])[0]

    once_s = seconds(1, size)
    while once_s < _LONG_S and size < _LARGEST_BYTES:
        size *= 2
        once_s = seconds(1, size)
    fewest, most = _ROUNDS
    rounds = min(max(fewest, int(budget_s / once_s / (4 + 3 * _PAUSES))), most)

    def after_pause(messages: int, bytes: int) -> float:
        time.sleep(_PAUSES * once_s)
        world.barrier()
        return seconds(messages, bytes)

    return burst_bytes([(after_pause(1, 4), after_pause(1, size), after_pause(3, size)) for _ in range(rounds)], size)


def burst_bytes(rounds: Sequence[tuple[float, float, float]], size: int) -> float:
    """From the seconds of an empty message, of one of ``size`` bytes, and of three of these: each after a pause, so the
    second and the third begin with a burst, and what they differ by has none."""
    found = []
    for empty_s, once_s, thrice_s in rounds:
        steady_s = (thrice_s - once_s) / 2
        found.append(size * (1 - (once_s - empty_s) / steady_s) if steady_s > 0 else 0.0)
    least = statistics.quantiles(found, n=4)[0]
    return min(statistics.median(found), float(size)) if least > _LEAST_SHARE * size else 0.0


@torch.no_grad()
def _there_and_back(messages: int, bytes: int, group: ProcessGroup, place: int, device: torch.device) -> float:
    x, answer = torch.ones(max(bytes // 4, 1), device=device), torch.ones(1, device=device)
    began = time.perf_counter()
    for _ in range(messages):
        if place == 0:
            dist.send(x, group=group, group_dst=1)
        else:
            dist.recv(x, group=group, group_src=0)
    if place == 0:
        dist.recv(answer, group=group, group_src=1)
        float(answer)  # waits for an accelerator, too
        return time.perf_counter() - began
    dist.send(answer, group=group, group_dst=0)
    return 0.0
