"""Elastic training: a plan for as many processes as torchrun started, found from the plan's own record.

    python -m autoplan.elastic FOLDER RANKS PER_NODE TARGET BATCH

is what ``runtime.elastic.world_size`` starts. The plan is for the same model and training. A checkpoint of one plan is
read by another. BATCH is "keep": the rows of a step are the same, and so is what is drawn; or "scale": each rank has as
many rows as before (``runtime.elastic.scaled_batch``).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from autoplan.cluster import ClusterSpec
from autoplan.errors import AutoplanError, DoesNotFitError, LaunchError, ParallelismError
from autoplan.lower.resized import planned_sizes
from autoplan.options import Parallelism
from autoplan.plan import Plan, load
from autoplan.runtime.elastic.scaled_batch import KEEP, SCALE, scaled_rows
from autoplan.runtime.elastic.world_size import PLAN, TOLD

SIZES = (
    "dp", "tp", "pp", "cp", "ep", "etp", "tensor", "dp_replicate", "virtual_stages", "micro_batch",
    "compression_within", "all_reduce",
)  # fmt: skip


def replanned(plan: Plan, ranks: int, per_node: int, batch: str = KEEP) -> tuple[Plan, str]:
    """The same model and training for so many processes, and what is other than in the plan; "" for nothing.

    LaunchError where a batch that is scaled would have no whole number of rows.
    """
    cluster, refused = resized(plan.record.cluster, ranks, per_node), None
    planned, rows, other = planned_sizes(plan.record.model).rows, None, []
    if batch == SCALE:
        rows = scaled_rows(planned, plan.record.chosen.mesh.devices, ranks)
        other = [f"{rows} rows a step in place of {planned}"]
    for request, said in requests(plan.record.asked.request):
        try:
            found = plan.what_if(cluster_spec=cluster, batch=rows, parallelism=request)
            return found, "; ".join([*other, *[said] * bool(said)])
        except (ParallelismError, DoesNotFitError) as error:
            refused = error  # the last asks for the least
    assert refused is not None
    raise refused


def requests(asked: str | Parallelism) -> Iterator[tuple[str | Parallelism, str]]:
    """What is asked for, one after another: the same; without sizes; without all that changes nothing of a step."""
    yield asked, ""
    if isinstance(asked, Parallelism):
        pinned = asked.pinned()
        sizes = [name for name in SIZES if name in pinned]
        if sizes:
            yield replace(asked, **dict.fromkeys(sizes)), f"{', '.join(sizes)} found anew"
        if asked.asynchronous:
            return
        if len(pinned) > len(sizes):
            yield Parallelism(), f"{', '.join(pinned)} found anew"


def resized(cluster: ClusterSpec, ranks: int, per_node: int) -> ClusterSpec:
    """The cluster with so many devices, of nodes as torchrun has them: each agent with its ``per_node`` is one.

    LaunchError where nodes differ, so that nobody knows which are left, and where agents have unlike numbers.
    """
    if cluster.groups:
        cause = "the cluster has nodes of several kinds, and which of them are there isn't known"
        raise LaunchError(f"{ranks} processes for {cluster}", cause, "plan for the nodes that are left, and start that")
    if ranks % per_node:
        cause = f"they are no whole number of nodes of {per_node}"
        raise LaunchError(f"{ranks} processes", cause, "start as many on each node")
    nodes = ranks // per_node
    if per_node == cluster.devices_per_node and cluster.with_nodes(nodes).devices == ranks:
        return cluster.with_nodes(nodes)
    network = cluster.levels[-1].network if cluster.levels else cluster.network
    return replace(cluster, nodes=nodes, devices_per_node=per_node, levels=(), network=network)


def main(arguments: Sequence[str]) -> int:
    folder, target, batch = Path(arguments[0]), Path(arguments[3]), arguments[4]
    ranks, per_node = int(arguments[1]), int(arguments[2])
    try:
        plan, other = replanned(load(folder), ranks, per_node, batch)
        target.parent.mkdir(exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".tmp", dir=target.parent))
        try:
            plan.export(own / "out").rename(target)
        except OSError:
            if not (target / PLAN).exists():  # else another node, which shares the folder, was first
                raise
        finally:
            shutil.rmtree(own, ignore_errors=True)
    except AutoplanError as error:
        sys.stderr.write(f"{error}\n")
        return TOLD
    except OSError as error:
        sys.stderr.write(f"{target.parent} can't be written: {error.strerror or error}\n")
        return TOLD
    also = f" ({other})" if other else ""
    sys.stderr.write(f"planned for {ranks} processes: {plan}{also}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
