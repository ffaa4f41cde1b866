"""Seconds of a redistribution that is cut into chunks beside a product, and into how many it is best cut.

Of k chunks of a gather the first is waited for, and each other runs under the product of the one before. Of a sum the
last is in the open, and each other runs under the product of the one after. So of either k - 1 parts in k run beside as
much of the product. That costs more calls, shorter messages, products of fewer rows, and copies: of what a product
gives into the rows of several ranks, or of the rows that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoplan.cost.operators.cost import Cost
from autoplan.cost.operators.eager import calls_seconds
from autoplan.cost.operators.operator_seconds import Operator, local_factors, moved_bytes
from autoplan.cost.prices import Prices
from autoplan.ir.typed_program import Collective
from autoplan.rules.strategies import Strategy
from cost_models.compute import memory_bound_seconds

Product = tuple[Operator, Strategy]


@dataclass(frozen=True)
class ChunkOverlap:
    """Of a redistribution in chunks, forward and backward.

    hidden_forward_s, hidden_backward_s  what products hide of it
    more_forward_s, more_backward_s      what these and the copies beside take more than whole
    """

    hidden_forward_s: float = 0.0
    hidden_backward_s: float = 0.0
    more_forward_s: float = 0.0
    more_backward_s: float = 0.0

    @property
    def cost(self) -> Cost:
        """To be added to the redistribution and the products by themselves."""
        ahead_s, back_s = self.more_forward_s - self.hidden_forward_s, self.more_backward_s - self.hidden_backward_s
        return Cost(ahead_s, back_s)


def beside_products(prices: Prices, step: Collective, moved: Cost, products: Sequence[Product]) -> ChunkOverlap:
    """Of a step in chunks, ``moved`` its seconds; the sum of gathered chunks' gradient isn't in it."""
    k, gathers = step.chunks, step.op == "all_gather"
    if k == 1:
        return ChunkOverlap()
    whole, parts = Cost(), Cost()
    read_bytes = written_bytes = 0
    for operator, strategy in products:
        whole += prices.operator(operator, strategy)
        parts += prices.operator(of_rows(operator, strategy, prices, k), strategy).times(k)
        (read, *_), written = moved_bytes(operator, strategy, prices.mesh)
        read_bytes, written_bytes = max(read_bytes, read), written_bytes + written
    copied_bytes = read_bytes if step.op == "reduce_scatter" else 0
    if gathers:  # along the first dim a whole gather is there without a copy
        copied_bytes = written_bytes + read_bytes * (step.dims[0] == 0 and prices.training)
    ahead_s = copies_s(prices, k, copied_bytes)
    more_s = parts.forward_s - whole.forward_s + ahead_s
    hidden_s = hidden_part(prices, k, moved.forward_s, parts.forward_s + ahead_s)
    if step.chunks_back == 1 or not moved.backward_s:
        return ChunkOverlap(hidden_forward_s=hidden_s, more_forward_s=more_s)
    back_s = copies_s(prices, k, read_bytes)
    inputs_s, chunks_s = (cost.backward_s - cost.weights_s for cost in (whole, parts))
    return ChunkOverlap(
        hidden_s, hidden_part(prices, k, moved.backward_s, chunks_s + back_s), more_s, chunks_s - inputs_s + back_s
    )


def hidden_part(prices: Prices, chunks: int, collective_s: float, products_s: float) -> float:
    share = (chunks - 1) / chunks
    return prices.under_products_s(share * collective_s, share * products_s)


def of_rows(operator: Operator, strategy: Strategy, prices: Prices, chunks: int) -> Operator:
    """A product of one chunk's rows."""
    local = local_factors(operator, strategy, prices.mesh)
    rows = [factor for terms in operator.terms[0][:-1] for factor in terms]
    most = max(rows, key=local.__getitem__)
    return replace(operator, sizes={**operator.sizes, most: max(1, operator.sizes[most] // chunks)})


def copies_s(prices: Prices, chunks: int, bytes: int) -> float:
    """Seconds in which as many parts are copied as there are chunks; compiled, at the end, all at once."""
    if not bytes:
        return 0.0
    if prices.fuses:
        return float(memory_bound_seconds(2 * bytes, prices.device))
    return calls_seconds([2 * bytes / chunks] * chunks, prices.device)


def best_chunks(
    prices: Prices, step: Collective, moved: Cost, rows: int, products: Sequence[Product], carries: bool
) -> tuple[int, float]:
    """Into how many of ``Prices.chunks`` a step is best cut, and the seconds that this saves, fewer than none where it
    is asked for and costs more.

    moved    the step's seconds whole
    rows     that are cut, of one rank
    carries  a gradient goes back
    """
    found = [(1, 0.0)] if 1 in prices.chunks else []
    for chunks in prices.chunks if prices.hides else ():
        if chunks > 1 and rows % chunks == 0:
            each = replace(step, chunks=chunks)
            cost = prices.step(each, carries)
            with_products = cost + beside_products(prices, each, cost, products).cost
            found.append((chunks, moved.seconds - with_products.seconds))
    return max(found, key=lambda pair: pair[1], default=(1, 0.0))
