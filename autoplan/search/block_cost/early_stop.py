"""What a full recomputation leaves out: ``torch.utils.checkpoint`` stops early.

An eager segment that recomputes in full runs under ``checkpoint(layer, x, use_reentrant=False)``. Its second forward
ends once every tensor is back that autograd saved in the first one (``set_checkpoint_early_stop``, torch 2.1). So what
a layer does behind its last saved tensor doesn't run again: the last product, for torch saves an operator's operands
before it runs; the sum of its result over the tensor axis; the addition to the residual. Functions of ours save after
they have run.

A compiled segment is one function to autograd, which saves when all of it has run: nothing is left out there.
"""

from __future__ import annotations

from collections import Counter

from autoplan.ir.randomness import is_random
from autoplan.redistribution.chunks import chunks_of
from autoplan.redistribution.hidden import PRODUCTS, hidden_hops, is_plain
from autoplan.search.block_cost.live_forward import Located, Step, Walk


def left_out(walk: Walk) -> tuple[Located, ...]:
    """The results of a block that its second forward doesn't make, in the order of the program."""
    last = -1
    for place, (step, saved) in enumerate(zip(walk.steps, walk.saved, strict=True)):
        in_chunks = step.hop is not None and chunks_of(step.hop) > 1  # one function with the product beside
        if saved or in_chunks or keeps_key(step):
            last = place if saved and saves_first(walk, step, saved) else place + 1
    return tuple(step.makes for step in walk.steps[max(last, 0) :])


def keeps_key(step: Step) -> bool:
    """Whether an operator saves the key of its random numbers, of which no account of bytes knows."""
    return step.operator is not None and step.operator.result_carries and is_random(step.operator.node)


def saves_first(walk: Walk, step: Step, saved: tuple[int, ...]) -> bool:
    """Whether an operator has saved all that it saves before it runs: one of torch's that saves nothing it makes."""
    operator = step.operator
    if operator is None or step.body or not operator.node.op.startswith("aten."):
        return False
    if not is_plain(dict(walk.choice.strategies)[operator.node.name]):
        return False
    reads = {walk.storage(at) for at in step.reads}
    makes = walk.storage(step.makes)
    return reads.issuperset(saved) and makes not in saved and not (operator.node.op in PRODUCTS and joined(walk, step))


def joined(walk: Walk, step: Step) -> bool:
    """Whether a product is one function with others that read the same, or with the sum of its operand's gradient
    (``emit.calls.column_products``)."""
    assert step.operator is not None
    read = Counter(each.reads[0] for each in walk.steps if each.operator and each.operator.node.op in PRODUCTS)
    beside = {node.name for nodes in hidden_hops(walk.block, walk.choice, walk.mesh).values() for node in nodes}
    return read[step.reads[0]] > 1 or step.operator.node.name in beside
