"""What a random operator is told: which call it is, and which elements of the whole tensor it holds, or over which axes
ranks hold others.

What is dropped or drawn follows from a hash of the microbatch's key, the number of the call and the element's place in
the whole tensor (autoplan.runtime.ops.global_random), so that every split drops what one device drops.
"""

from collections.abc import Mapping

from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.randomness import ATTENTION, KEY, drops_by_rank, random_operators
from autoplan.ir.typed_program import Compute, Lowered, LoweredBlock

FIRST = "first_dropout"  # the attribute that holds the number of a segment's first call


def random_function(compute: Compute) -> str:
    if drops_by_rank(compute):
        return "autoplan.attention_by_rank" if compute.op == ATTENTION else f"{compute.op}_by_rank"
    return "autoplan.attention_with_dropout" if compute.op == ATTENTION else compute.op


def most_dropouts(lowered: Lowered) -> int:
    """The most that a block has: a segment numbers its calls from so many times its place in the chain."""
    return max(len(random_operators(block)) for block in lowered.blocks)


def random_arguments(
    block: LoweredBlock, live: frozenset[str], microbatches: str
) -> Mapping[str, Mapping[str, str]]:
    """For each such operator its further arguments, as source; so is ``microbatches``."""
    found = {}
    for number, compute in enumerate(random_operators(block)):
        call = f"self.{FIRST} + {number}" if number else f"self.{FIRST}"
        if drops_by_rank(compute):
            axes = ", ".join(f"self.{axis}" for axis in split_over(compute, live))
            found[compute.value.name] = {"key": KEY, "call": call, "axes": f"({axes},)" if axes else "()"}
            if microbatches != "1" and not in_microbatches(compute):
                found[compute.value.name]["each_microbatch"] = "False"
            continue
        dims = [[a for a in axes if a in live] for axes in compute.value.layout.dims]
        if compute.op == ATTENTION:
            dims[-1] = []  # of the scores: the keys are whole
        source = ", ".join("(" + "".join(f"self.{axis}, " for axis in axes).rstrip() + ")" for axes in dims)
        arguments = {"key": KEY, "call": call, "dims": f"({source}{',' if len(dims) == 1 else ''})"}
        if batch := [d for d, axes in enumerate(compute.value.layout.dims) if MICROBATCH in axes]:
            arguments |= {"microbatch_dim": str(batch[0]), "microbatches": microbatches}
        found[compute.value.name] = arguments
    return found


def dropout_axes(block: LoweredBlock, live: frozenset[str]) -> tuple[str, ...]:
    """The axes that those arguments name."""
    return tuple(axis for compute in random_operators(block) for axis in split_over(compute, live))


def split_over(compute: Compute, live: frozenset[str]) -> tuple[str, ...]:
    """The axes over which ranks have parts of a result."""
    return tuple(axis for axes in compute.value.layout.dims for axis in axes if axis in live)


def in_microbatches(compute: Compute) -> bool:
    """Whether microbatches have parts of it."""
    return any(MICROBATCH in axes for axes in compute.value.layout.dims)


def attention_drawn_over(block: LoweredBlock, live: frozenset[str]) -> tuple[str, ...] | None:
    """The axes that split what the block's attention draws by rank; None where it draws none."""
    found = [split_over(c, live) for c in random_operators(block) if c.op == ATTENTION and drops_by_rank(c)]
    return found[0] if found else None
