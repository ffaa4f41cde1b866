"""What one block holds while it runs eagerly: from operator to operator, forward and backward.

The forward of an emitted block holds whatever it has computed until it returns, for its names do; autograd keeps of
that what its operators save. The backward goes through the operators in reverse: each takes its result's gradient,
makes those of its operands, and lets go of what it saved. Values that are views of one another are one storage, and
gradients that pass through an operator as they are (a sum's, a view's) are one, too.

What an operator makes beside its results is in the table of ``cost.operators.eager_temporaries``. Compiled segments
run as their compiler has it: ``search.block_cost.live_compiled``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.cost import Operator, Prices
from autoplan.ir.choice import BlockChoice
from autoplan.ir.graph import Block
from autoplan.search.block_cost.live_backward import Backward
from autoplan.search.block_cost.live_forward import Walk


@dataclass(frozen=True)
class LiveBytes:
    """One segment in one microbatch, bytes on one device; the storage of its inputs aside where it isn't kept.

    kept         from its forward until its backward, what it keeps of its inputs' storage included
    kept_inputs  of these its inputs' storage
    forward      at most in its forward
    backward     at most in its backward: what is kept and not yet let go, and gradients, its parameters' among them
    adding       the same where each parameter's gradient is added to a sum, and gone
    halves       gradients of results that parameters make, which a split backward keeps for its second half
    """

    kept: int = 0
    kept_inputs: int = 0
    forward: int = 0
    backward: int = 0
    adding: int = 0
    halves: int = 0

    @property
    def working(self) -> int:
        """What stands for a moment, forward or backward, beside what is kept."""
        return max(0, self.forward - (self.kept - self.kept_inputs), self.adding - self.kept)


def walk_through(block: Block, choice: BlockChoice, operators: Mapping[str, Operator], prices: Prices) -> Walk:
    """Walks through a block as it is emitted."""
    walk = Walk(block, choice, operators, prices.mesh, prices.device)
    walk.forward()
    return walk


def live_of_walk(walk: Walk, training: bool) -> LiveBytes:
    """What the walk has found."""
    if not training:
        return LiveBytes(forward=walk.most)
    own = {s for saved in walk.saved for s in saved}
    kept_inputs = sum(walk.sizes[s] for s in walk.entered & own)
    kept = sum(walk.sizes[s] for s in own if s >= 0) + kept_inputs
    reading = (s.makes for s in walk.steps if s.operator and any(name in walk.parameters for name, _ in s.reads))
    halves = sum(map(walk.bytes, reading))
    return LiveBytes(kept, kept_inputs, walk.most, Backward(walk, False).most, Backward(walk, True).most, halves)
