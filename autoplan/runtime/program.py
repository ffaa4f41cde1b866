"""An exported program on one rank: the interface that train.py and users' scripts are written against."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import ParallelismError
from autoplan.mesh import MICROBATCH
from autoplan.runtime import checkpoint, launch, weights
from autoplan.runtime.axes import rank_axes
from autoplan.runtime.batches import Batch, microbatches
from autoplan.runtime.clip import clip_gradients
from autoplan.runtime.compiled import UNCOMPILED, compile_segments
from autoplan.runtime.engine import LoopEngine, PipelineEngine
from autoplan.runtime.held import held_parameters
from autoplan.runtime.host import take_up
from autoplan.runtime.moving import groups_of
from autoplan.runtime.optimizer import rank_optimizer
from autoplan.runtime.random import step_keys
from autoplan.runtime.reduce import GradientSums
from autoplan.runtime.spec import PIPELINE, ProgramSpec
from autoplan.runtime.stages import build_stages
from autoplan.runtime.state import Storage, by_user_names, gathered, whole_buffers

__all__ = ["Program", "ProgramSpec"]

DROPOUT_KEY = "dropout_key"  # the keyword by which an exported stage takes its microbatch's key


class Program:
    """A plan's program, on this rank. Every method is called on every rank.

    spec    the plan
    module  the imported program.py: STAGES, one callable for each stage, and counts()

    LaunchError where there are more or fewer processes than the plan has devices.
    """

    def __init__(self, spec: ProgramSpec, module: ModuleType) -> None:
        check_supported(spec)
        self.spec, self.module = spec, module
        self.world = launch.join(spec.lowered.mesh)
        self.device, self.rank = self.world.device, dist.get_rank()
        groups = groups_of(step for move in spec.lowered.moves for step in move.collectives)
        self.axes = rank_axes(spec.lowered.mesh, self.world.device_mesh, groups)
        self.stages = build_stages(spec, module.STAGES, self.axes, self.device, self.world.device_mesh)
        if spec.training.compile and self.device.type != UNCOMPILED:
            compile_segments(self.stages.modules)
        self.held = held_parameters(spec, self.stages.parameters, self.axes)
        self.sums = GradientSums(spec, self.held, self.axes)
        self.storage = Storage(spec, self.world.device_mesh, self.device)
        self.optimizer = rank_optimizer(spec.training, self.held, self.device)
        self.optimizer.register_step_post_hook(self._stepped)
        self.steps = 0
        self.engine: LoopEngine | PipelineEngine
        if spec.size(PIPELINE) == 1 and len(self.stages.modules) == 1:
            self.engine = LoopEngine(spec, self.stages.modules[0])
        else:
            self.engine = PipelineEngine(spec, self.stages.modules, self.axes[PIPELINE], self.device)

    def step(self, batch: Batch) -> Tensor:
        """Forward and backward of one optimizer step: all microbatches, all stages, all gradient sums.

        batch  the whole batch, or this rank's rows of it (see runtime.batches), by name or in order
        Returns the loss of the whole batch, the same scalar on every rank. Gradients are afterwards those of this
        batch alone, whatever was left from earlier steps; nothing is updated. InputsError for another batch.
        """
        inputs = microbatches(self.spec, batch, self.axes, self.device)
        self.optimizer.zero_grad()
        keys = step_keys(self.spec.training.seed, self.steps, self.spec.microbatches, self.device)
        keywords = inputs | self._counts(inputs) | {DROPOUT_KEY: keys}
        loss = self.engine.run(keywords)
        self.sums.run()
        return self._whole_loss(loss)

    def _counts(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Denominators over all microbatches and ranks, each repeated for every microbatch: [microbatches]."""
        m = self.spec.microbatches
        each = [self.module.counts(**{name: x[j] for name, x in inputs.items()}) for j in range(m)]
        whole = {}
        for name in self.spec.lowered.counts:
            layout = next(c.value.layout for c in self.spec.lowered.constants if c.value.name == name)
            partial = [axis for axis, state in layout.rest if state.kind == "P"]
            values = torch.stack([counted[name] for counted in each])
            total = values.sum() if MICROBATCH in partial else values[0]
            for axis in (self.axes[a] for a in partial if a != MICROBATCH):
                if axis.group is not None:
                    dist.all_reduce(total, group=axis.group)
            whole[name] = total.expand(m)
        return whole

    def _whole_loss(self, loss: Tensor) -> Tensor:
        """The sum of the ranks' summands, told to every pipeline stage."""
        for name, state in self.spec.lowered.loss.layout.rest:
            if state.kind == "P" and name != MICROBATCH and self.axes[name].group is not None:
                dist.all_reduce(loss, group=self.axes[name].group)
        pipeline = self.axes.get(PIPELINE)
        if pipeline is not None and pipeline.group is not None:
            last = self.spec.pipeline_rank(len(self.spec.lowered.stages) - 1)
            dist.broadcast(loss, group=pipeline.group, group_src=last)
        return loss

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scales all gradients so that their global norm is at most ``max_norm``; returns the norm before.

        With ``training.clip_grad_norm`` the optimizer does so by itself before each step.
        """
        return clip_gradients(self.held, max_norm, self.device)

    def init_weights(self, seed: int = 0) -> None:
        """The parameters and buffers that the user's model has when it is made under ``torch.manual_seed(seed)``.

        WeightsError where the plan doesn't know how they are made.
        """
        weights.initialise(self.spec, seed, self.held, self.stages.buffers)
        take_up(self.held)

    def load_weights(self, source: str | os.PathLike | Mapping[str, Tensor]) -> None:
        """Values from a safetensors file, a directory of them, or a whole state dict, under the user's names.

        Each rank reads its own slices only. WeightsError, before anything is changed, where a parameter is missing
        or has another shape.
        """
        weights.load(self.spec, self.held, self.stages.buffers, source)
        take_up(self.held)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers, whole, under the user's names, on the CPU of rank 0; {} on the other ranks."""
        values = gathered(self.spec, self.storage, self.held, lambda held: held.values)
        return by_user_names(values) | whole_buffers(self.spec, self.stages.buffers)

    def full_grads(self) -> dict[str, Tensor]:
        """Gradients likewise; a parameter without one is left out."""
        return by_user_names(gathered(self.spec, self.storage, self.held, lambda held: held.gradient))

    def save_checkpoint(self, folder: str | os.PathLike) -> None:
        """Parameters, buffers, optimizer state and step count, each rank its part, into a folder that all ranks see.

        The folder appears when it is complete; one that stood there before is replaced then.
        """
        checkpoint.save(self._snapshot(), folder)

    def load_checkpoint(self, folder: str | os.PathLike) -> None:
        """A checkpoint of this plan, or of another plan of the same model; WeightsError where it doesn't fit."""
        self.steps = checkpoint.load(self._snapshot(), folder)
        take_up(self.held)

    def close(self) -> None:
        """Ends the process group, if this program started it."""
        self.world.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _snapshot(self) -> checkpoint.Snapshot:
        return checkpoint.Snapshot(
            self.spec, self.storage, self.held, self.stages.buffers, self.optimizer, self.steps
        )

    def _stepped(self, *_: object) -> None:
        self.steps += 1


def check_supported(spec: ProgramSpec) -> None:
    """ParallelismError for what can be planned but not run yet."""
    if spec.training.precision == "fp16-mixed":
        raise ParallelismError(
            "precision='fp16-mixed'", "the runtime scales no losses, which float16 needs", "use 'bf16-mixed'"
        )
