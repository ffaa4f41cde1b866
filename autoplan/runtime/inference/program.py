"""The program of a plan of Inference() on one rank: the forward alone, with nothing of a training step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import ForwardOnlyError
from autoplan.runtime.agreement.agreement import Agreement, Call
from autoplan.runtime.collectives.mesh_axes import groups_of, mesh_axes
from autoplan.runtime.data.microbatches import Batch
from autoplan.runtime.elastic import launch
from autoplan.runtime.elastic.hang_report import BETWEEN
from autoplan.runtime.inference.forward import Forward
from autoplan.runtime.parallel.sharded_parameter import sharded_parameters
from autoplan.runtime.parallel.stages import build_stages
from autoplan.runtime.parallel.whole_tensors import (
    Storage,
    by_user_names,
    gathered,
    under_all_names,
    unread_values,
    whole_buffers,
)
from autoplan.runtime.spec import ProgramSpec
from autoplan.runtime.weights import loading, starting
from autoplan.runtime.weights.writing import MAX_FILE_BYTES, write_weights

OF_TRAINING = (
    "clip_grad_norm_", "evaluate", "full_grads", "latest_checkpoint", "load_checkpoint", "load_state_dict", "optimizer",
    "save_checkpoint", "set_learning_rate", "skipped", "state_dict", "step", "steps", "updates",
)  # fmt: skip


class InferenceProgram:
    """A plan's forward, on this rank. Every method is called on every rank.

    spec    the plan, ``forward_only``
    module  the imported program.py
    timeout_s  as of ``Program``

    No gradient, no optimizer and no optimizer state are ever allocated. LaunchError where there are more or fewer
    processes than the plan has devices; ForwardOnlyError for what belongs to training.
    """

    def __init__(self, spec: ProgramSpec, module: ModuleType, timeout_s: float = launch.TIMEOUT_S) -> None:
        self.spec, self.module, self.runs = spec, module, 0
        self.world = launch.join(spec.lowered.mesh, timeout_s)
        self.watch, self.device, self.rank = self.world.watch, self.world.device, dist.get_rank()
        mesh, groups = self.world.device_mesh, groups_of(s for move in spec.lowered.moves for s in move.collectives)
        self.axes = mesh_axes(spec.lowered.mesh, mesh, groups)
        self.stages = build_stages(spec, module.STAGES, self.axes, self.device, mesh)
        for parameter in self.stages.parameters.values():
            parameter.requires_grad_(False)
        self.forwards = Forward(spec, module, self.stages.modules, self.axes, self.device, mesh)
        self.agreement = Agreement(self.axes, self.device)
        self.held = sharded_parameters(spec, self.stages.parameters, self.axes)
        self.storage = Storage(spec, mesh, self.device)
        self.unread = unread_values(spec, self.rank)

    def forward(self, batch: Batch) -> Tensor:
        """The model's result for a batch, whole, on every rank, as ``model.eval()`` computes it.

        batch  1 to as many rows as planned: the whole batch on every rank, or on each its own rows, which are then put
               together, as the result's are, in the order of the data axis
        InputsError for another batch; ParallelismError for a number of rows that this model's graph doesn't tell.
        """
        with self._during("the forward", "forward"):
            result = self.forwards.run(batch, step=self.runs)
        self.runs += 1
        return result

    __call__ = forward

    def init_weights(self, seed: int | None = None, *, reset_parameters: bool = False) -> None:
        """As ``Program.init_weights``."""
        with self._during("the weights' initialisation", "init_weights"):
            starting.initialise(self.spec, seed, reset_parameters, self.held, self.stages.buffers, self.unread)

    def load_weights(self, source: str | os.PathLike | Mapping[str, Tensor], strict: bool = False) -> None:
        """As ``Program.load_weights``."""
        with self._during("loading weights", "load_weights"):
            loading.load(
                self.spec, self.held, self.stages.buffers, source, self.unread, strict=strict
            )

    def full_state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers, whole, under the user's names, on the CPU of rank 0; {} on the other ranks."""
        self.agreement.called(Call("full_state_dict", 0))
        values = gathered(self.spec, self.storage, self.held, lambda held: held.values)
        rest = whole_buffers(self.spec, self.stages.buffers) | under_all_names(self.spec, self.unread)
        return by_user_names(values) | rest

    def save_weights(
        self, folder: str | os.PathLike, dtype: torch.dtype | None = None, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """As ``Program.save_weights``."""
        with self._during("saving weights", "save_weights"):
            write_weights(
                self.spec, self.storage, self.held, self.stages.buffers, self.unread, folder, dtype, max_file_bytes
            )

    def close(self) -> None:
        """Ends the process group, if this program started it."""
        self.world.close()

    def __enter__(self) -> InferenceProgram:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not launch.lost_connection(error):  # else what is to be waited for never comes
            self.close()

    def __getattr__(self, name: str) -> object:
        """What ``Program`` has and this one lacks."""
        if name in OF_TRAINING:
            cause = "a plan of Inference() runs the forward alone"
            raise ForwardOnlyError(f"program.{name}", cause, "plan with training=Training(...) to train the model")
        raise AttributeError(name)

    @contextmanager
    def _during(self, phase: str, call: str) -> Iterator[None]:
        """Tells the watch what this rank does; afterwards it is the script's turn. All ranks are asked for the call."""
        self.watch.enter(phase, self.runs)
        try:
            self.agreement.called(Call(call, 0))
            yield
        finally:
            self.watch.enter(BETWEEN, self.runs)
