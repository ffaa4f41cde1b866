"""What a published row's program does otherwise than any of ours, as changes of prices that its plan alone has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from autoplan.cost.operators.eager_temporaries import HOLDS, Holds
from autoplan.cost.operators.operator_seconds import Operator
from autoplan.cost.prices import Prices
from autoplan.cost.zero_costs import DataAxis
from autoplan.cost.zero_shares import Held
from autoplan.ir.graph import Model
from autoplan.ir.mesh import Mesh
from autoplan.rules.strategies import Strategy
from autoplan.search.block_cost import selective
from autoplan.search.block_cost.selective import is_cheap
from autoplan.search.inter_op import parameter_shares
from autoplan.search.inter_op.stage_model import StageModel
from cost_models.collective import hidden_seconds
from tests.bench.published_steps.job import Job

ADDING_PASSES = 3.0  # of a microbatch's gradients: they are read, and their sum is read and written
PRODUCT = "aten.linear.default"
LOSS = "autoplan.cross_entropy"
ONE_KERNEL = Holds(keeps=(0, 1))
"""A loss in one kernel each way keeps the logits that it reads and the targets, and makes the logits' gradient
(FlashAttention's cross-entropy, which MPT trained with)."""


@contextmanager
def traits(job: Job, model: Model) -> Iterator[None]:
    """The prices of a row's program while its plan is sought."""
    with ExitStack() as changed:
        changed.enter_context(patch.object(parameter_shares, "DataAxis", partial(row_axis, job, model)))
        changed.enter_context(patch.dict(HOLDS, {LOSS: ONE_KERNEL} if job.traced.lean else {}))
        if job.parts:
            changed.enter_context(patch.object(StageModel, "sent_s", parts_s))
        if job.waits:
            changed.enter_context(patch.object(StageModel, "ahead", 0))
        if job.copied or job.bare:
            changed.enter_context(patch.object(Prices, "under_products_s", copied_s if job.copied else bare_s))
        if job.gathers or job.seconds:
            cheap = every_second(model) if job.seconds else nothing
            changed.enter_context(patch.object(selective, "is_cheap", cheap))
            changed.enter_context(patch.object(selective.Dataflow, "cheapest", all_again))
        yield


def row_axis(job: Job, model: Model, *sizes: Any, late: bool = False, **further: Any) -> DataAxis:
    """The data axis under a row's traits."""

    class RowAxis(DataAxis):
        def gathered_copy_s(self, bytes: float) -> float:
            return 0.0 if job.flat else super().gathered_copy_s(bytes)

        def added_s(self, parameter_bytes: float) -> float:
            if job.adds or self.scatters_each or not job.halves:
                return 0.0 if job.adds else super().added_s(parameter_bytes)
            m = self.prices.microbatches
            return (m - 1) / m * self.prices.many_s(ADDING_PASSES * parameter_bytes)

        @property
        def unit(self) -> tuple[float, float]:
            share, buffer = super().unit
            return (largest_share(model), min(buffer, 1.0)) if job.singly else (share, buffer)

        def exposed_backward_s(self, backward_s: float, held: Held, frozen: Held = 0.0, last: bool = False) -> float:
            whole_s = super().exposed_backward_s(backward_s, held, frozen, last)
            if not job.posts or self.zero < 3 or (last and self.keeps_last):
                return whole_s
            scatter_s = self.scatter_s(held)
            return self.gathered_s(held, frozen) + scatter_s - self.hidden_s(backward_s, scatter_s)

    return RowAxis(*sizes, late=late or job.behind, **further)


def largest_share(model: Model) -> float:
    """Of the bytes of the block that has most of them, what its largest parameter has."""
    sizes = max(([p.type.bytes for p in block.parameters] for block in model.blocks), key=sum)
    return max(sizes) / sum(sizes)


def parts_s(stage_model: StageModel, stage: int, bytes: float) -> float:
    """A message of which each tensor rank sends its part, which the next stage's gather (Narayanan et al. 2021, section
    4.1): between nodes each part by a card of its own, and whole over the node's links."""
    ranks, width = stage_model.candidate.pp, stage_model.candidate.stage_devices
    prices, to = stage_model.data.prices, stage % ranks
    part_s = prices.message_s(bytes / prices.mesh.size("tp"), to, width, (stage - 1) % ranks)
    return part_s + prices.collective_s("all-gather", bytes, "tp")


def copied_s(prices: Prices, collective_s: float, products_s: float) -> float:
    """What products hide of copies that engines of their own make: these take no multiprocessor from any product."""
    return float(hidden_seconds(products_s, collective_s, 0.0))


def bare_s(prices: Prices, collective_s: float, products_s: float) -> float:
    """Nothing: what follows waits."""
    return 0.0


def all_again(dataflow: selective.Dataflow, rate: float) -> tuple[frozenset[int], frozenset[int]]:
    """Whatever may be is computed again, whether or not it pays."""
    return dataflow.needed(frozenset())


def nothing(*operator: Any) -> bool:
    """No operator runs again: what is left are redistributions."""
    return False


def every_second(model: Model) -> Callable[..., bool]:
    """Of each block's products every second runs again, and what ``is_cheap`` says beside."""
    products = [[node.name for node in block.nodes if node.op == PRODUCT] for block in model.blocks]
    again = {name for names in products for name in names[1::2]}

    def runs(operator: Operator, strategy: Strategy, mesh: Mesh) -> bool:
        return operator.node.name in again or is_cheap(operator, strategy, mesh)

    return runs
