"""What is counted and summed over all microbatches and ranks: a loss' denominators before a step, the loss after it."""

from collections.abc import Mapping
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.ir.mesh import MICROBATCH
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.program_spec import DATA, PIPELINE, ProgramSpec


def whole_counts(
    spec: ProgramSpec, module: ModuleType, inputs: Mapping[str, Tensor], axes: Mapping[str, MeshAxis],
    alone: bool | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Denominators over all microbatches and ranks, each repeated for every microbatch: [microbatches]. Where each
    microbatch has its own statistics, over the ranks alone.

    alone  whether each replica has its own, at least one: without a valid token its loss is zero. None: as it steps
    """
    m, local = spec.microbatches, spec.parallelism.steps_locally if alone is None else alone
    parts = {name: x.unbind() for name, x in inputs.items()}
    each = [module.counts(**{name: microbatches[j] for name, microbatches in parts.items()}) for j in range(m)]
    whole = {}
    for name in spec.lowered.counts:
        layout = next(c.value.layout for c in spec.lowered.constants if c.value.name == name)
        partial = [axis for axis, state in layout.rest if state.kind == "P"]
        total = torch.stack([counted[name] for counted in each])
        if not spec.training.apart:
            total = total.sum(0) if MICROBATCH in partial else total[0]
        for axis in (axes[a] for a in partial if a != MICROBATCH and not (a == DATA and local)):
            if axis.group is not None:
                dist.all_reduce(total, group=axis.group)
        total = total.clamp(min=1) if local and not each[0][name].ndim else total
        whole[name] = total if spec.training.apart else total.expand(m, *total.shape)
    return whole


def whole_loss(spec: ProgramSpec, loss: Tensor, axes: Mapping[str, MeshAxis]) -> Tensor:
    """The sum of the ranks' summands, told to every pipeline stage; of local SGD the replicas' mean."""
    for name, state in spec.lowered.loss.layout.rest:
        if state.kind == "P" and name != MICROBATCH and axes[name].group is not None:
            dist.all_reduce(loss, group=axes[name].group)
    if spec.parallelism.steps_locally:
        loss = loss / axes[DATA].size
    pipeline = axes.get(PIPELINE)
    if pipeline is not None and pipeline.group is not None:
        last = spec.pipeline_rank(len(spec.lowered.stages) - 1)
        dist.broadcast(loss, group=pipeline.group, group_src=last)
    return loss
