"""Pins drawn at random: any sizes that a cluster has, and what auto chose with some of it changed."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from autoplan.options import Parallelism

FIELDS: dict[str, tuple] = {
    "zero": (0, 1, 2, 3),
    "micro_batch": (1, 2, 4, 8),
    "pipeline_schedule": ("1f1b", "interleaved", "gpipe"),
    "virtual_stages": (2, 4),
    "recompute": ("none", "selective", "full"),
    "sequence_parallel": (True, False),
}
SIZES = ("dp", "tp", "pp", "cp", "ep")
KEPT = 0.5  # share of fields that are left to the search
CHANGES = 2  # the most that are made to what auto chose


def drawn(random: Random, devices: int, best: Parallelism, axes: tuple[str, ...]) -> Parallelism:
    """One pin: by even chance around what auto chose, or anywhere.

    axes  that sizes other than 1 are drawn for, of ``SIZES``
    """
    return near(random, devices, best, axes) if random.random() < 0.5 else anywhere(random, devices, axes)


def anywhere(random: Random, devices: int, axes: tuple[str, ...]) -> Parallelism:
    """Sizes that multiply to the devices, and each other field with the odds of ``KEPT``."""
    fields = {name: random.choice(values) for name, values in FIELDS.items() if random.random() > KEPT}
    return consistent(Parallelism(**folded(sizes(random, devices, axes)), **fields))


def near(random: Random, devices: int, best: Parallelism, axes: tuple[str, ...]) -> Parallelism:
    """What auto chose with a factor moved from one axis to another, or other fields changed; the rest of its fields are
    pinned or left with the odds of ``KEPT``."""
    held = {name: getattr(best, name) or 1 for name in SIZES}
    inside = math.gcd(held["dp"], held["ep"])  # the data ranks that experts are split over; the rest are tp's and cp's
    beside, held = held["ep"] // inside, held | {"dp": held["dp"] // inside, "ep": inside}
    if random.random() < 0.5:
        giver = random.choice([name for name in SIZES if held[name] > 1])
        taker = random.choice([name for name in axes if name != giver])
        factor = next(p for p in range(2, held[giver] + 1) if held[giver] % p == 0)
        held[giver] //= factor
        held[taker] *= factor
    fields = {name: getattr(best, name) for name in FIELDS if random.random() > KEPT}
    for name in random.sample(list(FIELDS), random.randint(0, CHANGES)):
        fields[name] = random.choice(FIELDS[name])
    assert math.prod(held.values()) == devices
    return consistent(Parallelism(**folded(held, beside), **fields))


def folded(sizes: dict[str, int], beside: int = 1) -> dict[str, int]:
    """Sizes that multiply to the devices as they are pinned: dp counts all data ranks, those of ep among them, and ep
    has ``beside`` times as many on other axes."""
    return sizes | {"dp": sizes["dp"] * sizes["ep"], "ep": sizes["ep"] * beside}


def sizes(random: Random, devices: int, axes: tuple[str, ...]) -> dict[str, int]:
    """Each prime factor of the devices goes to some axis."""
    found = dict.fromkeys(SIZES, 1)
    factor = 2
    while devices > 1:
        if devices % factor:
            factor += 1
            continue
        found[random.choice(axes)] *= factor
        devices //= factor
    return found


def consistent(pinned: Parallelism) -> Parallelism:
    """Without fields that need others: stages, or several of them on a rank."""
    if pinned.pp == 1:
        return replace(pinned, pipeline_schedule=None, virtual_stages=None)
    return pinned if pinned.pipeline_schedule in ("interleaved", None) else replace(pinned, virtual_stages=None)
