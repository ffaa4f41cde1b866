"""The device mesh: named axes with sizes, outermost first.

An *axis* is a mesh axis; a *dim* is a tensor dim. Ranks are numbered row-major over the device axes: the last axis
varies fastest, so it lies on the fastest links.

One axis may be virtual: ``mb``, the microbatches. They split the batch over time as data parallelism splits it over
devices, so the same algebra says which programs may be cut into microbatches; no collective can cross it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

MICROBATCH = "mb"
MICROBATCHES = "microbatches"  # the keyword by which an exported stage takes how many there are
EXPERT, CONTEXT, TENSOR = "ep", "cp", ("tp", "tp2", "tp3")
"""The axis of the experts, that of the context, and the tensor axes, outermost first: ``tp`` alone, or the two or three
factors of a tensor-parallel group."""
INNER_CONTEXT = "cp2"
CONTEXTS = (CONTEXT, INNER_CONTEXT)
"""The context's axis, or its two factors where experts are split over the inner one alone, outermost first."""
OPERATOR_AXES = (EXPERT, *CONTEXTS, *TENSOR)
"""Axes over which operators are split as the search chooses, outermost first."""
TORCH = tuple(int(part) for part in version("torch").split(".")[:2])
ZERO_AXES = ("dp", EXPERT, *CONTEXTS)
"""Axes over which ZeRO shards the parameters that are whole along them, outermost first."""
_PART = re.compile(r"(inner|outer)(\d+)")


@dataclass(frozen=True)
class Axis:
    """One mesh axis.

    name    "pp", "dp", one of OPERATOR_AXES, or "mb" for the microbatches
    size    members of a group along it, at least 1
    stride  device numbers between neighbours along it; 0 for the virtual axis
    """

    name: str
    size: int
    stride: int

    @property
    def virtual(self) -> bool:
        return self.name == MICROBATCH


@dataclass(frozen=True)
class Mesh:
    """Axes, outermost first. ``Mesh.of(pp=2, dp=2, tp=4, mb=8)``: the device axes in the order given, 16 devices."""

    axes: tuple[Axis, ...]

    @staticmethod
    def of(**sizes: int) -> Mesh:
        """A mesh of these device axes, outermost first; strides follow from the sizes, ``mb`` has none."""
        devices = [(name, size) for name, size in sizes.items() if name != MICROBATCH]
        axes, stride = [], 1
        for name, size in reversed(devices):
            axes.append(Axis(name, size, stride))
            stride *= size
        axes.reverse()
        if MICROBATCH in sizes:
            axes.append(Axis(MICROBATCH, sizes[MICROBATCH], 0))
        return Mesh(tuple(axes))

    @staticmethod
    def planned(
        pp: int, dp: int, ep: int, cp: int, tensor: tuple[int, ...], mb: int | None = None, inner: int = 1
    ) -> Mesh:  # fmt: skip
        """The mesh of a plan, in the order in which its axes lie: an experts' or a context's axis of 1 isn't there.

        tensor  sizes of the tensor axes, outermost first
        inner   of cp, the ranks of its inner factor
        """
        contexts = zip(CONTEXTS, (cp // inner, inner), strict=True)
        beside = {name: size for name, size in ((EXPERT, ep), *contexts) if size > 1}
        virtual = {} if mb is None else {MICROBATCH: mb}
        return Mesh.of(pp=pp, dp=dp, **beside, **dict(zip(TENSOR, tensor, strict=False)), **virtual)

    def __contains__(self, name: str) -> bool:
        return any(axis.name == name for axis in self.axes)

    def axis(self, name: str) -> Axis:
        """The axis of this name, or a part of one: ``tp.0`` is the outermost prime factor of ``tp``, ``dp.inner4`` are
        the four neighbours along ``dp`` that lie innermost, ``dp.outer2`` what has two members across such groups."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        whole, _, part = name.rpartition(".")
        if part.isdigit() and whole in self.names:
            factors = factored(self.axis(whole))
            if len(factors) > 1 and int(part) < len(factors):
                return factors[int(part)]
        if (match := _PART.fullmatch(part)) and whole in self.names:
            axis, size = self.axis(whole), int(match[2])
            if size and axis.size % size == 0:
                return Axis(name, size, axis.stride * (axis.size // size if match[1] == "outer" else 1))
        raise KeyError(f"mesh {self} has no axis {name!r}")

    def size(self, name: str) -> int:
        """Members along the axis, or along its prime factor; 1 where the mesh has no such axis."""
        known = self.sizes.get(name)
        if known is not None:
            return known
        try:
            return self.axis(name).size
        except KeyError:
            return 1

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Of its axes."""
        return {axis.name: axis.size for axis in self.axes}

    def factors(self, name: str) -> tuple[str, ...]:
        """The names of an axis' prime factors, outermost first; the axis itself where its size is prime or 1."""
        return self.prime_names.get(name) or tuple(axis.name for axis in factored(self.axis(name)))

    @cached_property
    def prime_names(self) -> Mapping[str, tuple[str, ...]]:
        """Of its axes, those of their prime factors."""
        return {axis.name: tuple(each.name for each in factored(axis)) for axis in self.axes}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @property
    def operator_axes(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name in OPERATOR_AXES)

    @property
    def operator_ways(self) -> int:
        """Devices over which operators are split: members along all these axes."""
        return math.prod(self.size(name) for name in self.operator_axes)

    @property
    def context_size(self) -> int:
        """Members of a context-parallel group: over both of its axes."""
        return math.prod(self.size(name) for name in CONTEXTS)

    @property
    def tensor_size(self) -> int:
        """Members of a tensor-parallel group: over all its axes."""
        return math.prod(self.size(name) for name in TENSOR)

    @property
    def device_axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if not axis.virtual)

    @property
    def devices(self) -> int:
        return math.prod(axis.size for axis in self.device_axes)

    def coordinate(self, rank: int, name: str) -> int:
        """Where a rank lies along a device axis."""
        axis = self.axis(name)
        return rank // axis.stride % axis.size

    def along(self, name: str, coordinate: int) -> int:
        """Where a rank with this coordinate along an axis lies along a part of it (``axis``)."""
        part, whole = self.axis(name), self.axis(whole_axis(name))
        return coordinate * whole.stride // part.stride % part.size

    def __str__(self) -> str:
        return " ".join(f"{axis.name}={axis.size}" for axis in self.axes)


def zero_axes(split: Collection[str]) -> tuple[str, ...]:
    """Axes over which ZeRO shards the parameters that are whole along them, outermost first.

    split  those over which experts are, and dense weights aren't: a module that holds both needs a fully_shard that
           takes a mesh for each parameter, as torch has it from 2.13 on
    """
    return tuple(axis for axis in ZERO_AXES if TORCH >= (2, 13) or axis not in split)


def whole_axis(name: str) -> str:
    """The axis that a name of ``Mesh.axis`` is a part of."""
    return name.partition(".")[0]


def replicated(size: int, replicas: int) -> tuple[str, str]:
    """The parts of a data axis of this size: that along which ranks hold the same shard, one in each of so many
    replicas, and that over which ZeRO shards each replica's states."""
    return f"dp.outer{replicas}", f"dp.inner{size // replicas}"


def factored(axis: Axis) -> tuple[Axis, ...]:
    """An axis as axes of prime size, outermost first, in ascending size: ``tp=12`` is tp.0=2, tp.1=2, tp.2=3.

    An axis of prime size, of size 1, or virtual stays as it is.
    """
    primes = prime_factors(axis.size)
    if len(primes) < 2 or axis.virtual:
        return (axis,)
    found, inside = [], axis.size
    for number, prime in enumerate(primes):
        inside //= prime
        found.append(Axis(f"{axis.name}.{number}", prime, axis.stride * inside))
    return tuple(found)


def prime_factors(n: int) -> tuple[int, ...]:
    """In ascending order; none of 1."""
    found, prime = [], 2
    while n > 1:
        while n % prime == 0:
            found.append(prime)
            n //= prime
        prime += 1
    return tuple(found)
