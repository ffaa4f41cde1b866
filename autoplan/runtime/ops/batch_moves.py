"""Runs what ``search.space.batch_moves`` put into the graph: gathers the batch's rows, or sums over them."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from autoplan.runtime.collectives import typed
from autoplan.runtime.collectives.mesh_axes import MeshAxis

Moves = Mapping[str, Callable[..., Tensor]]

WITHOUT_DIM: Moves = {
    "I R": typed.to_replicate, "R I": typed.to_invariant, "P I": typed.all_reduce, "P R": typed.all_reduce_to_replicate,
    "R P": typed.replicate_to_partial, "I P": typed.invariant_to_partial,
}  # fmt: skip
JOINED: Moves = {"S R": typed.all_gather, "S I": typed.all_gather_invariant, "S P": typed.shard_to_partial}
PARTED: Moves = {"R S": typed.shard, "I S": typed.shard_invariant, "P S": typed.reduce_scatter}


def batch_move(x: Tensor, before: str, after: str, *, axes: Sequence[MeshAxis] = ()) -> Tensor:
    """x on these axes, outermost first, from state ``before`` to state ``after``: "S(0)", "R", "I" or "P"."""
    kinds, dims = f"{before[0]} {after[0]}", [int(state[2:-1]) for state in (before, after) if state[0] == "S"]
    if kinds == "S S":
        return typed.all_to_all(x, dims[0], dims[1], axes[0]) if axes else x
    if kinds in JOINED:
        for axis in reversed(axes):
            x = JOINED[kinds](x, *dims, axis)
    else:
        for axis in axes:
            x = (PARTED.get(kinds) or WITHOUT_DIM[kinds])(x, *dims, axis)
    return x
