"""What profiles and fabrics said when a cluster was made: it keeps their figures, and never asks the files again.

So a plan is told of as it was made, on a machine that has none of the files too, and where they say something else by
now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cost_models.hardware import Device, Interconnect, Link, load_device, read_fabric


@dataclass(frozen=True)
class KnownDevice:
    """A device under the name or path that the cluster has for it, with the links of its usual machine."""

    name: str
    device: Device
    links: Interconnect


@dataclass(frozen=True)
class KnownFabric:
    """A network under the name or path that the cluster has for it, as one card has it."""

    name: str
    link: Link


@dataclass(frozen=True)
class Known:
    """The figures of everything that a cluster names."""

    devices: tuple[KnownDevice, ...] = ()
    fabrics: tuple[KnownFabric, ...] = ()

    def of(self, devices: Iterable[str], fabrics: Iterable[str]) -> Known:
        """Of these names and no others: what is known already stays as it is, the rest is read.

        A ``ProfileError`` for a name that isn't known, or a file that lacks a figure.
        """
        held = {each.name: each for each in self.devices}
        joined = {each.name: each for each in self.fabrics}
        return Known(
            tuple(held.get(name) or KnownDevice(name, *load_device(name)) for name in dict.fromkeys(devices)),
            tuple(joined.get(name) or KnownFabric(name, read_fabric(name)) for name in dict.fromkeys(fabrics)),
        )

    def device(self, name: str) -> KnownDevice:
        """The device of a name that the cluster has."""
        return next(each for each in self.devices if each.name == name)

    def link(self, name: str) -> Link:
        """The link of a fabric that the cluster names."""
        return next(each.link for each in self.fabrics if each.name == name)
