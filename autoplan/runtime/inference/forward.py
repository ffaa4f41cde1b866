"""The forward alone of a program, for any number of rows and fewer tokens: the whole result on every rank.

Nothing of a training step is touched: no gradient is made or kept, and parameters and buffers are read alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from autoplan.errors import ParallelismError
from autoplan.ir.mesh import MICROBATCH, MICROBATCHES
from autoplan.ir.randomness import KEY, random_operators
from autoplan.lower.resized import BatchSizes, planned_sizes
from autoplan.runtime.broken_off import BrokenOff
from autoplan.runtime.collectives.mesh_axes import MeshAxis, mesh_axes
from autoplan.runtime.data.microbatches import Batch, Microbatches, microbatches
from autoplan.runtime.inference.agreed_batch import gathered, whole_batch
from autoplan.runtime.inference.pipelined_forward import PipelinedForward
from autoplan.runtime.inference.shared_parameters import Loan, lent, loans
from autoplan.runtime.ops.global_random import step_keys
from autoplan.runtime.parallel.loss_denominators import whole_counts
from autoplan.runtime.parallel.stages import Keywords, StageModule
from autoplan.runtime.parallel.zero import fsdp_modules
from autoplan.runtime.program_spec import DATA, PIPELINE, ProgramSpec


@dataclass(frozen=True)
class Loaded:
    """The forward for one size of the batch, ready to run on this rank's stages."""

    spec: ProgramSpec
    module: ModuleType
    axes: Mapping[str, MeshAxis]
    loans: tuple[Loan, ...]


class Forward:
    """The forward of the program whose stages this rank holds; every method is called on every rank.

    spec, module, axes  the program's own
    """

    def __init__(
        self, spec: ProgramSpec, module: ModuleType, stages: Sequence[StageModule], axes: Mapping[str, MeshAxis],
        device: torch.device, device_mesh: DeviceMesh,
    ) -> None:  # fmt: skip
        self.spec, self.module, self.stages, self.axes = spec, module, tuple(stages), axes
        self.device, self.device_mesh = device, device_mesh
        self.loaded: dict[BatchSizes, Loaded] = {}

    def run(self, batch: Batch, broken: BrokenOff, seed: int = 0, step: int = 0) -> Tensor:
        """The whole result of a batch, the same on every rank.

        batch       the whole of it, 1 to as many rows as planned, of as many tokens or fewer; or this rank's rows
                    (``agreed_batch``)
        broken      told where the computation breaks off
        seed, step  what a model that draws numbers in evaluation, too, draws them from
        InputsError for another batch; ParallelismError where that many rows can't be computed. Both on every rank.
        """
        given, sizes = whole_batch(self.spec, batch, self.axes, self.device)
        form = self.form(sizes)
        inputs = microbatches(form.spec, given, form.axes, self.device)
        counts = whole_counts(form.spec, form.module, inputs, form.axes, alone=False)
        count = form.spec.microbatches
        keys = random_keys(form.spec, seed, step, self.device)
        keywords: Keywords = {**inputs, **counts, **keys, MICROBATCHES: (count,) * count}
        pipeline = form.axes.get(PIPELINE, MeshAxis(PIPELINE, 1, 0))
        with torch.no_grad(), broken.computing("a forward"), lent(form.loans):
            try:
                parts = PipelinedForward(form.spec, self.stages, pipeline, self.device).run(keywords)
            finally:
                self.release()
            return whole_result(form, parts, self.device)

    def form(self, sizes: BatchSizes) -> Loaded:
        if sizes not in self.loaded:
            self.loaded[sizes] = self.load(sizes)
        return self.loaded[sizes]

    def load(self, sizes: BatchSizes) -> Loaded:
        """The plan's forward for such a batch; its groups are made where the program has none of them.

        Of a plan of the forward alone, with the planned batch, it is program.py itself.
        """
        if self.spec.forward_only and sizes == planned_sizes(self.spec.lowered):
            return Loaded(self.spec, self.module, self.axes, ())
        if self.spec.forms is None:
            cause = "the program was made by hand, and there is no plan to take its forward from"
            raise ParallelismError(
                "program.evaluate", cause, "use a program that autoplan.load(folder).program() gives"
            )
        form = self.spec.forms(sizes)
        spec = replace(self.spec, lowered=form.lowered)
        lacking = [names for names in form.lowered.groups if ",".join(names) not in self.axes]
        axes = dict(self.axes)
        if lacking:
            axes |= mesh_axes(self.spec.lowered.mesh, self.device_mesh, lacking)
        if form.lowered.mesh.size(DATA) < self.spec.size(DATA):
            axes[DATA] = MeshAxis(DATA, 1, 0)
        found = loans(self.spec, self.module, form.lowered, form.module, axes, self.stages, self.axes)
        return Loaded(spec, form.module, axes, found)

    def release(self) -> None:
        """Parameters that were gathered go: the next step's are others."""
        for stage in self.stages:
            for unit in fsdp_modules(stage):
                unit.reshard()


def whole_result(form: Loaded, parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """The last stage's result, whole, on every rank.

    parts  this rank's of each microbatch; none on a rank that doesn't hold the last stage
    """
    value = form.spec.lowered.loss
    if parts:
        result = over_microbatches(value.layout.dims, [over_ranks(form, part) for part in parts], summed(form))
    else:
        result = torch.empty(value.type.shape, dtype=form.spec.activation_dtype(value.type), device=device)
    pipeline = form.axes.get(PIPELINE)
    if pipeline is not None and pipeline.group is not None:
        last = form.spec.pipeline_rank(len(form.spec.lowered.stages) - 1)
        source = pipeline.places[last] if pipeline.places else last
        result = result.contiguous()
        dist.broadcast(result, group=pipeline.group, group_src=source)
    return result


def summed(form: Loaded) -> bool:
    """Whether the microbatches' results are summands."""
    return any(a == MICROBATCH and s.kind == "P" for a, s in form.spec.lowered.loss.layout.rest)


def over_ranks(form: Loaded, part: Tensor) -> Tensor:
    """One microbatch's result from the ranks' parts: gathered along the dims that are split, summands added up."""
    layout = form.spec.lowered.loss.layout
    for dim, axes in enumerate(layout.dims):
        for axis in reversed([a for a in axes if a != MICROBATCH]):
            part = torch.cat(gathered(part, form.axes[axis]), dim)
    for name, state in layout.rest:
        if state.kind == "P" and name != MICROBATCH and form.axes[name].group is not None:
            part = part.clone()
            dist.all_reduce(part, group=form.axes[name].group)
    return part


def over_microbatches(dims: Sequence[Sequence[str]], results: Sequence[Tensor], add: bool) -> Tensor:
    if add:
        return torch.stack(list(results)).sum(0)
    split = next((dim for dim, axes in enumerate(dims) if MICROBATCH in axes), None)
    return results[0] if split is None else torch.cat(list(results), split)


def random_keys(
    spec: ProgramSpec, seed: int, step: int, device: torch.device, batch: int = 0
) -> Microbatches:
    """``step_keys`` as the stages' keyword, on the host where ranks draw their own; none where nothing drops out and no
    number is drawn."""
    if not any(map(random_operators, spec.lowered.blocks)):
        return {}
    device = torch.device("cpu") if spec.draws_by_rank else device
    return {KEY: step_keys(seed, step, spec.microbatches, device, batch).unbind()}
