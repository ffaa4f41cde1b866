"""Named systems: each is a set of pinned fields of one search space.

A name may stand for more than one mesh (3d-hybrid leaves the sizes to the search); what it pins is what makes it that
system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoplan.cluster import ClusterSpec
from autoplan.errors import ParallelismError
from autoplan.options import Parallelism
from autoplan.search.candidates import check_product, check_supported
from autoplan.search.offload import check_offload


def data_parallel(zero: int) -> Callable[[ClusterSpec], Parallelism]:
    return lambda cluster: Parallelism(dp=cluster.devices, tp=1, pp=1, zero=zero)


def zero_offload(cluster: ClusterSpec) -> Parallelism:
    """ZeRO-2 with the optimizer's state and update on the host (Ren et al. 2021)."""
    return Parallelism(dp=cluster.devices, tp=1, pp=1, zero=2, offload="optimizer")


def tensor_parallel(sequence: bool | None) -> Callable[[ClusterSpec], Parallelism]:
    """Megatron: each node one tensor-parallel group, data parallel across nodes; with or without sequence parallel."""
    return lambda cluster: Parallelism(tp=cluster.devices_per_node, pp=1, zero=0, sequence_parallel=sequence)


def pipeline(schedule: str) -> Callable[[ClusterSpec], Parallelism]:
    """One stage for each device of a node, data parallel across nodes."""
    return lambda cluster: Parallelism(pp=cluster.devices_per_node, tp=1, zero=0, schedule=schedule)


def hybrid(cluster: ClusterSpec) -> Parallelism:
    """Data, tensor and pipeline axes of at least 2 each where the cluster has eight devices; sizes are searched."""
    devices = cluster.devices
    if devices % 8:
        raise ParallelismError(
            "3d-hybrid", f"three axes of at least 2 need a multiple of 8 devices, and there are {devices}",
            "pin dp, tp and pp yourself, or use more devices",
        )  # fmt: skip
    tp = max(t for t in (2, 4, 8) if (cluster.devices_per_node % t == 0 and devices % (4 * t) == 0) or t == 2)
    return Parallelism(tp=tp, pp=2, dp=devices // tp // 2)


SYSTEMS: Mapping[str, Callable[[ClusterSpec], Parallelism]] = {
    "auto": lambda cluster: Parallelism(),
    "dp": data_parallel(0),
    "ddp": data_parallel(0),
    "zero1": data_parallel(1),
    "zero2": data_parallel(2),
    "zero3": data_parallel(3),
    "fsdp": data_parallel(3),
    "zero-offload": zero_offload,
    "tensor-parallel": tensor_parallel(None),
    "megatron": tensor_parallel(False),
    "megatron-sp": tensor_parallel(True),
    "gpipe": pipeline("gpipe"),
    "1f1b": pipeline("1f1b"),
    "3d-hybrid": hybrid,
}

CLASSICAL = (("plain data parallel", "ddp"), ("ZeRO-3", "zero3"), ("tensor parallel in the node", "tensor-parallel"))
"""The choices that stand beside every plan: how a report names them, and the system."""


def resolve(parallelism: str | Parallelism, cluster: ClusterSpec) -> Parallelism:
    """The pinned fields of what a user gives. ParallelismError, naming what there is, for an unknown system, for sizes
    that don't multiply to the cluster, and for what can't be planned."""
    if isinstance(parallelism, str):
        if parallelism not in SYSTEMS:
            raise ParallelismError(
                f"parallelism={parallelism!r}",
                "no such system",
                f"use one of {', '.join(SYSTEMS)}, or Parallelism(...)",
            )
        parallelism = SYSTEMS[parallelism](cluster)
    if not isinstance(parallelism, Parallelism):
        raise ParallelismError(
            f"parallelism={parallelism!r}", "it is neither a name nor a Parallelism", f"use one of {', '.join(SYSTEMS)}"
        )
    check_supported(parallelism)
    check_offload(parallelism, cluster)
    check_product(cluster.devices, parallelism)
    return parallelism
