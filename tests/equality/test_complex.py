"""Complex tensors cross the links: every step between states, forward and backward, equals that of their parts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from autoplan.ir.mesh import Mesh
from autoplan.runtime.collectives import typed
from autoplan.runtime.collectives.mesh_axes import MeshAxis, mesh_axes
from autoplan.runtime.ops.spatial.halo import with_halo
from autoplan.verify.local_ranks import RankPool

MESH = Mesh.of(tp=4)
STEPS: dict[str, Callable[[Tensor, MeshAxis], Tensor]] = {
    "all_reduce": typed.all_reduce,
    "all_reduce_to_replicate": typed.all_reduce_to_replicate,
    "all_gather": lambda x, axis: typed.all_gather(x, 1, axis),
    "reduce_scatter": lambda x, axis: typed.reduce_scatter(x, 0, axis),
    "all_to_all": lambda x, axis: typed.all_to_all(x, 0, 1, axis),
    "shard": lambda x, axis: typed.shard(x, 1, axis),
    "halo": lambda x, axis: with_halo(x, 0, 2, 5, 0.0, axis),
}


def both(rank: int, size: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(result, the parts' result, gradient, the parts' gradient) of each step, as pairs of real numbers."""
    axis = mesh_axes(MESH, init_device_mesh("cpu", (size,), mesh_dim_names=MESH.names))["tp"]
    found = []
    for number, step in enumerate(STEPS.values()):
        generator = torch.Generator().manual_seed(10 * number + rank)
        pairs = torch.randn(4, 8, 2, dtype=torch.float64, generator=generator)
        whole = torch.view_as_complex(pairs).clone().requires_grad_()
        parts = pairs.clone().requires_grad_()
        result, apart = torch.view_as_real(step(whole, axis)), step(parts, axis)
        weights = torch.randn(apart.shape, dtype=torch.float64, generator=generator)
        result.backward(weights)
        apart.backward(weights)
        assert whole.grad is not None and parts.grad is not None
        found.append((result.detach(), apart.detach(), torch.view_as_real(whole.grad), parts.grad))
    return found


def test_steps_of_complex_tensors_are_those_of_their_parts(pool: RankPool) -> None:
    for steps in pool.run(both):
        for name, (result, apart, gradient, of_parts) in zip(STEPS, steps, strict=True):
            assert torch.equal(result, apart) and torch.equal(gradient, of_parts), name
