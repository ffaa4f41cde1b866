"""Variables of the environment that are read."""

NVME = "AUTOPLAN_NVME"
"""A folder on a disk of the node, where the optimizer's state lies under offload="nvme"; else the system's folder for
temporary files."""
