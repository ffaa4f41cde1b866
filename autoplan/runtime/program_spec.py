"""What a program is built from: the typed program and the options that it was planned under."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType

import torch

from autoplan.ir.buckets import server_ranks, shards
from autoplan.ir.graph import Parameter, TensorType
from autoplan.ir.mesh import CONTEXTS, EXPERT, MICROBATCH, replicated, whole_axis, zero_axes
from autoplan.ir.start import InitRecipe, Start
from autoplan.ir.typed_program import Lowered, StoredParameter, parameter_sizes
from autoplan.lower.resized import BatchSizes
from autoplan.options import Parallelism, Training

PIPELINE, DATA = "pp", "dp"
SHARDS_PARAMETERS = 3  # the level of ZeRO from which on parameters are sharded too


@dataclass(frozen=True)
class Form:
    """The program of the forward alone, for one size of the batch.

    module  as program.py is: STAGES and counts()
    """

    lowered: Lowered
    module: ModuleType


@dataclass(frozen=True)
class ProgramSpec:
    """A plan as the runtime needs it; plan.json holds it whole.

    parallelism        every field filled
    transient_buffers  names of the buffers that the user's own state dict leaves out
    init               how the model's parameters and buffers are drawn; None: that isn't known
    start              where training starts from
    values             the folder of the values that the plan comes with; None without any
    unread             parameters and persistent buffers of the user's model that the program never reads
    forms              the forward alone for sizes of a batch; None for a program that was made by hand
    resized            the typed program of a step at other sizes, which program.py runs as it stands; likewise
    on_processors      whether the plan's devices are processors: it runs there, whatever accelerator is beside
    node               devices of a node of the cluster that it was planned for; 0 where that isn't known
    forward_only       whether the plan is one of Inference(): ``training`` then says how values are stored, no more
    """

    lowered: Lowered
    parallelism: Parallelism
    training: Training
    transient_buffers: tuple[str, ...] = ()
    init: InitRecipe | None = None
    unread: tuple[Parameter, ...] = ()
    forms: Callable[[BatchSizes], Form] | None = field(default=None, compare=False)
    resized: Callable[[BatchSizes], Lowered] | None = field(default=None, compare=False)
    forward_only: bool = False
    on_processors: bool = False
    start: Start = field(default_factory=Start)
    values: Path | None = None
    node: int = 0

    @property
    def microbatches(self) -> int:
        return self.lowered.mesh.size(MICROBATCH)

    @property
    def whole_steps(self) -> int:
        """Of a training's first steps those whose gradients aren't compressed yet."""
        how = self.parallelism.compressed
        return how.warm_up(self.training.compression_start) if how else 0

    @property
    def continuous(self) -> bool:
        """See ``Parallelism.continuous``."""
        return self.parallelism.continuous

    def size(self, axis: str) -> int:
        """Members along an axis, 1 where the mesh has no such axis."""
        return self.lowered.mesh.size(axis)

    def pipeline_ranks(self, stored: StoredParameter) -> tuple[int, ...]:
        """Pipeline coordinates of the ranks that hold a parameter, ascending."""
        return tuple(sorted({self.pipeline_rank(stage) for stage in stored.stages}))

    def pipeline_rank(self, stage: int) -> int:
        """The pipeline coordinate that runs a stage; several stages on a rank are dealt out in rounds."""
        return stage % self.size(PIPELINE)

    def shard_axes(self, stored: StoredParameter) -> tuple[str, ...]:
        """The axes over which ZeRO shards this parameter's rows: those along which ranks hold it whole and see other
        rows, of the batch or of the sequence. () where every rank keeps all of them.

        That is so of a scalar, and where dp or cp already splits it or its gradient needs no sum over one; but experts
        are split over axes of theirs. On one rank only it is sharded where it is to go to the host between uses, and
        experts beside dense weights that these axes shard, so that one module's are gathered and updated alike. With
        several replicas of what is sharded the data axis' part is that of one replica. What isn't trained has neither
        gradient nor state to share out: it is sharded where parameters are.
        """
        if not self.parallelism.zero or not stored.type.shape:
            return ()
        if not stored.trainable and self.parallelism.zero < SHARDS_PARAMETERS:
            return ()
        split = self.expert_axes
        shared = [axis for axis in zero_axes(split) if self.size(axis) > 1]
        whole = [axis for axis in shared if self.is_whole(stored, axis)]
        if any(axis not in whole for axis in shared if axis not in split):
            return ()
        data = replicated(self.size(DATA), self.replicas)[1] if self.replicas > 1 else DATA
        found = tuple(axis for axis in (data, *(a for a in whole if a != DATA)) if self.size(axis) > 1)
        alone = self.parallelism.offload == "parameters" or any(axis in split for axis in shared)
        return found or ((data,) if alone else ())

    @cached_property
    def expert_axes(self) -> tuple[str, ...]:
        """Axes of rows over which experts are split (``ir.folding``): parameters lie whole along these otherwise."""
        layouts = [stored.layout for stored in self.lowered.parameters]
        possible = [axis for axis in (EXPERT, *CONTEXTS) if self.size(axis) > 1]
        return tuple(axis for axis in possible if any(layout.state(axis).kind == "S" for layout in layouts))

    @cached_property
    def owners(self) -> Mapping[str, int]:
        """The data rank whose server has each trained parameter, by name; none without servers."""
        servers = self.parallelism.servers
        if not servers:
            return {}
        ranks, sizes = server_ranks(servers, self.size(DATA)), parameter_sizes(self.lowered.parameters)
        return {name: ranks[number] for name, number in shards(sizes, servers).items()}

    @property
    def replicas(self) -> int:
        """Along the data axis, each of which has all shards."""
        return self.parallelism.dp_replicate or 1

    @property
    def across(self) -> tuple[str, ...]:
        """The part of the data axis along which ranks hold the same shards; () where there is one replica."""
        return (replicated(self.size(DATA), self.replicas)[0],) if self.replicas > 1 else ()

    def zero_axes(self, stored: StoredParameter) -> tuple[str, ...]:
        """The mesh's axes over which fully_shard sums a parameter's gradient."""
        over = self.shard_axes(stored)
        return tuple(dict.fromkeys(map(whole_axis, (*self.across, *over)))) if over else ()

    def is_whole(self, stored: StoredParameter, axis: str) -> bool:
        """Whether ranks along an axis hold the same of a parameter, and of its gradient a summand each."""
        return axis in stored.reduce_axes if stored.trainable else stored.layout.state(axis).kind == "I"

    def shard_ways(self, axes: Sequence[str]) -> int:
        """Ranks over which ZeRO shards a parameter over these axes."""
        return math.prod(self.size(axis) for axis in axes)

    def shard_index(self, axes: Sequence[str], coordinates: Mapping[str, int]) -> int:
        """Which of these shares a rank with these coordinates keeps."""
        index, mesh = 0, self.lowered.mesh
        for axis in axes:
            index = index * self.size(axis) + mesh.along(axis, coordinates.get(whole_axis(axis), 0))
        return index

    @property
    def reduce_dtype(self) -> torch.dtype | None:
        """The dtype in which gradients are summed over ranks; None: that in which they are stored."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16}.get(self.training.reduce_dtype or "")

    @property
    def draws_by_rank(self) -> bool:
        """Whether what drops out is drawn by each rank for itself."""
        return self.training.draws_by_rank

    @property
    def mixed(self) -> bool:
        """Whether what is computed in half precision is stored in float32; what is never updated isn't."""
        return self.training.mixed and not self.forward_only

    @property
    def half(self) -> torch.dtype | None:
        """What mixed precision computes in, as the parameters' types have it."""
        found = {p.type.dtype for p in self.lowered.parameters} & {"bfloat16", "float16"} if self.mixed else set()
        assert len(found) <= 1, "a model is traced in one dtype"
        return getattr(torch, found.pop()) if found else None

    def storage_dtype(self, kind: TensorType) -> torch.dtype:
        """The dtype in which the values of a parameter of this type are kept and updated."""
        if (self.forward_only and self.training.mixed) or not kind.floating or kind.dtype.startswith("complex"):
            return getattr(torch, kind.dtype)
        return {"fp64": torch.float64, "bf16": torch.bfloat16}.get(self.training.precision, torch.float32)

    def parameter_dtype(self, stored: StoredParameter) -> torch.dtype:
        """The dtype of what a rank's modules hold of a parameter: the one that they compute in, beside a float32 master
        under mixed precision. What ZeRO shards is its own master: fully_shard casts it as it gathers it. What isn't
        trained needs none."""
        if self.mixed and not (stored.trainable and self.shard_axes(stored)):
            return getattr(torch, stored.type.dtype)
        return self.storage_dtype(stored.type)

    def activation_dtype(self, kind: TensorType) -> torch.dtype:
        """The dtype of a batch input, buffer or activation of this type."""
        own: torch.dtype = getattr(torch, kind.dtype)
        if self.training.precision == "fp64" and kind.floating:
            return torch.complex128 if own.is_complex else torch.float64
        return own
