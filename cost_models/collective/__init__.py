"""What collectives cost: their time over a group's links by size, where axes share links, and beside compute.

Modules, each importing only those before it:

    spans    the levels of links that a group spans
    seconds  a collective's time over them
    overlap  collectives beside compute: what stays exposed, and what they cost the compute
"""

from cost_models.collective.overlap import Overlap, hidden_seconds, overlapped
from cost_models.collective.seconds import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    reduce_scatter_seconds,
    send_seconds,
)
from cost_models.collective.spans import group_size

COLLECTIVES = {
    "all-reduce": all_reduce_seconds,
    "all-gather": all_gather_seconds,
    "reduce-scatter": reduce_scatter_seconds,
    "all-to-all": all_to_all_seconds,
    "broadcast": broadcast_seconds,
}
"""By kind: seconds of (bytes, path)."""

__all__ = [
    "COLLECTIVES", "Overlap", "all_gather_seconds", "all_reduce_seconds", "all_to_all_seconds", "broadcast_seconds",
    "group_size", "hidden_seconds", "overlapped", "reduce_scatter_seconds", "send_seconds",
]  # fmt: skip
