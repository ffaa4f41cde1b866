"""What is counted and summed over all microbatches and ranks: a loss' denominators before a step, the loss after it."""

from collections.abc import Mapping, Sequence
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.typed_program import Lowered
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.program_spec import DATA, PIPELINE, ProgramSpec


def whole_counts(
    spec: ProgramSpec, module: ModuleType, inputs: Mapping[str, Sequence[Tensor]], axes: Mapping[str, MeshAxis],
    alone: bool | None = None,
) -> dict[str, tuple[Tensor, ...]]:  # fmt: skip
    """Denominators over all microbatches and ranks, each repeated for every microbatch. Where each microbatch has its
    own statistics, over the ranks alone.

    alone  whether each replica has its own, at least one: without a valid token its loss is zero. None: as planned
    """
    m, local = spec.microbatches, spec.parallelism.replica_mean_loss if alone is None else alone
    each = [module.counts(**{name: microbatches[j] for name, microbatches in inputs.items()}) for j in range(m)]
    whole = {}
    for name in spec.lowered.counts:
        layout = next(c.value.layout for c in spec.lowered.constants if c.value.name == name)
        partial = [axis for axis, state in layout.rest if state.kind == "P"]
        counted = [found[name] for found in each]
        groups = [axes[a].group for a in partial if a != MICROBATCH and not (a == DATA and local)]
        groups = [group for group in groups if group is not None]
        if spec.training.microbatch_statistics:
            total = torch.stack(counted)
        elif m > 1 and MICROBATCH in partial:
            total = torch.stack(counted).sum(0)
        else:
            total = counted[0].clone() if groups else counted[0]
        for group in groups:
            dist.all_reduce(total, group=group)
        total = total.clamp(min=1) if local and not each[0][name].ndim else total
        whole[name] = total.unbind() if spec.training.microbatch_statistics else (total,) * m
    return whole


def loss_from_all(lowered: Lowered) -> bool:
    """Whether ``whole_loss`` tells every rank one value that has a summand of each: where any computed what isn't
    finite, all see it. On an axis over which the loss is invariant each rank has one of its own instead."""
    states = {name: state.kind for name, state in lowered.loss.layout.rest}
    own = [a.name for a in lowered.mesh.axes if a.size > 1 and a.name not in (MICROBATCH, PIPELINE)]
    return all(states.get(name) == "P" for name in own)


def whole_loss(spec: ProgramSpec, loss: Tensor, axes: Mapping[str, MeshAxis]) -> Tensor:
    """The sum of the ranks' summands, told to every pipeline stage; of local SGD the replicas' mean, of
    asynchronous servers this worker's own."""
    if spec.parallelism.tolerates_stragglers:
        return loss  # that of the workers who are taken, or this worker's own
    loss = summed_loss(spec, loss, axes)
    if spec.parallelism.steps_locally:
        loss = loss / axes[DATA].size
    pipeline = axes.get(PIPELINE)
    if pipeline is not None and pipeline.group is not None:
        last = spec.pipeline_rank(len(spec.lowered.stages) - 1)
        dist.broadcast(loss, group=pipeline.group, group_src=last)
    return loss


def summed_loss(spec: ProgramSpec, loss: Tensor, axes: Mapping[str, MeshAxis]) -> Tensor:
    """The sum of the summands of one pipeline stage's ranks."""
    for name, state in spec.lowered.loss.layout.rest:
        if state.kind == "P" and name != MICROBATCH and axes[name].group is not None:
            dist.all_reduce(loss, group=axes[name].group)
    return loss
