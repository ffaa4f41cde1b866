"""What a random operator is told: which elements of the whole tensor it holds, and which call it is.

What is dropped or drawn follows from a hash of the microbatch's key, the number of the call and the element's place in
the whole tensor (autoplan.runtime.ops.global_random), so that every split drops what one device drops.
"""

from collections.abc import Mapping

from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.randomness import ATTENTION, random_operators
from autoplan.ir.typed_program import Compute, Lowered, LoweredBlock

KEY = "dropout_key"
FIRST = "first_dropout"  # the attribute that holds the number of a segment's first call


def random_function(compute: Compute) -> str:
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
    return tuple(
        axis
        for compute in random_operators(block)
        for axes in compute.value.layout.dims
        for axis in axes
        if axis in live
    )
