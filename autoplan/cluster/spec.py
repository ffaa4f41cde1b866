"""Nodes of devices, the networks between them, and the memory that each device offers."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from autoplan.arguments.keywords import keywords
from autoplan.arguments.synonyms import CLUSTER_NAMES
from autoplan.cluster.bandwidth import Factors, factors_of, factors_text, times, widened
from autoplan.cluster.known import Known
from autoplan.cluster.one_line import FORM, group_text, is_text, levels_text, memory_text, option_text, read_text
from autoplan.cluster.parts import NodeGroup, OuterLevel, check_count, check_name, checked_share, parts_of
from autoplan.cluster.toml_files import checked, read_file
from autoplan.errors import ClusterError
from cost_models.errors import ProfileError
from cost_models.hardware import (
    Device,
    Interconnect,
    Level,
    Topology,
    slower_of,
    slowest_of,
)

MOST_DEVICES = 1_000_000
MEMORY_MARGIN = 0.015
"""By how much the memory account may be too low, as a share of the memory limit: the most that is known is 1.3%.

An H100's measured peaks are up to 1.2% above the predicted ones (docs/gpu.md), and those that are rehearsed at full
size up to 1.3% (docs/appendix/rehearsals.md). What contexts, NCCL and the allocator take is reserved by the device's
profile, beside this.
"""


@keywords(ClusterError, CLUSTER_NAMES)
@dataclass(frozen=True)
class ClusterSpec:
    """``nodes`` nodes of ``devices_per_node`` devices each.

    device        a shipped profile's name ("h100-sxm", "a100-sxm-80gb", "cpu"), or a profile's path, ending in .toml
    memory_bytes  what a plan may fill of each device; None: what the device's profile says is usable
    network       between nodes: a shipped fabric's name ("ib-ndr"), or a fabric's path, ending in .toml; None: that of
                  the device's usual machine
    node          between the devices of a node: the same
    levels        where there is more than one level above the node, each as (name, size, network) or (name, size,
                  network, GB/s of a card), innermost first: [("pod", 16, "ib-ndr"), ("cluster", 4, "ib-ndr", 12.5)]
    groups        in place of the first three where nodes differ, each as (nodes, devices_per_node, device). A
                  pipeline stage whose devices are all of one kind has the pace and the memory of that kind, so that
                  stages are unequal; what is split evenly over several kinds has the pace of the slowest and the
                  memory of the smallest (``cost_models.hardware.slowest_of``). Where nodes differ in size, the larger
                  count as several of the greatest common size.
    bandwidth     factors on the links' bandwidths, for what-if: 2.0 doubles the network between nodes, {"node": 1.0,
                  "nic": 0.5} names links: what joins the devices of a node, the network cards, or one outer level
    memory_margin  share of the memory limit that a plan leaves free, for what the memory account may be off by. Where
                  no plan leaves it, the leanest that fits is taken. Of several kinds, the smallest one's share
    known         the figures of all that is named here, read when the cluster is made; what is given is not read

    A ``ClusterError`` for a device or a network that isn't known, counts or memory that aren't positive, a margin that
    is no share, or a network beside levels, which name their own.
    """

    nodes: int = 0
    devices_per_node: int = 0
    device: str = ""
    memory_bytes: int | None = None
    network: str | None = None
    node: str | None = None
    levels: tuple[OuterLevel, ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    bandwidth: Factors = ()
    memory_margin: float = MEMORY_MARGIN
    known: Known = field(default=Known(), repr=False)

    def __post_init__(self) -> None:
        self._settle("levels", parts_of(OuterLevel, self.levels, "levels"))
        self._settle("groups", parts_of(NodeGroup, self.groups, "groups"))
        self._settle("bandwidth", factors_of(self.bandwidth))
        if self.groups:
            self._gather()
        check_count("nodes", self.nodes)
        check_count("devices_per_node", self.devices_per_node)
        if self.devices > MOST_DEVICES:
            cause = f"is more than {MOST_DEVICES:,}, and so than any cluster has"
            raise ClusterError(f"{self.devices:,} devices", cause, "Give nodes x devices of a node")
        check_name("device", self.device, "h100-sxm")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            value = f"memory = {self.memory_bytes} bytes"
            raise ClusterError(value, "is no memory", "Give a positive size, or leave it out")
        self._settle("memory_margin", checked_share("memory_margin", self.memory_margin))
        for name in ("network", "node"):
            if getattr(self, name) is not None:
                check_name(name, getattr(self, name), "ib-ndr" if name == "network" else "nvswitch-4")
        joined = math.prod(level.size for level in self.levels)
        if self.levels and joined != self.nodes:
            cause = f"join {joined} nodes where there are {self.nodes}"
            raise ClusterError(f"levels of {levels_text(self.levels)}", cause, "Give sizes whose product is the nodes")
        if self.levels and self.network is not None:
            cause = "stands beside levels, each of which names its own network"
            raise ClusterError(f"network = {self.network!r}", cause, "Leave network out, or give it to a level")
        self._learn()
        self.topology()

    def _settle(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # as a frozen dataclass's own __init__ does

    def _learn(self) -> None:
        """Reads what isn't known yet of what is named."""
        fabrics = [name for name in (self.node, self.network) if name is not None]
        fabrics += [level.network for level in self.levels]
        with _as_cluster_error():
            known = self.known.of((group.device for group in self._groups), fabrics)
        self._settle("known", known)

    @property
    def _groups(self) -> tuple[NodeGroup, ...]:
        """The groups; of nodes alike, the one that they are."""
        return self.groups or (NodeGroup(self.nodes, self.devices_per_node, self.device),)

    def _gather(self) -> None:
        """The first three fields of several groups; of one group, its own, and no groups."""
        common = math.gcd(*(group.devices_per_node for group in self.groups))
        gathered = {
            "nodes": sum(group.devices for group in self.groups) // common,
            "devices_per_node": common,
            "device": " + ".join(dict.fromkeys(group.device for group in self.groups)),
        }
        for name, value in gathered.items():
            given = getattr(self, name)
            if given and given != value:
                cause = f"is not what the groups come to, {value!r}"
                raise ClusterError(f"{name} = {given!r}", cause, f"Leave {name} out, or change the groups")
            self._settle(name, value)
        if len(self.groups) == 1:
            self._settle("groups", ())

    @staticmethod
    def parse(text: str) -> ClusterSpec:
        """The cluster of a text such as "4x8 h100-sxm" or "1x4 cpu 2.5GB": what ``str`` of a cluster gives."""
        return _from_data(read_text(text))

    @staticmethod
    def of(spec: ClusterSpec | str | Mapping[str, Any] | os.PathLike[str]) -> ClusterSpec:
        """The cluster of whatever a user gives: one already made, a text, a path to a .toml, or a mapping.

        The .toml and the mapping have the fields' names as keys, with memory_gb for the memory. The .toml may also be
        what ``cost_models.calibrate`` wrote: the cluster that was calibrated.
        """
        if isinstance(spec, ClusterSpec):
            return spec
        if isinstance(spec, Mapping):
            return _from_data(checked(spec, "the cluster"))
        if isinstance(spec, str) and (is_text(spec) or not spec.endswith(".toml")):
            return ClusterSpec.parse(spec)
        if isinstance(spec, (str, os.PathLike)):
            with _as_cluster_error():
                return _from_data(read_file(Path(spec)))
        raise ClusterError(repr(spec), f"is of type {type(spec).__name__}, not a cluster", FORM)

    @staticmethod
    def kept(data: Mapping[str, Any], known: Known) -> ClusterSpec:
        """The cluster of what ``to_dict`` gave, with the figures that it had then: no file is read."""
        return _from_data(checked(data, "the cluster"), known)

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.nodes * self.devices_per_node

    @property
    def usable_bytes(self) -> int:
        """The memory limit: bytes that a plan may fill of each device; of several kinds, of the smallest."""
        return self.profile()[0].usable_bytes if self.memory_bytes is None else self.memory_bytes

    @property
    def aimed_bytes(self) -> int:
        """What the search aims to fill of each device: the memory limit less the margin."""
        return round(self.usable_bytes * (1 - self.memory_margin))

    @property
    def default_precision(self) -> str:
        """What Training's precision is where none is given: mixed where the device multiplies bfloat16 quicker."""
        peak = self.profile()[0].peak_flops_per_s
        return "bf16-mixed" if peak.get("bfloat16", 0.0) > peak.get("float32", 0.0) else "fp32"

    def with_nodes(self, nodes: int) -> ClusterSpec:
        """The same with more or fewer nodes, of the last group and under the outermost level; as many more as its
        whole members need."""
        if self.groups:
            last, given = self.groups[-1], self.groups[:-1]
            others = sum(group.devices for group in given) // self.devices_per_node
            count = max(1, math.ceil((nodes - others) * self.devices_per_node / last.devices_per_node))
            return replace(
                self, nodes=0, devices_per_node=0, device="", groups=(*given, replace(last, nodes=count)), levels=()
            )
        if not self.levels:
            return replace(self, nodes=nodes)
        inside = math.prod(level.size for level in self.levels[:-1])
        size = math.ceil(nodes / inside)
        return replace(self, nodes=size * inside, levels=(*self.levels[:-1], replace(self.levels[-1], size=size)))

    def with_bandwidth(self, factors: float | Mapping[str, float]) -> ClusterSpec:
        """The same with links so many times as wide, beside what ``bandwidth`` says already."""
        return replace(self, bandwidth=times(self.bandwidth, factors_of(factors)))

    def profile(self) -> tuple[Device, Interconnect]:
        """The device and its links; of several groups what holds for all of them."""
        held = [(group, self.known.device(group.device)) for group in self._groups]
        links = functools.reduce(slower_of, (each.links for _, each in held))
        if self.groups:
            share = min(each.links.share(group.devices_per_node) for group, each in held)
            links = replace(links, nics_per_node=share * self.devices_per_node)
        if self.node is not None:
            links = replace(links, node=self.known.link(self.node))
        if self.network is not None:
            links = replace(links, nic=self.known.link(self.network))
        with _as_cluster_error():
            return slowest_of([each.device for _, each in held]), links

    def topology(self) -> Topology:
        """The devices and their levels, for pricing: node, then what joins nodes."""
        device, links = self.profile()
        with _as_cluster_error():
            levels = links.levels(self.nodes, self.devices_per_node, [self._level(level) for level in self.levels])
        kinds = tuple((self._filled(self.known.device(group.device).device), group.devices) for group in self.groups)
        return Topology(device, widened(levels, links.node, self.bandwidth), kinds, links.relays)

    def _level(self, level: OuterLevel) -> Level:
        """An outer level with the link that one card has there."""
        link = self.known.link(level.network)
        if level.gb_per_s is not None:
            link = link.scaled(level.gb_per_s * 1e9 / link.bandwidth_bytes_per_s)
        return Level(level.name, level.size, link)

    def _filled(self, device: Device) -> Device:
        """A device with the memory that a plan may fill of it."""
        given = self.memory_bytes
        return device if given is None else replace(device, memory_bytes=given, reserved_bytes=0)

    def to_dict(self) -> dict[str, Any]:
        """As data, without ``known``: ``ClusterSpec.of`` takes it back and reads the files, ``kept`` doesn't."""
        data: dict[str, Any] = {"nodes": self.nodes, "devices_per_node": self.devices_per_node, "device": self.device}
        if self.groups:
            data = {"groups": [asdict(group) for group in self.groups]}
        if self.memory_bytes is not None:
            data["memory_gb"] = self.memory_bytes / 1e9
        data |= {name: getattr(self, name) for name in ("network", "node") if getattr(self, name) is not None}
        if self.levels:
            data["levels"] = [{k: v for k, v in asdict(level).items() if v is not None} for level in self.levels]
        if self.memory_margin != MEMORY_MARGIN:
            data["memory_margin"] = self.memory_margin
        return data | ({"bandwidth": dict(self.bandwidth)} if self.bandwidth else {})

    def __str__(self) -> str:
        options = {"network": self.network, "node": self.node, "levels": levels_text(self.levels)}
        options["bandwidth"] = factors_text(self.bandwidth)
        options["memory_margin"] = None if self.memory_margin == MEMORY_MARGIN else repr(self.memory_margin)
        told = "".join(option_text(name, value) for name, value in options.items())
        return f"{group_text(self._groups)}{memory_text(self.memory_bytes)}{told}"


@contextmanager
def _as_cluster_error() -> Iterator[None]:
    """What is wrong with a profile is wrong with the cluster that names it."""
    try:
        yield
    except ProfileError as error:
        raise ClusterError(error.value, error.cause, error.remedy) from error


def _from_data(data: Mapping[str, Any], known: Known | None = None) -> ClusterSpec:
    """The cluster of a mapping whose keys are known."""
    rest = {key: value for key, value in data.items() if key != "memory_gb"}
    return ClusterSpec(**rest, memory_bytes=_bytes(data.get("memory_gb")), known=known or Known())


def _bytes(gigabytes: Any) -> int | None:
    """Bytes of a size in units of 10^9, or None of None."""
    if gigabytes is None:
        return None
    try:
        return round(float(gigabytes) * 1e9)
    except (TypeError, ValueError, OverflowError):
        raise ClusterError(f"memory_gb = {gigabytes!r}", "is not a size", "Give gigabytes, such as 60") from None
