"""Seconds of what a shared expert computes beside a mixture's tokens (``redistribution.shared_experts``)."""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.cost.operators.cost import Cost
from autoplan.cost.operators.operator_seconds import Operator
from autoplan.cost.operators.token_exchange import BesideTokens
from autoplan.cost.prices import Prices
from autoplan.ir.choice import BlockChoice
from autoplan.redistribution.shared_experts import Beside


def beside_tokens(
    beside: Beside, choice: BlockChoice, operators: Mapping[str, Operator], prices: Prices
) -> BesideTokens:
    """Autograd takes the last products' gradients while those of results go, and the first products' while those of
    tokens come back."""
    strategies = dict(choice.strategies)
    first, last = (
        sum((prices.operator(operators[name], strategies[name]) for name in names), Cost())
        for names in (beside.first, beside.last)
    )
    return BesideTokens(first.forward_s, last.forward_s, last.backward_s, first.backward_s)
