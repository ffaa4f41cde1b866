"""Profiles by name or path: a device with the links of its usual machine."""

from __future__ import annotations

import os
from pathlib import Path

from cost_models.errors import ProfileError, nearest
from cost_models.figures import Figures
from cost_models.hardware.device import Device, read_device
from cost_models.hardware.interconnect import Interconnect
from cost_models.hardware.link import read_fabric, read_link
from cost_models.hardware.schema import PROFILE, check_keys
from cost_models.hardware.topology import Crossing

PROFILES = Path(__file__).parents[1] / "profiles"


def device_names() -> tuple[str, ...]:
    """The devices whose profiles come with the package."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.toml")))


def load_device(name: str | os.PathLike[str]) -> tuple[Device, Interconnect]:
    """The device of a shipped profile's name ("h100-sxm"), or of a profile's path (ends in .toml), with its links.

    A ``ProfileError`` for a name that isn't known, a file that isn't a profile, a figure that it lacks, or a key that
    nothing reads.
    """
    text = os.fspath(name)
    if text.endswith(".toml"):
        path = Path(text)
    elif text in device_names():
        path = PROFILES / f"{text}.toml"
    else:
        remedy = f"Known are {', '.join(device_names())}; or give a profile's path, ending in .toml"
        raise ProfileError(text, f"is not a known device{nearest(text, device_names())}", remedy)
    figures = Figures.read(path)
    loaded = read_device(path.stem, figures), _interconnect(figures)
    check_keys(figures, PROFILE)
    return loaded


def machine_size(name: str) -> int | None:
    """Devices in the usual machine of a shipped profile's device; None where it doesn't say."""
    figures = Figures.read(PROFILES / f"{name}.toml")
    return figures.whole("machine", "devices_per_node") if figures.has("machine", "devices_per_node") else None


def calibrated_on(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """(nodes, devices per node) that a profile was calibrated on, as [cluster] in it tells; None where it doesn't."""
    figures = Figures.read(Path(path))
    if not figures.has("cluster", "nodes"):
        return None
    return figures.whole("cluster", "nodes"), figures.whole("cluster", "devices_per_node")


def _interconnect(figures: Figures) -> Interconnect:
    """The links under [links], as calibrate writes them, or else the fabrics that [machine] names. A profile that was
    calibrated on one node has no network."""
    if figures.has("links", "node") and not figures.has("links", "nic") and not figures.has("machine"):
        return Interconnect(read_link(figures, "node"), None, nics_per_node=1)
    return Interconnect(
        node=read_link(figures, "node") if figures.has("links", "node") else read_fabric(_fabric(figures, "node")),
        nic=read_link(figures, "nic") if figures.has("links", "nic") else read_fabric(_fabric(figures, "network")),
        nics_per_node=_cards(figures),
        domain=figures.whole("machine", "domain") if figures.has("machine", "domain") else None,
        crossing=_crossing(figures) if figures.has("machine", "through_host") else None,
        relays=not figures.has("machine", "relays") or bool(figures.number("machine", "relays", measures="count")),
    )


def _fabric(figures: Figures, key: str) -> str:
    """A fabric's name, or its path, which is looked for beside the profile."""
    name = figures.text("machine", key)
    return str(figures.path.parent / name) if name.endswith(".toml") else name


def _crossing(figures: Figures) -> Crossing:
    near = figures.whole("machine", "devices_per_switch")
    return Crossing(near, figures.positive("machine", "through_host", measures="count"))


def _cards(figures: Figures) -> int:
    inline = figures.has("links", "nic", "per_node")
    return figures.whole("links", "nic", "per_node") if inline else figures.whole("machine", "cards_per_node")
