"""The cluster of a recipe: a device's profile and the devices of its usual node."""

from __future__ import annotations

from autoplan.cluster import ClusterSpec

NODES = {
    "H100": ("h100-sxm", 8), "NVIDIA H100-SXM5-80GB": ("h100-sxm", 8), "H100-96GB-500W": ("h100-sxm-96gb-500w", 8),
    "NVIDIA H200-SXM5-141GB": ("h200", 8), "B200": ("b200", 8), "NVIDIA Blackwell GPU (B200-SXM-180GB)": ("b200", 8),
    "B300": ("b300", 8), "NVIDIA Blackwell Ultra GPU (B300-SXM-270GB)": ("b300", 8), "GB200": ("gb200", 4),
    "NVIDIA Blackwell GPU (GB200)": ("gb200", 4), "GB300": ("gb300", 4),
    "AMD Instinct MI300X 192GB HBM3": ("mi300x", 8), "AMD Instinct MI325X 256GB HBM3E": ("mi325x", 8),
    "AMD Instinct MI325X 256GB HBM3E DLC": ("mi325x", 8),
}  # fmt: skip


def cluster_text(gpu: str, devices: int) -> str | None:
    """"8x8 h100-sxm"; None for a device that has no profile."""
    if gpu not in NODES:
        return None
    profile, per_node = NODES[gpu]
    each = min(devices, per_node)
    return f"{devices // each}x{each} {profile}"


def cluster_of(gpu: str, devices: int) -> ClusterSpec:
    text = cluster_text(gpu, devices)
    assert text is not None, gpu
    return ClusterSpec.of(text)
