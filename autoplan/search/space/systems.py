"""Named systems: each is a set of pinned fields of one search space.

A name may stand for more than one mesh (3d-hybrid leaves the sizes to the search); what it pins is what makes it that
system.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from autoplan.cluster import ClusterSpec
from autoplan.errors import ParallelismError
from autoplan.option_values import HIERARCHICAL, TREE, UNBOUNDED
from autoplan.options import Parallelism
from autoplan.search.space.axis_systems import CONTEXT_SYSTEMS
from autoplan.search.space.one_line import read_text
from autoplan.search.space.pinned_checks import (
    check_offload,
    check_product,
    check_servers,
    check_sums,
    check_supported,
)
from autoplan.search.space.row_systems import ROW_SYSTEMS
from autoplan.search.space.tensor_axes import SYSTEMS as TENSOR_LAYOUTS
from autoplan.search.space.tensor_axes import system_factors


def data_parallel(zero: int) -> Callable[[ClusterSpec], Parallelism]:
    return lambda cluster: Parallelism(dp=cluster.devices, tp=1, pp=1, zero=zero, dp_replicate=1)


def summed_by(all_reduce: str) -> Callable[[ClusterSpec], Parallelism]:
    """Plain data parallel, gradients summed in this way whatever their size."""
    return lambda cluster: replace(data_parallel(0)(cluster), all_reduce=all_reduce)


def zero_offload(cluster: ClusterSpec) -> Parallelism:
    """ZeRO-2 with the optimizer's state and update on the host (Ren et al. 2021)."""
    return Parallelism(dp=cluster.devices, tp=1, pp=1, zero=2, offload="optimizer", dp_replicate=1)


def zero_infinity(cluster: ClusterSpec) -> Parallelism:
    """ZeRO-2 with the optimizer's state on the nodes' disks (Rajbhandari et al. 2021)."""
    return Parallelism(dp=cluster.devices, tp=1, pp=1, zero=2, offload="nvme", dp_replicate=1)


def tensor_parallel(sequence: bool | None) -> Callable[[ClusterSpec], Parallelism]:
    """Megatron: each node one tensor-parallel group, data parallel across nodes; with or without sequence parallel."""
    return lambda cluster: Parallelism(tp=cluster.devices_per_node, pp=1, zero=0, sequence_parallel=sequence)


def pipeline(schedule: str) -> Callable[[ClusterSpec], Parallelism]:
    """One stage for each device of a node, data parallel across nodes."""
    return lambda cluster: Parallelism(pp=cluster.devices_per_node, tp=1, zero=0, pipeline_schedule=schedule)


def local_sgd(cluster: ClusterSpec) -> Parallelism:
    """A replica on each device, averaged every few steps (Lin et al. 2020 take 2 to 16)."""
    return Parallelism(dp=cluster.devices, tp=1, pp=1, zero=0, local_steps=LOCAL_STEPS)


def diloco(cluster: ClusterSpec) -> Parallelism:
    """A replica on each device, as local SGD, with an outer update every so many steps (Douillard et al. 2023)."""
    return replace(local_sgd(cluster), local_steps=OUTER_STEPS, outer_optimizer="nesterov")


def gossip(cluster: ClusterSpec) -> Parallelism:
    """A replica on each device, in each step averaged with one other (Lian et al. 2017; Ying et al. 2021)."""
    return Parallelism(dp=cluster.devices, tp=1, pp=1, zero=0, gossip="exponential")


def compressed(kind: str) -> Callable[[ClusterSpec], Parallelism]:
    """Plain data parallel, gradients compressed (``runtime.parallel.compression``)."""
    return lambda cluster: Parallelism(dp=cluster.devices, tp=1, pp=1, zero=0, compression=kind)


def compressed_between_nodes(kind: str, name: str) -> Callable[[ClusterSpec], Parallelism]:
    """The same with gradients summed whole in each node, and compressed between nodes alone.

    name  of the system that compresses between all ranks
    """

    def pinned(cluster: ClusterSpec) -> Parallelism:
        if cluster.nodes == 1:
            cause = "gradients go compressed between nodes, and there is one"
            raise ParallelismError(f"hierarchical-{name}", cause, f"use {name}, or more nodes")
        within = cluster.devices_per_node if cluster.devices_per_node > 1 else None
        return replace(compressed(kind)(cluster), compression_within=within)

    return pinned


def backup_workers(cluster: ClusterSpec) -> Parallelism:
    """Servers that take the first gradients of all but a twentieth of the workers (Chen et al. 2016), or but one."""
    return replace(parameter_server()(cluster), backups=max(1, cluster.devices // WORKERS_A_BACKUP))


def arriving(ahead: int | str) -> Callable[[ClusterSpec], Parallelism]:
    """Servers that apply gradients as they arrive (Dean et al. 2012), of workers at most so many steps apart (Ho et al.
    2013)."""
    return lambda cluster: replace(parameter_server()(cluster), ahead=ahead)


def parameter_server(staleness: int | None = None, *, central: bool = False) -> Callable[[ClusterSpec], Parallelism]:
    """Weights and optimizer state in shards on all workers (Li et al. 2014); central: all of them on one."""

    def pinned(cluster: ClusterSpec) -> Parallelism:
        servers = 1 if central else cluster.devices
        return Parallelism(dp=cluster.devices, tp=1, pp=1, zero=0, servers=servers, staleness=staleness)

    return pinned


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


def over_axes(name: str) -> Callable[[ClusterSpec], Parallelism]:
    """Tensor parallelism over a grid of two or three axes, as large as a node has room for; data parallel beside it."""
    return lambda cluster: on_grid(Parallelism(pp=1, zero=0, tensor_system=name), cluster)


def along_one_axis(name: str) -> Callable[[ClusterSpec], Parallelism]:
    """A system of rows: each node one group, as Megatron's; data parallel across nodes at the cheapest ZeRO level."""
    return lambda cluster: on_one_axis(Parallelism(pp=1, tensor_system=name), cluster)


def on_one_axis(pinned: Parallelism, cluster: ClusterSpec) -> Parallelism:
    """A system of rows with its axis' size filled in; ParallelismError where there are no two devices for it."""
    value, tp = f"tensor_system={pinned.tensor_system!r}", pinned.tp or node_or_cluster(cluster)
    if tp < 2:
        raise ParallelismError(value, "it splits rows over tp, which has one device", "use more, or pin tp")
    beside = pinned.tensor_system in CONTEXT_SYSTEMS.values()  # tensor axes that split weights may lie inside
    if pinned.tensor is not None and len(pinned.tensor) > 1 and not beside:
        cause = f"it lies on one tensor axis, and tensor={pinned.tensor!r} are {len(pinned.tensor)}"
        raise ParallelismError(value, cause, f"pin tp={tp} alone")
    return replace(pinned, tp=tp)


def with_servers(pinned: Parallelism, cluster: ClusterSpec) -> Parallelism:
    """Parameter servers with all devices along the data axis, as they are there alone; ParallelismError for what they
    can't go with."""
    check_servers(pinned, cluster.devices)
    return replace(pinned, dp=pinned.dp or cluster.devices, tp=1, pp=1, cp=None, ep=None, zero=0, dp_replicate=1)


def with_sums(pinned: Parallelism, cluster: ClusterSpec) -> Parallelism:
    """Gradients summed whole, as a pinned all-reduce has them; ParallelismError for what it can't go with."""
    check_sums(pinned, cluster)
    return replace(pinned, zero=0)


def node_or_cluster(cluster: ClusterSpec) -> int:
    """Devices of a node; of the cluster where a node has one."""
    return cluster.devices_per_node if cluster.devices_per_node > 1 else cluster.devices


def on_grid(pinned: Parallelism, cluster: ClusterSpec) -> Parallelism:
    """The grid of a tensor system with its factors filled in; ParallelismError where there is none of that size."""
    name = str(pinned.tensor_system)
    devices = pinned.tp or node_or_cluster(cluster)
    factors = pinned.tensor or system_factors(name, devices)
    wanted = {"2d": "q x q", "2.5d": "d x q x q", "3d": "l x l x l"}[name]
    if len(factors) != len(TENSOR_LAYOUTS[name].axes) or (pinned.tp or math.prod(factors)) != math.prod(factors):
        raise ParallelismError(
            f"tensor_system={name!r}", f"{devices} devices make no grid of {wanted} with every side at least 2",
            "use more devices in a node, or pin tp and tensor",
        )  # fmt: skip
    return replace(pinned, tp=math.prod(factors), tensor=factors)


STEPS_AHEAD = 3  # of a worker of "bounded-server"

SYSTEMS: Mapping[str, Callable[[ClusterSpec], Parallelism]] = {
    "auto": lambda cluster: Parallelism(),
    "dp": data_parallel(0),
    "ddp": data_parallel(0),
    "zero1": data_parallel(1),
    "zero2": data_parallel(2),
    "zero3": data_parallel(3),
    "fsdp": data_parallel(3),
    "zero-offload": zero_offload,
    "zero-infinity": zero_infinity,
    "tree-all-reduce": summed_by(TREE),
    "hierarchical-all-reduce": summed_by(HIERARCHICAL),
    "parameter-server": parameter_server(),
    "central-server": parameter_server(central=True),
    "tensor-parallel": tensor_parallel(None),
    "megatron": tensor_parallel(False),
    "megatron-sp": tensor_parallel(True),
    "2d": over_axes("2d"),
    "2.5d": over_axes("2.5d"),
    "3d": over_axes("3d"),
    **{name: along_one_axis(name) for name in ROW_SYSTEMS},
    "gpipe": pipeline("gpipe"),
    "1f1b": pipeline("1f1b"),
    "interleaved": pipeline("interleaved"),
    "zero-bubble": pipeline("zero-bubble"),
    "3d-hybrid": hybrid,
    "local-sgd": local_sgd,
    "diloco": diloco,
    "pipedream": pipeline("pipedream"),
    "pipedream-vertical-sync": pipeline("pipedream-vertical-sync"),
    "pipedream-2bw": pipeline("pipedream-2bw"),
    "gossip": gossip,
    "powersgd": compressed("powersgd"),
    "int8": compressed("int8"),
    "fp8": compressed("fp8"),
    "topk": compressed("topk"),
    "1bit-adam": compressed("1bit"),
    "1bit-lamb": compressed("1bit-lamb"),
    "hierarchical-powersgd": compressed_between_nodes("powersgd", "powersgd"),
    "hierarchical-int8": compressed_between_nodes("int8", "int8"),
    "hierarchical-fp8": compressed_between_nodes("fp8", "fp8"),
    "hierarchical-topk": compressed_between_nodes("topk", "topk"),
    "hierarchical-1bit-adam": compressed_between_nodes("1bit", "1bit-adam"),
    "stale-server": parameter_server(staleness=1),
    "backup-workers": backup_workers,
    "async-server": arriving(UNBOUNDED),
    "bounded-server": arriving(STEPS_AHEAD),
}

LOCAL_STEPS = 4  # of a replica between two averages, where it isn't pinned
OUTER_STEPS = 50  # likewise, of DiLoCo, whose authors take 50 to 2,000
WORKERS_A_BACKUP = 20  # of 100 workers four to six are best, by their figure 6
ASYNCHRONOUS = (
    "local-sgd", "diloco", "pipedream", "pipedream-vertical-sync", "pipedream-2bw", "gossip", "powersgd", "int8",
    "fp8", "topk", "1bit-adam", "1bit-lamb", "hierarchical-powersgd", "hierarchical-int8", "hierarchical-fp8",
    "hierarchical-topk", "hierarchical-1bit-adam", "stale-server", "backup-workers",
    "async-server", "bounded-server",
)  # fmt: skip
"""Systems whose steps aren't one device's: planned where they are asked for, no alternatives to a synchronous plan."""

CLASSICAL = (("plain data parallel", "ddp"), ("ZeRO-3", "zero3"), ("tensor parallel in the node", "tensor-parallel"))
"""The choices that stand beside every plan: how a report names them, and the system."""


def read(text: str, what: str = "parallelism") -> str | Parallelism:
    """A named system's name, or the Parallelism of "dp=2 tp=2": whatever ``search.space.one_line`` reads."""
    return read_text(text, SYSTEMS, what)


def resolve(parallelism: str | Parallelism, cluster: ClusterSpec) -> Parallelism:
    """The pinned fields of what a user gives. ParallelismError, naming what there is, for an unknown system, for sizes
    that don't multiply to the cluster, and for what can't be planned."""
    if isinstance(parallelism, str):
        parallelism = read(parallelism)
    if isinstance(parallelism, str):
        parallelism = SYSTEMS[parallelism](cluster)
    if not isinstance(parallelism, Parallelism):
        raise ParallelismError(
            f"parallelism={parallelism!r}", "it is neither a name nor a Parallelism",
            f"give autoplan.Parallelism(dp=…), a text such as 'dp=2 tp=2', or one of {', '.join(SYSTEMS)}",
        )  # fmt: skip
    if parallelism.tensor is not None:
        parallelism = replace(parallelism, tp=math.prod(parallelism.tensor))
    if parallelism.tensor_system is not None:
        fill = on_one_axis if parallelism.tensor_system in ROW_SYSTEMS else on_grid
        parallelism = fill(parallelism, cluster)
    if parallelism.servers is not None:
        parallelism = with_servers(parallelism, cluster)
    if parallelism.all_reduce is not None:
        parallelism = with_sums(parallelism, cluster)
    check_supported(parallelism)
    check_offload(parallelism, cluster)
    check_product(cluster.devices, parallelism)
    return parallelism
