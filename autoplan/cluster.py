"""What a user's cluster is: nodes of devices, and the memory that each device offers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplan.errors import ClusterError
from cost_models.errors import ProfileError
from cost_models.hardware import Device, Interconnect, Topology, load_device

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEYS = ("nodes", "devices_per_node", "device", "memory_gb")
FORM = 'Write nodes x devices and a device\'s name, such as "4x8 h100-sxm", or with less memory "4x8 h100-sxm 60GB"'
_TEXT = re.compile(r"\s*(-?\d+)\s*[xX]\s*(-?\d+)\s+(\S.*?)(?:\s+(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*GB)?\s*", re.ASCII)


@dataclass(frozen=True)
class ClusterSpec:
    """``nodes`` nodes of ``devices_per_node`` devices each.

    device        a shipped profile's name ("h100-sxm", "a100-sxm-80gb", "cpu"), or a profile's path, ending in .toml
    memory_bytes  what a plan may fill of each device; None: what the device's profile says is usable

    A ``ClusterError`` for a device that isn't known, or counts or memory that aren't positive.
    """

    nodes: int
    devices_per_node: int
    device: str
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "devices_per_node"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                cause = "is not a count of at least 1"
                raise ClusterError(f"{name} = {count!r}", cause, "Give a positive whole number")
        if not isinstance(self.device, str):
            raise ClusterError(f"device = {self.device!r}", "is not a name", 'Give a name such as "h100-sxm"')
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            value = f"memory = {self.memory_bytes} bytes"
            raise ClusterError(value, "is no memory", "Give a positive size, or leave it out")
        self.profile()

    @staticmethod
    def parse(text: str) -> ClusterSpec:
        """The cluster of a text such as "4x8 h100-sxm" or "1x4 cpu 2.5GB": what ``str`` of a cluster gives."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ClusterError(repr(text), "is not a cluster", FORM)
        nodes, devices, device, gigabytes = match.groups()
        return ClusterSpec(int(nodes), int(devices), device, _bytes(gigabytes))

    @staticmethod
    def of(spec: ClusterSpec | str | Mapping[str, Any] | os.PathLike[str]) -> ClusterSpec:
        """The cluster of whatever a user gives: one already made, a text, a path to a .toml, or a mapping.

        The .toml and the mapping have the keys nodes, devices_per_node, device and, if wanted, memory_gb.
        """
        if isinstance(spec, ClusterSpec):
            return spec
        if isinstance(spec, Mapping):
            return _from_mapping(spec, "the cluster")
        if isinstance(spec, str) and (_TEXT.fullmatch(spec) or not spec.endswith(".toml")):
            return ClusterSpec.parse(spec)
        if isinstance(spec, (str, os.PathLike)):
            return _from_file(Path(spec))
        raise ClusterError(repr(spec), f"is a {type(spec).__name__}, not a cluster", FORM)

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.nodes * self.devices_per_node

    @property
    def usable_bytes(self) -> int:
        """The wall: bytes that a plan may fill of each device."""
        return self.profile()[0].usable_bytes if self.memory_bytes is None else self.memory_bytes

    @property
    def default_precision(self) -> str:
        """What Training's precision is where none is given: mixed where the device multiplies bfloat16 quicker."""
        peak = self.profile()[0].peak_flops_per_s
        return "bf16-mixed" if peak.get("bfloat16", 0.0) > peak.get("float32", 0.0) else "fp32"

    def profile(self) -> tuple[Device, Interconnect]:
        """The device and its links."""
        try:
            return load_device(self.device)
        except ProfileError as error:
            raise ClusterError(error.value, error.cause, error.remedy) from error

    def topology(self) -> Topology:
        """The devices and their levels, for pricing: node, then cluster."""
        device, links = self.profile()
        return Topology(device, links.levels(self.nodes, self.devices_per_node))

    def to_dict(self) -> dict[str, Any]:
        """As data; ``ClusterSpec.of`` takes it back."""
        data: dict[str, Any] = {"nodes": self.nodes, "devices_per_node": self.devices_per_node, "device": self.device}
        if self.memory_bytes is not None:
            data["memory_gb"] = self.memory_bytes / 1e9
        return data

    def __str__(self) -> str:
        memory = "" if self.memory_bytes is None else f" {self.memory_bytes / 1e9!r}GB".replace(".0GB", "GB")
        return f"{self.nodes}x{self.devices_per_node} {self.device}{memory}"


def _bytes(gigabytes: Any) -> int | None:
    """Bytes of a size in units of 10^9, or None of None."""
    if gigabytes is None:
        return None
    try:
        return round(float(gigabytes) * 1e9)
    except (TypeError, ValueError, OverflowError):
        raise ClusterError(f"memory_gb = {gigabytes!r}", "is not a size", "Give gigabytes, such as 60") from None


def _from_file(path: Path) -> ClusterSpec:
    """The cluster of a .toml; a device given there as a path is looked for beside the file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterError(path, f"can't be read ({error.strerror})", "Give the path of a cluster's .toml") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ClusterError(path, f"is not TOML: {error}", "Mend the file there") from error
    device = data.get("device")
    if isinstance(device, str) and device.endswith(".toml"):
        data["device"] = str(path.parent / device)
    return _from_mapping(data, str(path))


def _from_mapping(data: Mapping[str, Any], where: str) -> ClusterSpec:
    lacking = [key for key in KEYS[:3] if key not in data]
    if lacking:
        remedy = f"Give {', '.join(KEYS[:3])} and, if wanted, memory_gb"
        raise ClusterError(where, f"lacks {', '.join(lacking)}", remedy)
    unknown = [str(key) for key in data if key not in KEYS]
    if unknown:
        cause = f"has {', '.join(unknown)}, which says nothing of a cluster"
        raise ClusterError(where, cause, f"Use {', '.join(KEYS)}")
    return ClusterSpec(data["nodes"], data["devices_per_node"], data["device"], _bytes(data.get("memory_gb")))
