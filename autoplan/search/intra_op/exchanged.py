"""How a mixture's tokens travel: of what is asked for, the quickest for each mixture (``BlockChoice.exchanges``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoplan.cost import Operator, Prices
from autoplan.cost.beside_tokens import beside_tokens
from autoplan.ir.choice import BlockChoice
from autoplan.ir.graph import Block
from autoplan.option_values import SHARED
from autoplan.redistribution.shared_experts import Beside, beside_mixture
from autoplan.rules.nn.expert_capacity import travels

WHOLE = (1,)


def with_exchanges(
    block: Block, choice: BlockChoice, operators: Mapping[str, Operator], prices: Prices
) -> BlockChoice:
    """The choice with how the tokens of its mixtures travel, where they do."""
    if prices.exchanges == WHOLE:
        return choice
    found = []
    for name, strategy in choice.strategies:
        if operators[name].rule.cost == "experts" and travels(strategy, prices.mesh):
            beside = beside_mixture(block, choice, prices.mesh, name)
            found.append((name, quickest(name, beside, choice, operators, prices)))
    return replace(choice, exchanges=tuple((name, how) for name, how in found if how != 1))


def quickest(
    name: str, beside: Beside, choice: BlockChoice, operators: Mapping[str, Operator], prices: Prices
) -> int | str:
    """Whole, too, where beside a shared expert is asked for, and there is none, or the block is compiled: there a
    mixture is one operator."""
    operator, strategy = operators[name], dict(choice.strategies)[name]

    def seconds(how: int | str) -> float:
        if how == SHARED:
            inside = prices.inside(operator, strategy, beside_tokens(beside, choice, operators, prices))
            return prices.operator(operator, strategy, inside).seconds
        return prices.operator(replace(operator, chunks=int(how)), strategy).seconds

    possible = [how for how in prices.exchanges if how != SHARED or (beside and not prices.fuses)]
    return min(possible, key=seconds, default=1)
