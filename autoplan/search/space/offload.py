"""Whether what a user asks to be kept in the host's memory can be kept there."""

from __future__ import annotations

from autoplan.cluster import ClusterSpec
from autoplan.errors import ParallelismError
from autoplan.options import Inference, Parallelism, Training


def check_offload(pinned: Parallelism, cluster: ClusterSpec, training: Training | Inference | None = None) -> None:
    """ParallelismError for an offload without a host, without training, or of parameters that aren't sharded."""
    if pinned.offload in (None, "none"):
        return
    value = f"offload={pinned.offload!r}"
    device = cluster.profile()[0]
    if device.host is None:
        raise ParallelismError(
            value,
            f"the profile of {device.name} has no figures of a host (host.memory, host.link, host.bandwidth; of a "
            "device whose memory is the host's, host.own)",
            "add a table [host] to the profile, or leave offload out",
        )
    if pinned.offload == "activations":
        check_activations(pinned)
    if isinstance(training, Inference):
        raise ParallelismError(
            value, "a forward alone keeps no optimizer state and no activations", "leave it out, or use more devices"
        )
    if pinned.offload == "parameters" and pinned.zero not in (None, 3):
        raise ParallelismError(
            f"{value} with zero={pinned.zero}",
            "parameters go to the host shard by shard, between uses",
            "give zero=3, or offload='optimizer'",
        )


def check_activations(pinned: Parallelism) -> None:
    """ParallelismError where what the host is to keep wouldn't be there, or would be asked for twice."""
    if pinned.recompute in ("full", "selective"):
        raise ParallelismError(
            f"offload='activations' with recompute={pinned.recompute!r}",
            "what the host keeps isn't computed again",
            "give one of the two",
        )
    if pinned.pipeline_schedule == "zero-bubble":
        raise ParallelismError(
            "offload='activations' with pipeline_schedule='zero-bubble'",
            "each of the two passes of a backward would fetch what the host keeps",
            "use pipeline_schedule='interleaved', or '1f1b'",
        )
