"""Forward and backward of all microbatches: a loop on one stage, a schedule's actions on several."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.optim.loss_scaling import Scale, unscaled
from autoplan.runtime.parallel.stages import Keywords, StageModule
from autoplan.runtime.parallel.zero import before_microbatch
from autoplan.runtime.pipeline.order import rank_actions
from autoplan.runtime.pipeline.stage import Message, PipelineStage, Reductions
from autoplan.runtime.pipeline.stage_messages import Edge, Exchange
from autoplan.runtime.program_spec import PIPELINE, ProgramSpec
from cost_models.pipeline.order import Action


class LoopEngine:
    """One stage: the microbatches one after another."""

    def __init__(self, spec: ProgramSpec, stage: StageModule) -> None:
        self.level, self.count, self.stage = spec.parallelism.zero or 0, spec.microbatches, stage

    def resized(self, spec: ProgramSpec) -> LoopEngine:
        """The same at other sizes of the batch."""
        return LoopEngine(spec, self.stage)

    def run(self, keywords: Keywords, scale: Scale = unscaled) -> Tensor:
        """Adds every microbatch's gradients up; returns the sum of their losses.

        keywords  each a value for every microbatch
        scale     applied to each loss whose gradients are computed, not to those that are returned
        """
        losses = []
        for j in range(self.count):
            before_microbatch(self.stage, self.level, last=j == self.count - 1, once=self.level == 1)
            loss = self.stage(batch=keywords, microbatch=j)
            scale(loss).backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum() if self.count > 1 else losses[0]


class PipelineEngine:
    """Several stages, by the schedule that was planned; a collective of the whole world to make.

    axis    the pipeline's
    groups  those of another engine of this rank's; None: they are made
    """

    def __init__(
        self, spec: ProgramSpec, stages: Sequence[StageModule], axis: MeshAxis, device: torch.device,
        groups: dict[Edge, ProcessGroup] | None = None,
    ) -> None:  # fmt: skip
        self.modules, self.axis, self.device = stages, axis, device
        self.actions = rank_actions(spec, axis.rank)
        self.exchange = Exchange(spec, axis, device, groups)
        self.unreduced: Reductions = deque()
        self.stages = {stage.number: PipelineStage(spec, stage, self.unreduced) for stage in stages}
        self.sent: PipelineStage | None = None
        self.no_loss = torch.zeros((), dtype=spec.activation_dtype(spec.lowered.loss.type), device=device)

    def resized(self, spec: ProgramSpec) -> PipelineEngine:
        """The same at other sizes of the batch."""
        return PipelineEngine(spec, self.modules, self.axis, self.device, self.exchange.groups)

    def run(self, keywords: Keywords, scale: Scale = unscaled) -> Tensor:
        """As LoopEngine.run; zero on a rank that doesn't hold the last stage. What breaks it off leaves messages on
        their way, so that no step can follow (``runtime.broken_off``)."""
        for stage in self.stages.values():
            stage.begin(scale)
        ahead = iter(self.stages.values())  # each stage's forwards begin after those of the one before
        next(ahead).prepare()
        for left, (action, following) in enumerate(zip(self.actions, (*self.actions[1:], None), strict=True), start=1):
            begins = action.kind == "F" and not action.microbatch
            self.exchange.post(action)
            if following is not None:
                self.exchange.post(following)
            if begins:
                self.stages[action.stage].ready()
            self.exchange.send(action, self.act(action, self.exchange.receive(action), keywords))
            if begins and (coming := next(ahead, None)) is not None:
                coming.prepare()
            self.reduce(len(self.actions) - left)
        self.exchange.wait()
        for stage in self.stages.values():
            stage.finish()
        self.sent = None
        losses = [loss for stage in self.stages.values() for loss in stage.losses]
        return torch.stack(losses).sum() if losses else self.no_loss.clone()

    def reduce(self, left: int) -> None:
        """A share of the reductions that wait, so that the last are done before the last of ``left`` further actions,
        beside whose compute they run; stages take turns, for compute waits between two of one stage. What a stage's
        last one sends stands until the next stage's is sent: of dozens of stages it would fill the device."""
        for _ in range(-(-sum(len(units) for _, units in self.unreduced) // max(1, left))):
            stage, units = self.unreduced.popleft()
            units.popleft()()
            if units:
                self.unreduced.append((stage, units))
                continue
            if self.sent is not None:
                self.sent.finish()
            self.sent = stage

    def act(self, action: Action, received: Message, keywords: Keywords) -> Message:
        """Runs an action on what it reads; what the next stage, or the one before, is to read."""
        stage, microbatch = self.stages[action.stage], action.microbatch
        if action.kind == "F":
            return stage.forward(microbatch, received, keywords)
        if action.kind == "B":
            return stage.backward(microbatch, received)
        if action.kind == "I":
            return stage.backward_inputs(microbatch, received)
        stage.backward_weights(microbatch)
        return ()

    def close(self) -> None:
        """Lets go of the process groups, as ``mesh_axes.release`` does."""
        self.exchange.close()


def engine_of(
    spec: ProgramSpec, stages: Sequence[StageModule], axes: Mapping[str, MeshAxis], device: torch.device
) -> LoopEngine | PipelineEngine:
    """Of a rank's stages; a collective of the whole world to make where there are several."""
    if spec.size(PIPELINE) == 1 and len(stages) == 1:
        return LoopEngine(spec, stages[0])
    return PipelineEngine(spec, stages, axes[PIPELINE], device)
