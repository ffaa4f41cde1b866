"""Clusters as people write them: "8xH200", "h200x8", "2x8xl40s". What is clear is taken, what isn't is told.

Nothing is guessed: a name that several devices have in common, or more devices than their usual machine holds, is an
error that lists the texts which may be meant.
"""

import re
from collections.abc import Sequence

from autoplan.arguments.keywords import nearest
from autoplan.errors import ClusterError
from cost_models.hardware import device_names, machine_size

MOST = 4  # texts that are told as near
KINDS = ("cuda", "gpu", "gpus", "nvidia", "amd", "rocm", "hip", "mps", "xpu", "npu", "accelerator")  # no models
USUAL = 8  # devices of a machine whose profile doesn't say how many

_BY = r"\s*[xX*×:]\s*"
_NAME = r"(?:[a-zA-Z~/]|\.\.?/)\S"  # of a device, or a path's
_GRID = re.compile(rf"\s*(\d+){_BY}(\d+)(?:{_BY}|\s*)({_NAME}.*?)\s*")
_COUNT_FIRST = re.compile(rf"\s*(\d+)(?:{_BY}|\s*)({_NAME}.*?)\s*")
_COUNT_LAST = re.compile(rf"\s*({_NAME}*?)(?:{_BY}|\s+)(\d+)\s*")
_COUNTS = re.compile(rf"\s*(\d+){_BY}(\d+)\s*")


def read_loosely(text: str, form: str) -> tuple[int, int, str]:
    """(nodes, devices per node, device) of one kind; a ``ClusterError`` where the text doesn't say them.

    form  what the error tells to write where nothing is near
    """
    if match := _GRID.fullmatch(text):
        nodes, per_node = int(match[1]), int(match[2])
        return nodes, per_node, known_device(match[3], nodes, per_node)
    if match := _COUNTS.fullmatch(text):
        first = f"{match[1]}x{match[2]}"
        cause = "names no device"
        raise ClusterError(repr(text), cause, f'Write "{first} NAME" with one of {", ".join(device_names())}')
    if match := _COUNT_FIRST.fullmatch(text):
        return _counted(text, int(match[1]), match[2])
    if match := _COUNT_LAST.fullmatch(text):
        return _counted(text, int(match[2]), match[1])
    device = _spelled(text.strip())
    near = [device] if device else _near(text.strip()) if re.fullmatch(r"\s*[a-zA-Z]\S*\d\S*\s*", text) else []
    if near and not text.strip().endswith(".toml"):
        texts = [f"1x{_size(each)} {each}" for each in near]
        raise ClusterError(repr(text), "doesn't say how many devices there are", _write(texts))
    raise ClusterError(repr(text), "is not a cluster", form)


def known_device(name: str, nodes: int, per_node: int) -> str:
    """The device as its profile is called; a ``ClusterError`` that lists whole texts where it is none."""
    found = _spelled(name)
    if found is not None:
        return found
    raise _unknown(name, [f"{nodes}x{per_node} {near}" for near in _near(name)])


def _counted(text: str, count: int, name: str) -> tuple[int, int, str]:
    """So many devices in one machine."""
    device = _spelled(name)
    if device is None:
        raise _unknown(name, [_in_machines(count, near) for near in _near(name)])
    if device.endswith(".toml") or count <= _size(device):
        return 1, count, device
    cause = f"doesn't say how many machines: one usually holds {_size(device)} {device}"
    raise ClusterError(repr(text), cause, _write([_in_machines(count, device), f"1x{count} {device}"]))


def _in_machines(count: int, device: str) -> str:
    """So many devices as nodes x devices, in machines that are full where they can be."""
    size = _size(device)
    whole = count > size and count % size == 0
    return f"{count // size}x{size} {device}" if whole else f"1x{count} {device}"


def _unknown(name: str, texts: Sequence[str]) -> ClusterError:
    known = f"Known are {', '.join(device_names())}; or give a profile's path, ending in .toml"
    if name.lower() == "mps":
        said = "is one device a machine without a collective library, and a plan's ranks need several that talk"
        raise ClusterError(name, said, 'Write "1x4 cpu" for processes of its CPU')
    if name.lower() in KINDS:
        said = "says what kind of device it is, and a plan is priced for one of its models"
        raise ClusterError(name, said, f"Write its model, as nvidia-smi -L shows it. {known}")
    near = " or ".join(text.split()[-1] for text in texts)
    cause = f"is not a known device{f'; nearest: {near}' if near else ''}"
    return ClusterError(name, cause, _write(texts) if texts else known)


def _write(texts: Sequence[str]) -> str:
    return "Write " + " or ".join(f'"{text}"' for text in dict.fromkeys(texts))


def _spelled(name: str) -> str | None:
    """The device of this name, whatever its case, with spaces or underscores for hyphens."""
    if name.endswith(".toml"):
        return name
    plain = re.sub(r"[\s_]+", "-", name.lower())
    return plain if plain in device_names() else None


def _near(name: str) -> list[str]:
    """The devices that a name may stand for: whose parts it has, or else spelled like it."""
    parts = [part for part in re.split(r"[\s_-]+", name.lower()) if part]
    shared = [each for each in device_names() if parts and all(_has(each, part) for part in parts)]
    return (shared or nearest(name, device_names()))[:MOST]


def _has(device: str, part: str) -> bool:
    """Whether a name has a part, but for a number after a word: an sxm5 is an sxm, an mi300 an mi300x."""
    return any(own.startswith(part) or own == part.rstrip("0123456789") for own in device.split("-"))


def _size(device: str) -> int:
    return machine_size(device) or USUAL
