"""Forward and backward of all microbatches: a loop on one stage, torch.distributed.pipelining on several."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from autoplan.errors import ParallelismError
from autoplan.ir.typed import TypedValue
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.optim.loss_scaling import Scale, unscaled
from autoplan.runtime.parallel.stages import StageModule
from autoplan.runtime.parallel.zero import before_microbatch
from autoplan.runtime.spec import PIPELINE, ProgramSpec


class LoopEngine:
    """One stage: the microbatches one after another."""

    def __init__(self, spec: ProgramSpec, stage: StageModule) -> None:
        self.level, self.count, self.stage = spec.parallelism.zero or 0, spec.microbatches, stage

    def run(self, keywords: Mapping[str, Tensor], scale: Scale = unscaled) -> Tensor:
        """Adds every microbatch's gradients up; returns the sum of their losses.

        keywords  each [microbatches, …]
        scale     applied to each loss whose gradients are computed, not to those that are returned
        """
        losses = []
        for j in range(self.count):
            before_microbatch(self.stage, self.level, last=j == self.count - 1)
            loss = self.stage(batch=keywords, microbatch=j)
            scale(loss).backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum() if self.count > 1 else losses[0]


class PipelineEngine:
    """Several stages, by the schedule that was planned."""

    def __init__(
        self, spec: ProgramSpec, stages: Sequence[StageModule], axis: MeshAxis, device: torch.device
    ) -> None:
        self.count, self.device, self.dtype = spec.microbatches, device, spec.activation_dtype(spec.lowered.loss.type)
        self.last = any(s.number == len(spec.lowered.stages) - 1 for s in stages)
        self.piped = [pipeline_stage(spec, stage, axis, device) for stage in stages]
        self.losses: list[Tensor] = []
        self.scale: Scale = unscaled
        self.schedule = make_schedule(spec, self.piped, self.loss_of)

    def run(self, keywords: Mapping[str, Tensor], scale: Scale = unscaled) -> Tensor:
        """As LoopEngine.run; zero on a rank that doesn't hold the last stage."""
        self.losses, self.scale = [], scale
        # the engine hands the loss function a target for each microbatch; the emitted loss has read its own already
        target = torch.zeros(self.count, device=self.device) if self.last else None
        self.schedule.step(target=target, return_outputs=False, batch=dict(keywords))
        return torch.stack(self.losses).sum() if self.losses else self.no_loss()

    def close(self) -> None:
        """Lets go of the process group, as ``mesh_axes.release`` does."""
        for stage in self.piped:
            stage.group = None

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """What a microbatch's backward begins from: the last stage returns its loss; ``run`` returns their sum."""
        self.losses.append(output.detach())
        return self.scale(output)

    def no_loss(self) -> Tensor:
        return torch.zeros((), dtype=self.dtype, device=self.device)


class SendingStage(PipelineStage):
    """Sends gradients that lie in memory one element after another, as torch's point-to-point operators ask for: a
    split backward returns them as they come, of a convolution with channels last."""

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        found = self.bwd_cache.get(bwd_chunk_id)
        if found is not None:
            self.bwd_cache[bwd_chunk_id] = tuple(g if g is None else g.contiguous() for g in found)
        return list(super().get_bwd_send_ops(bwd_chunk_id))


def pipeline_stage(spec: ProgramSpec, stage: StageModule, axis: MeshAxis, device: torch.device) -> PipelineStage:
    """The stage with the shapes it receives and sends, so that the engine needn't find them by a trial run."""
    lowered = spec.lowered.stages[stage.number]
    return SendingStage(
        stage,
        stage.number,
        len(spec.lowered.stages),
        device,
        input_args=tuple(example(spec, v) for v in lowered.inputs) if stage.number else (),
        output_args=tuple(example(spec, v) for v in lowered.outputs),
        group=axis.group,
    )


def example(spec: ProgramSpec, value: TypedValue) -> Tensor:
    dtype = spec.activation_dtype(value.type)
    return torch.empty(value.local_shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)


def make_schedule(
    spec: ProgramSpec, stages: Sequence[PipelineStage], loss_fn: Callable[[Tensor, Tensor], Tensor]
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    """The planned schedule; gradients of microbatches are summed, for the loss is already divided by whole counts."""
    name, count, ranks = spec.parallelism.pipeline_schedule or "gpipe", spec.microbatches, spec.size(PIPELINE)
    if name in ("gpipe", "1f1b", "pipedream-2bw") and len(stages) == 1:
        # with fewer microbatches than stages 1F1B has no steady state: it is GPipe, and the engine asks for it
        single = Schedule1F1B if name != "gpipe" and count >= ranks else ScheduleGPipe
        return single(stages[0], count, loss_fn=loss_fn, scale_grads=False)
    several = {"interleaved": ScheduleInterleaved1F1B, "zero-bubble": ScheduleInterleavedZeroBubble}
    if name not in several:
        held = f"a rank has {len(stages)} stages, the schedule runs one"
        raise ParallelismError(f"pipeline_schedule={name!r}", held, "use pipeline_schedule='interleaved'")
    return several[name](list(stages), count, loss_fn=loss_fn, scale_grads=False)
