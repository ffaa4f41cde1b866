"""A cluster in one line: what a user types, and what a cluster is printed as.

    4x8 h100-sxm
    4x8 h100-sxm 60GB network=ib-ndr
    2x8 h100-sxm + 2x8 a100-sxm-80gb
    4x8 h100-sxm bandwidth=nic:0.5
    4x8 h100-sxm memory_margin=0.03
    64x8 h100-sxm levels=pod:16:ib-ndr,cluster:4:ib-ndr:12.5GB/s
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoplan.cluster.bandwidth import read_factors
from autoplan.cluster.loose import known_device, read_loosely
from autoplan.cluster.parts import NodeGroup, OuterLevel
from autoplan.errors import ClusterError

FORM = (
    'Write nodes x devices and a device\'s name, such as "4x8 h100-sxm", with less memory "4x8 h100-sxm 60GB", '
    'on another network "4x8 h100-sxm network=ib-ndr", or of several kinds "2x8 h100-sxm + 2x8 a100-sxm-80gb"'
)
OPTIONS = ("network", "node", "levels", "bandwidth", "memory_margin")

_GROUP = re.compile(r"\s*(-?\d+)\s*[xX]\s*(-?\d+)\s+(\S(?:.*\S)?)\s*", re.ASCII)
_BEGIN = re.compile(r"\s*-?\d+\s*[xX]\s*-?\d+\s", re.ASCII)
_MEMORY = re.compile(r"\s+(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*GB\s*$", re.ASCII)
_OPTION = re.compile(r'\s+(\w+)=("[^"]*"|\S+)\s*$', re.ASCII)
_LEVEL = re.compile(r"([^:]+):(\d+):([^:]+?)(?::(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*GB/s)?", re.ASCII)


def is_text(text: str) -> bool:
    """Whether this begins as a cluster's text does, rather than being a file's path."""
    return _BEGIN.match(text) is not None


def read_text(text: str) -> dict[str, Any]:
    """What a text says, as ``ClusterSpec``'s fields with memory in gigabytes; a ``ClusterError`` where it is none."""
    if not isinstance(text, str):
        raise ClusterError(repr(text), f"is of type {type(text).__name__}, not a text", FORM)
    data, rest = _options(text)
    groups = [_group(part, text) for part in re.split(r"\s\+\s(?=\s*-?\d+\s*[xX])", rest)]
    if len(groups) > 1:
        return data | {"groups": groups}
    return data | dict(zip(("nodes", "devices_per_node", "device"), groups[0], strict=True))


def _options(text: str) -> tuple[dict[str, Any], str]:
    """The memory and the options at the end of a text, and what stands before them."""
    data: dict[str, Any] = {}
    while True:
        memory, option = _MEMORY.search(text), _OPTION.search(text)
        match = memory or option
        if match is None:
            return data, text
        name, value = ("memory_gb", match[1]) if memory else (match[1], match[2].strip('"'))
        if option and name not in OPTIONS:
            cause = "is not part of a cluster"
            raise ClusterError(f"{name}={value}", cause, f"Use {', '.join(f'{known}=' for known in OPTIONS)}")
        if name in data:
            raise ClusterError(f"{name}={value}", "is said twice", "Say it once")
        data[name] = OPTION_VALUES[name](value) if name in OPTION_VALUES else value
        text = text[: match.start()]


def _group(part: str, whole: str) -> tuple[int, int, str]:
    if unread := re.search(r"\S*=\S*", part):
        cause = "is not part of a cluster"
        raise ClusterError(f"{unread[0]} in {whole!r}", cause, f"Use {', '.join(f'{name}=…' for name in OPTIONS)}")
    match = _GROUP.fullmatch(part)
    if match is None:
        return read_loosely(part, FORM)
    nodes, per_node = int(match[1]), int(match[2])
    return nodes, per_node, known_device(match[3], nodes, per_node)


def _level(text: str) -> tuple[Any, ...]:
    match = _LEVEL.fullmatch(text.strip())
    if match is None:
        remedy = "Write name:size:network, such as pod:16:ib-ndr, with less bandwidth cluster:4:ib-ndr:12.5GB/s"
        raise ClusterError(f"levels={text}", "is no level", remedy)
    level: tuple[Any, ...] = (match[1], int(match[2]), match[3])
    return level if match[4] is None else (*level, float(match[4]))


def _levels(text: str) -> list[tuple[Any, ...]]:
    return [_level(level) for level in text.split(",")]


OPTION_VALUES: Mapping[str, Callable[[str], Any]] = {"levels": _levels, "bandwidth": read_factors}


def group_text(groups: Sequence[NodeGroup]) -> str:
    return " + ".join(f"{group.nodes}x{group.devices_per_node} {group.device}" for group in groups)


def memory_text(memory_bytes: int | None) -> str:
    return "" if memory_bytes is None else f" {memory_bytes / 1e9!r}GB".replace(".0GB", "GB")


def option_text(name: str, value: str | None) -> str:
    if value is None:
        return ""
    return f' {name}="{value}"' if re.search(r"\s", value) else f" {name}={value}"


def levels_text(levels: Sequence[OuterLevel]) -> str | None:
    """As the option levels= takes it; None of none."""
    return ",".join(_level_text(level) for level in levels) or None


def _level_text(level: OuterLevel) -> str:
    wide = "" if level.gb_per_s is None else f":{level.gb_per_s!r}GB/s"
    return f"{level.name}:{level.size}:{level.network}{wide}"
