"""What there is to run on: a device's figures, the links between devices, and the levels they form."""

from cost_models.hardware.device import Device
from cost_models.hardware.link import FABRICS, Link, LinkPath, Protocol, Switch, fabric_names, read_fabric
from cost_models.hardware.profile import PROFILES, device_names, load_device
from cost_models.hardware.topology import Interconnect, Level, Topology

__all__ = [
    "FABRICS", "PROFILES", "Device", "Interconnect", "Level", "Link", "LinkPath", "Protocol", "Switch", "Topology",
    "device_names", "fabric_names", "load_device", "read_fabric",
]  # fmt: skip
