"""What a redistribution asks of prices: seconds of each kind of collective over a group of axes (``Links``).

A cluster's are ``cost.mesh_links``; here are those of one latency and bandwidth for each axis (``AxisLinks``).

An axis across nodes is not an axis inside one, so each has a latency and a bandwidth of its own. A group's axes are
levels, ordered by how far apart neighbours on them are (``Axis.stride``): two members exchange over the outermost axis
on which they differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autoplan.ir.mesh import Axis


class Links(Protocol):
    """Prices of collectives on a mesh's axes, in seconds."""

    def collective_s(self, kind: str, bytes: int, axes: Sequence[Axis]) -> float:
        """Seconds of a collective.

        kind   "all-reduce", "all-gather", "reduce-scatter" or "all-to-all"
        bytes  the size that it is known by (typed.Collective)
        axes   the group's, in any order
        """

    def messages_s(self, count: np.ndarray, bytes: np.ndarray, axes: Sequence[Axis]) -> np.ndarray:
        """Seconds for which members are busy with messages of their own.

        count, bytes  (..., axes): how many messages, and how many bytes, cross each axis
        """

    def bandwidth_bytes_per_s(self, axis: Axis) -> float:
        """Of one axis, for telling fast from slow."""


def levels(axes: Iterable[Axis]) -> Iterator[tuple[int, Axis]]:
    """The group's axes from the innermost, each with the number of members inside one of its own."""
    inside = 1
    for axis in sorted(axes, key=lambda axis: axis.stride):
        yield inside, axis
        inside *= axis.size


def ring_bytes(bytes: int, axes: Sequence[Axis]) -> Iterator[tuple[int, int, Axis]]:
    """(steps, bytes a member receives, axis) of an all-gather level by level: what comes from afar comes once, and is
    passed on inside. Over all levels a member receives (p-1)/p of the result (Thakur et al. 2005, section 4.1)."""
    for inside, axis in levels(axes):
        yield axis.size - 1, bytes * (axis.size - 1) // (axis.size * inside), axis


def pairwise_bytes(bytes: int, axes: Sequence[Axis]) -> Iterator[tuple[int, int, Axis]]:
    """(messages, bytes a member receives, axis) of an all-to-all: 1/p of its operand from every peer (section 4.2)."""
    members = math.prod(axis.size for axis in axes)
    for inside, axis in levels(axes):
        peers = inside * (axis.size - 1)
        yield peers, bytes * peers // members, axis


@dataclass(frozen=True)
class AxisLinks:
    """A latency and a bandwidth for each axis.

    figures  (axis, latency_s of one message, bytes_per_s of one device), by the mesh axis' name
    other    latency and bandwidth of every axis that is not named
    """

    figures: tuple[tuple[str, float, float], ...] = ()
    other: tuple[float, float] = (0.0, 1.0)

    @staticmethod
    def of(figures: Mapping[str, tuple[float, float]]) -> AxisLinks:
        """``AxisLinks.of({"dp": (5e-6, 25e9), "tp": (2e-6, 400e9)})``"""
        return AxisLinks(tuple((name, *pair) for name, pair in sorted(figures.items())))

    def figure(self, axis: Axis) -> tuple[float, float]:
        whole = axis.name.partition(".")[0]
        return next(((latency, rate) for name, latency, rate in self.figures if name == whole), self.other)

    def collective_s(self, kind: str, bytes: int, axes: Sequence[Axis]) -> float:
        passes = 2 if kind == "all-reduce" else 1
        counted = pairwise_bytes(bytes, axes) if kind == "all-to-all" else ring_bytes(bytes, axes)
        seconds = 0.0
        for steps, received, axis in counted:
            latency_s, bytes_per_s = self.figure(axis)
            seconds += passes * (steps * latency_s + received / bytes_per_s)
        return seconds

    def messages_s(self, count: np.ndarray, bytes: np.ndarray, axes: Sequence[Axis]) -> np.ndarray:
        latencies, rates = np.array([self.figure(axis) for axis in axes]).reshape(-1, 2).T
        return count @ latencies + bytes @ (1 / rates)

    def bandwidth_bytes_per_s(self, axis: Axis) -> float:
        return self.figure(axis)[1]


UNIFORM = AxisLinks()
"""No latency and one byte a second on every axis: seconds are the bytes that the busiest device receives."""
