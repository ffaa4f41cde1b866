"""What there is to run on: a device's figures, the links between devices, and the levels they form.

Modules, each importing only those before it:

    schema        which keys a profile and a fabric may have
    accuracy      how far published steps were from predicted ones on a device
    host          the host's memory behind a device, and the link there
    device        one device's figures
    mixed         several kinds of device as one
    link          what a device has of a network
    topology      devices on nested levels, and the links that a group spans
    interconnect  the usual links of a device's machine
    profile       profiles by name or path
    catalog       every figure of a profile with its source
"""

from cost_models.hardware.accuracy import UNVALIDATED
from cost_models.hardware.catalog import Sourced, figures_of
from cost_models.hardware.device import Device
from cost_models.hardware.host import Disk, Host
from cost_models.hardware.interconnect import Interconnect, slower_of
from cost_models.hardware.link import FABRICS, Link, LinkPath, Protocol, Switch, fabric_names, read_fabric
from cost_models.hardware.mixed import slowest_of
from cost_models.hardware.profile import PROFILES, calibrated_on, device_names, load_device, machine_size
from cost_models.hardware.topology import Crossing, Level, Topology

__all__ = [
    "FABRICS", "PROFILES", "UNVALIDATED", "Crossing", "Device", "Disk", "Host", "Interconnect", "Level", "Link",
    "LinkPath", "Protocol", "Sourced", "Switch", "Topology", "calibrated_on", "device_names", "fabric_names",
    "figures_of", "load_device", "machine_size", "read_fabric", "slower_of", "slowest_of",
]  # fmt: skip
