"""What a random operator is told: which elements of the whole tensor it holds, and which call it is.

What is dropped or drawn follows from a hash of the microbatch's key, the number of the call and the element's place in
the whole tensor (autoplan.runtime.ops.random), so that every split drops what one device drops.
"""

from collections.abc import Mapping

from autoplan.ir.graph import Node
from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.typed import Compute, Lowered, LoweredBlock

KEY = "dropout_key"
FIRST = "first_dropout"  # the attribute that holds the number of a segment's first call
ATTENTION = "aten.scaled_dot_product_attention.default"
DROPOUT_ARGUMENT = 4  # of attention
HASHED = ("autoplan.dropout", "autoplan.uniform")


def is_random(operator: Compute | Node) -> bool:
    """Whether it drops elements, or draws numbers."""
    if operator.op == ATTENTION and len(operator.args) > DROPOUT_ARGUMENT:
        return operator.args[DROPOUT_ARGUMENT] != 0.0
    return operator.op in HASHED


def random_function(compute: Compute) -> str:
    return "autoplan.attention_with_dropout" if compute.op == ATTENTION else compute.op


def dropouts(block: LoweredBlock) -> tuple[Compute, ...]:
    """The block's operators that drop elements, in order."""
    return tuple(s for s in block.body if isinstance(s, Compute) and is_random(s))


def most_dropouts(lowered: Lowered) -> int:
    """The most that a block has: a segment numbers its calls from so many times its place in the chain."""
    return max(len(dropouts(block)) for block in lowered.blocks)


def random_arguments(
    block: LoweredBlock, live: frozenset[str], microbatches: int
) -> Mapping[str, Mapping[str, str]]:
    """For each such operator its further arguments, as source."""
    found = {}
    for number, compute in enumerate(dropouts(block)):
        call = f"self.{FIRST} + {number}" if number else f"self.{FIRST}"
        dims = [[a for a in axes if a in live] for axes in compute.value.layout.dims]
        if compute.op == ATTENTION:
            dims[-1] = []  # of the scores: the keys are whole
        source = ", ".join("(" + "".join(f"self.{axis}, " for axis in axes).rstrip() + ")" for axes in dims)
        arguments = {"key": KEY, "call": call, "dims": f"({source}{',' if len(dims) == 1 else ''})"}
        if batch := [d for d, axes in enumerate(compute.value.layout.dims) if MICROBATCH in axes]:
            arguments |= {"microbatch_dim": str(batch[0]), "microbatches": str(microbatches)}
        found[compute.value.name] = arguments
    return found


def dropout_axes(block: LoweredBlock, live: frozenset[str]) -> tuple[str, ...]:
    """The axes that those arguments name."""
    return tuple(
        axis
        for compute in dropouts(block)
        for axes in compute.value.layout.dims
        for axis in axes
        if axis in live
    )
