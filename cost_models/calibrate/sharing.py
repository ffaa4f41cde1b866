"""Whether devices share processors, as the processes of one machine do: how much faster one goes while others wait."""

from __future__ import annotations

import statistics
import time

import torch

from cost_models.calibrate.world import World

_ROUNDS = 5
_SIDE = 256             # of the square matrices that are multiplied
_LEAST_GAIN = 1.15      # below, a device has processors of its own: what is left is noise, and clocks
_BEYOND = 1.25          # from so much on, a node goes faster while other nodes wait: they are one machine


def measure_sharing(world: World, budget_s: float) -> tuple[int, float]:
    """(``Device.sharers``, ``Device.alone``) from the rates of matmuls on all ranks, on one node, and on one rank."""
    slot_s = budget_s / (3 * _ROUNDS)
    everyone, node, one = [], [], []
    for _ in range(_ROUNDS):
        everyone.append(_rate(world, world.size, slot_s))
        node.append(_rate(world, world.devices_per_node, slot_s))
        one.append(_rate(world, 1, slot_s))
    return sharing(world.size, world.devices_per_node, *(statistics.median(rates) for rates in (everyone, node, one)))


def sharing(devices: int, devices_per_node: int, everyone: float, node: float, one: float) -> tuple[int, float]:
    """The same from the rate of one device while all, its node, and itself alone compute.

    Devices that share nothing go as fast together as alone: (1, 1.0). No device gains more than all who share have.
    """
    if one < _LEAST_GAIN * everyone:
        return 1, 1.0
    sharers = devices if node > _BEYOND * everyone else devices_per_node
    return sharers, min(one / everyone, float(sharers))


def _rate(world: World, working: int, slot_s: float) -> float:
    """Products a second of the first rank, while the first ``working`` ranks multiply for as long."""
    x = torch.randn(_SIDE, _SIDE, device=world.device)
    world.barrier()
    done, began = 0, time.perf_counter()
    while world.rank < working and time.perf_counter() - began < slot_s:
        torch.mm(x, x)
        world.synchronize()
        done += 1
    rate = done / (time.perf_counter() - began) if done else 0.0
    return world.largest([rate if world.rank == 0 else 0.0])[0]
