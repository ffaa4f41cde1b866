"""What there is to run on: a device's figures, the links between devices, and the levels they form."""

from cost_models.hardware.device import Device
from cost_models.hardware.link import Link, LinkPath, Switch
from cost_models.hardware.profile import PROFILES, device_names, load_device
from cost_models.hardware.topology import Interconnect, Level, Topology

__all__ = [
    "PROFILES", "Device", "Interconnect", "Level", "Link", "LinkPath", "Switch", "Topology", "device_names",
    "load_device",
]  # fmt: skip
