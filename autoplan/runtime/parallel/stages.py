"""The pipeline stages of one rank: built from the exported module's classes, sharded by ZeRO, given memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh

from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.parallel.parameters import Made, Parameters, leaf
from autoplan.runtime.parallel.zero import shard_stages, stored
from autoplan.runtime.program_spec import PIPELINE, ProgramSpec

StageEntry = Callable[[Parameters, Mapping[str, MeshAxis]], nn.Module]
Place = tuple[nn.Module, str]
Keywords = Mapping[str, Sequence[Tensor] | Sequence[int]]
"""What stages take by name, each a value for every microbatch."""


class StageModule(nn.Module):
    """One stage as the engines run it.

    ``batch`` holds the stage's keywords, each a value for every microbatch; ``microbatch`` is the one that runs.
    What leaves is contiguous, so that it can be sent, and no view: fully_shard has a hook on it, which views lose.
    """

    def __init__(self, number: int, stage: nn.Module) -> None:
        super().__init__()
        self.number = number
        self.stage = stage

    def forward(
        self, *activations: Tensor, batch: Keywords, microbatch: int = 0
    ) -> Tensor | tuple[Tensor, ...]:
        result = self.stage(*activations, **{name: value[microbatch] for name, value in batch.items()})
        return tuple(map(leaving, result)) if isinstance(result, tuple) else leaving(result)


def leaving(x: Tensor) -> Tensor:
    """A result as it is sent; copied only where it isn't contiguous."""
    x = x.contiguous()
    return x if x._base is None else _Own.apply(x)


class _Own(Function):
    """x over the same memory, as no view of another tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class RankStages:
    """What one rank holds.

    modules     its stages, in the chain's order (under ZeRO each is an FSDP root)
    parameters  by program name; under ZeRO a DTensor over its ``spec.shard_axes``
    buffers     by program name, whole
    """

    def __init__(
        self, modules: Sequence[StageModule], parameters: Mapping[str, nn.Parameter], buffers: Mapping[str, Tensor]
    ) -> None:
        self.modules, self.parameters, self.buffers = tuple(modules), dict(parameters), dict(buffers)


def build_stages(
    spec: ProgramSpec, entries: Sequence[StageEntry], axes: Mapping[str, MeshAxis], device: torch.device,
    device_mesh: DeviceMesh, zero: Mapping[tuple[str, ...], DeviceMesh],
    elsewhere: Callable[..., Tensor] | None = None,
) -> RankStages:  # fmt: skip
    """This rank's stages, on its device, their parameters without values yet.

    zero       the meshes of what ZeRO shards (``meshes.sharded_meshes``)
    elsewhere  as of ``Made``

    Parameters that ZeRO will split are made on the meta device first: no rank ever holds them whole.
    """
    coordinate = axes[PIPELINE].rank if PIPELINE in axes else 0
    made = Made(spec, torch.device("meta") if zero else device, device, elsewhere=elsewhere)
    mine = [n for n in range(len(entries)) if spec.pipeline_rank(n) == coordinate]
    modules = [StageModule(n, entries[n](Parameters(made), axes)) for n in mine]
    places = {name: places_of(p, modules) for name, p in made.parameters.items()}
    if zero:
        names = device_mesh.mesh_dim_names or ()
        over = {
            axes: (device_mesh if axes[0] in names and not spec.across and len(axes) == 1 else mesh)[
                (*spec.across, ",".join(axes))
            ]
            for axes, mesh in zero.items()
        }
        shard_stages(spec, modules, made.parameters, over)
        offloaded = spec.parallelism.offload == "parameters"
        for name, where in places.items():
            kept = stored(spec, name)
            home = torch.device("cpu") if offloaded and spec.shard_axes(kept) else device
            allocate(where, home, spec.storage_dtype(kept.type))
    held = {name: current(where[0]) for name, where in places.items()}
    return RankStages(modules, held, made.buffers)


def places_of(parameter: nn.Parameter, modules: Sequence[nn.Module]) -> tuple[Place, ...]:
    """Every (module, attribute) under which a parameter stands: more than one where it is tied."""
    found = [
        (module, attribute)
        for stage in modules
        for module in stage.modules()
        for attribute, value in module.named_parameters(recurse=False, remove_duplicate=False)
        if value is parameter
    ]
    assert found, "a parameter was asked for but not kept"
    return tuple(found)


def current(place: Place) -> nn.Parameter:
    module, attribute = place
    return getattr(module, attribute)


def allocate(places: Sequence[Place], device: torch.device, gradient: torch.dtype) -> None:
    """Gives memory to a parameter on the meta device, as one object wherever it stands.

    gradient  the dtype of its gradients

    Module.to_empty would make an object for each place and so untie it.
    """
    meta = current(places[0])
    parameter = leaf(torch.empty_like(meta, device=device), meta.requires_grad, gradient)
    for module, attribute in places:
        setattr(module, attribute, parameter)
