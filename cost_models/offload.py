"""Seconds of what lies in the host's memory: copies over the link to it, the optimizer's update there.

ZeRO-Offload (Ren et al. 2021, section 4) sends gradients to the host, updates there and sends parameters back; its cost
is the bytes of each over the link, and of the update over the host's memory.

ZeRO-Infinity (Rajbhandari et al. 2021, section 5.2) keeps the optimizer's state on the node's disks: what is updated
next is read, and what was updated is written, while the host updates; the slower of both sets the pace.
"""

from __future__ import annotations

from cost_models.arithmetic import Number
from cost_models.hardware import Disk, Host


def link_seconds(bytes: Number, host: Host) -> Number:
    """Seconds that bytes take between a device and its host, one way."""
    return bytes / host.link_bytes_per_s


def disk_update_seconds(bytes: Number, disk: Disk) -> Number:
    """Seconds of the disk for an update of as many bytes of state, which it reads before and writes after it."""
    return bytes / disk.read_bytes_per_s + bytes / disk.write_bytes_per_s


def host_update_seconds(bytes: Number, host: Host) -> Number:
    """Seconds of an optimizer's update on the host, of all bytes that it reads and writes there: it does little with
    each, so memory sets the pace."""
    return bytes / host.bandwidth_bytes_per_s
