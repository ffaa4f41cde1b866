"""ZeRO by torch's fully_shard, over the axes along which ranks hold the same of a parameter (``spec.shard_axes``).

Gradients are summed, not averaged. With several replicas (HSDP) each rank's shard of them is summed across replicas
once a step, as soon as the last microbatch's are scattered.

Levels differ in when the whole parameters are gathered and when gradients are reduced:

    1   gathered once a step, gradients reduced once a step
    2   gathered once a step, gradients reduced after each microbatch
    3   gathered for each forward and each backward, gradients reduced after each microbatch; without a pipeline the
        last segment's backward follows its forward, so that what was gathered stays

A parameter is cut by its rows, one of too few rows by another dim (``own_box.cut_dim``): a rank's single expert over
four ranks would else be one's whole, and be gathered with three times its size of padding.

Offloaded parameters lie in the host's memory between uses, by fully_shard's CPUOffloadPolicy, and are updated there.
Under a pipeline gradients are reduced once at every level. Stages wait for one another, so that whatever a stage does
between a message that it reads and the one that it sends adds up over all of them. What a step gathers once is copied
into place before a stage's first input is there; and its gradients are reduced once the last message has left it,
unit by unit, between what the rank still has to do. The chain's first stage, for which nobody waits, gathers under its
first forward and reduces under its last backward. A stage's sums are waited for once the next stage's are sent, the
last ones when the rank's last backward is done.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard

from autoplan.errors import ParallelismError
from autoplan.runtime.parallel.own_box import cut_dim
from autoplan.runtime.program_spec import PIPELINE, ProgramSpec


def shard_stages(
    spec: ProgramSpec, modules: Sequence[nn.Module], made: Mapping[str, nn.Parameter],
    meshes: Mapping[tuple[str, ...], DeviceMesh],
) -> None:  # fmt: skip
    """Applies fully_shard to each segment of each stage and to the stage itself.

    meshes  by the axes that a parameter is sharded over: of one dim; of two, replicas first, where there are several
    """
    counts = [n for n, p in made.items() if sum(any(p is q for q in m.parameters()) for m in modules) > 1]
    if counts:
        raise ParallelismError(
            f"zero={spec.parallelism.zero} with virtual_stages={spec.parallelism.virtual_stages}",
            f"{counts[0]} is tied between two stages of one rank, which ZeRO would hold as two parameters",
            "use zero=0, or one stage on each rank",
        )
    over = {p: spec.shard_axes(stored(spec, n)) for n, p in made.items()}
    cut = {p: cut_dim(tuple(p.shape), spec.shard_ways(axes)) for p, axes in over.items() if axes}
    ignored = {p for p, axes in over.items() if not axes}
    placed = (lambda p: Shard(cut[p])) if len(meshes) == 1 else placement_of(over, cut, meshes)
    for module in modules:
        shard_stage(spec, module, ignored, next(iter(meshes.values())), placed)


def placement_of(
    over: Mapping[nn.Parameter, tuple[str, ...]], cut: Mapping[nn.Parameter, int],
    meshes: Mapping[tuple[str, ...], DeviceMesh],
) -> Callable[[nn.Parameter], Any]:  # fmt: skip
    """fully_shard's placement of each parameter: the dim that is cut, on the mesh of its own axes.

    A segment holds experts, which are split over ep, beside weights that are whole there. fully_shard documents the
    result of ``shard_placement_fn`` that names a mesh, but has it in a private module.
    """
    common = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_common")  # not there before torch 2.13
    infos = {
        axes: common.FSDPMeshInfo(mesh, shard_mesh_dim=0) if mesh.ndim == 1
        else common.HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
        for axes, mesh in meshes.items()
    }  # fmt: skip
    return lambda parameter: common.ShardPlacementResult(Shard(cut[parameter]), infos[over[parameter]])


def stored(spec: ProgramSpec, name: str):
    return next(p for p in spec.lowered.parameters if p.name == name)


def shard_stage(
    spec: ProgramSpec, stage: nn.Module, ignored: set[nn.Parameter], mesh: DeviceMesh,
    placed: Callable[[nn.Parameter], Any],
) -> None:  # fmt: skip
    """One group of parameters for each segment, and one for what is left: the parameters that segments share."""
    units = list(segments_of(next(stage.children())))
    reshard, kept = spec.parallelism.zero == 3, last_segment(spec, stage)
    gathered: list[FSDPModule] = []
    for module in [u for u in units if not shares(u, units)] + [stage]:
        mine = [p for p in module.parameters() if p not in ignored]
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=reshard and module is not stage and module is not kept,
            shard_placement_fn=placed,
            mp_policy=policy(spec),
            offload_policy=offloading(spec, mesh.device_type),
            ignored_params=ignored,
        )
        gathered += [module] if mine and isinstance(module, FSDPModule) else []
    for unit in gathered[:1]:
        # with several microbatches the segment before the first would be the last one of the microbatch before, whose
        # backward is over: torch's own choice gathers it for nothing
        unit.set_modules_to_backward_prefetch([unit])
    for unit in fsdp_modules(stage):
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)


def last_segment(spec: ProgramSpec, stage: nn.Module) -> nn.Module | None:
    """The chain's last segment where its parameters stay gathered for the backward (``cost.zero_costs``): without a
    pipeline, and of a block that stands in the chain once."""
    blocks = [segment.block for segment in spec.lowered.segments]
    if spec.lowered.mesh.size(PIPELINE) > 1 or blocks.count(blocks[-1]) > 1:
        return None
    return list(next(stage.children()).children())[-1]


def segments_of(stage: nn.Module) -> Iterator[nn.Module]:
    """The stage's segments: its children, those in lists one by one."""
    for child in stage.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        elif next(child.parameters(), None) is not None:
            yield child


def shares(unit: nn.Module, units: Sequence[nn.Module]) -> bool:
    """Whether another segment reads one of its parameters; fully_shard would untie them."""
    mine = set(unit.parameters())
    return any(other is not unit and not mine.isdisjoint(other.parameters()) for other in units)


def policy(spec: ProgramSpec) -> MixedPrecisionPolicy:
    """Gathers in the dtype that the program computes in; shards are the masters, and stay as they are stored.

    Gradients are reduced as they are stored, in float32 under mixed precision, or in the dtype that was asked for.
    """
    reduced = spec.reduce_dtype or (torch.float32 if spec.mixed else None)
    return MixedPrecisionPolicy(param_dtype=spec.half, reduce_dtype=reduced, cast_forward_inputs=False)


def offloading(spec: ProgramSpec, device_type: str) -> OffloadPolicy:
    """Where shards lie between uses, and reduced gradients: with the host, whose memory a CPU's already is."""
    offloads = spec.parallelism.offload == "parameters" and device_type != "cpu"
    return CPUOffloadPolicy() if offloads else OffloadPolicy()


def fsdp_modules(module: nn.Module) -> Iterator[FSDPModule]:
    return (m for m in module.modules() if isinstance(m, FSDPModule))


def release(modules: Sequence[nn.Module]) -> None:
    """Lets go of the process groups, as ``mesh_axes.release`` does: fully_shard keeps them in each module's state."""
    for module in modules:
        for unit in fsdp_modules(module):
            for group in getattr(unit._get_fsdp_state(), "_fsdp_param_groups", ()):
                group.mesh_info.shard_process_group = group.mesh_info.replicate_process_group = None


def gather_ahead(stage: nn.Module, *, whole: bool) -> None:
    """Begins to gather what a step gathers once of a stage: ``whole``, or what its first forward reads first, in whose
    hook fully_shard waits for it. Of a stage that isn't sharded, nothing."""
    if isinstance(stage, FSDPModule):
        inner = [m for m in stage.modules() if m is not stage and next(m.parameters(), None) is not None]
        units = [m for m in inner if isinstance(m, FSDPModule)]
        for unit in (stage, *(units if whole else units[:1])):
            unit.unshard(async_op=True)


def gathered(stage: nn.Module) -> None:
    """Copies what was gathered into place."""
    for unit in fsdp_modules(stage):
        unit.unshard()


def before_microbatch(stage: nn.Module, level: int, last: bool, once: bool, waits: bool = True) -> None:
    """Sets what the coming backward does; nothing where the stage isn't sharded.

    once   gradients are reduced after the last microbatch alone, whatever the level
    waits  the last one waits for its sums; else ``finish_backward`` does
    """
    if not isinstance(stage, FSDPModule):
        return
    stage.set_is_last_backward(last and waits)
    stage.set_requires_all_reduce(last)
    if level <= 2:
        stage.set_reshard_after_backward(last)
    if once:
        stage.set_requires_gradient_sync(last)


def reductions(stage: nn.Module) -> list[Callable[[], None]]:
    """What reduces the gradients that a stage's backwards have added up, unit by unit, those of its end first; the
    gathered parameters are let go.

    fully_shard has no public call for it; torch.distributed.pipelining makes these (stage.py, ``perform_reduce_grad``).
    """
    if not isinstance(stage, FSDPModule):
        return []
    before_microbatch(stage, 1, last=True, once=True, waits=False)
    states = reversed(stage._get_fsdp_state()._state_ctx.all_states)
    return [group.post_backward for state in states for group in reversed(state._fsdp_param_groups)]


def finish_backward(stage: nn.Module) -> None:
    """Waits for the sums of a stage's last backward, which other stages' backwards on this rank needn't wait for.

    fully_shard has no public call for it either, but for a backward that is told to be the last.
    """
    if isinstance(stage, FSDPModule):
        stage.set_is_last_backward(True)
        stage._get_fsdp_state()._root_post_backward_final_callback()
