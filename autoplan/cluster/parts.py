"""What a cluster is made of: groups of nodes alike, and levels above the node."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from autoplan.errors import ClusterError

_NAME = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class NodeGroup:
    """``nodes`` nodes of ``devices_per_node`` devices of one kind.

    device  a shipped profile's name ("h100-sxm"), or a profile's path, ending in .toml
    """

    nodes: int
    devices_per_node: int
    device: str

    def __post_init__(self) -> None:
        check_count("nodes", self.nodes)
        check_count("devices_per_node", self.devices_per_node)
        check_name("device", self.device, "h100-sxm")

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node


@dataclass(frozen=True)
class OuterLevel:
    """``size`` members joined by a network; a member is a node, or one whole of the level inside.

    name      "pod", "island", "cluster"
    network   a shipped fabric's name ("ib-ndr"), or a fabric's path, ending in .toml
    gb_per_s  what one network card gets across this level, in 10^9 bytes a second, where that is not the fabric's
              bandwidth: what an oversubscribed spine leaves it
    """

    name: str
    size: int
    network: str
    gb_per_s: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ClusterError(f"level {self.name!r}", "is no level's name", "Use letters, digits, _ and -")
        check_count(f"size of the level {self.name!r}", self.size)
        check_name("network", self.network, "ib-ndr")
        if re.search(r'[:,"]', self.network):
            raise ClusterError(self.network, 'holds one of : , "', "Move the fabric to a path without them")
        wide = self.gb_per_s
        if wide is not None and (isinstance(wide, bool) or not isinstance(wide, (int, float)) or not 0 < wide < 1e9):
            raise ClusterError(f"gb_per_s = {wide!r}", "is no bandwidth", "Give gigabytes a second, such as 12.5")


def check_count(name: str, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ClusterError(f"{name} = {count!r}", "is not a count of at least 1", "Give a positive whole number")


def checked_share(name: str, value: Any) -> float:
    """A share from 0 to below 1: a number, or the text of one."""
    try:
        share = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        share = float("nan")
    if not 0 <= share < 1:
        raise ClusterError(f"{name} = {value!r}", "is not a share from 0 to below 1", "Give for example 0.03, or 0")
    return share


def check_name(name: str, value: object, example: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ClusterError(f"{name} = {value!r}", "is not a name", f'Give a name such as "{example}"')


Part = TypeVar("Part", NodeGroup, OuterLevel)


def parts_of(kind: type[Part], given: object, name: str) -> tuple[Part, ...]:
    """What a user gives for ``groups`` or ``levels``: parts already made, mappings, or their fields in order."""
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise ClusterError(f"{name} = {given!r}", "expected a list", _form(kind, name))
    return tuple(_part(kind, item, name) for item in given)


def _part(kind: type[Part], item: Any, name: str) -> Part:
    if isinstance(item, kind):
        return item
    known = [field.name for field in fields(kind)]
    if isinstance(item, Mapping):
        if unknown := [str(key) for key in item if key not in known]:
            raise ClusterError(f"{name}: {dict(item)!r}", f"has no {', '.join(unknown)}", _form(kind, name))
        if set(known[:3]) <= set(item):
            return kind(**item)
    elif isinstance(item, (tuple, list)) and 3 <= len(item) <= len(known):
        return kind(*item)
    raise ClusterError(f"{name}: {item!r}", f"doesn't say {', '.join(known[:3])}", _form(kind, name))


def _form(kind: type[NodeGroup] | type[OuterLevel], name: str) -> str:
    example = '[(2, 8, "h100-sxm"), (2, 8, "a100-sxm-80gb")]' if kind is NodeGroup else '[("pod", 4, "ib-ndr"), …]'
    return f"Give {name} as in {example}, or as mappings of {', '.join(field.name for field in fields(kind))}"
