"""Whether a compiled segment can draw by rank: all that its attention drops comes of one seed."""

from autoplan.errors import ParallelismError
from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.randomness import ATTENTION, drops_by_rank, random_operators
from autoplan.ir.typed_program import Compute, Lowered


def check_one_seed(lowered: Lowered) -> None:
    """ParallelismError where attentions of a block are split over different axes. Each would need a seed of its own,
    and a compiled segment is seeded once, before it begins (``runtime.parallel.seeding``)."""
    for block in lowered.blocks:
        found = [c for c in random_operators(block) if c.op == ATTENTION and drops_by_rank(c)]
        parts = {parts_of(compute, lowered) for compute in found}
        alike = lowered.mesh.size(MICROBATCH) != 1 and any(MICROBATCH not in each for each in parts)
        if len(parts) > 1 or alike:
            who = " and ".join(c.module or c.value.name for c in found)
            cause = f"{who} drop in one compiled segment, split over different axes: they would need several seeds"
            remedy = "use Training(compile=False), or randomness='global'"
            raise ParallelismError("randomness='per-rank'", cause, remedy)


def parts_of(compute: Compute, lowered: Lowered) -> tuple[str, ...]:
    """The axes, that of the microbatches among them, along which ranks have parts of a result."""
    axes = [axis for dim in compute.value.layout.dims for axis in dim]
    return tuple(axis for axis in axes if axis == MICROBATCH or lowered.mesh.size(axis) != 1)
