"""How many tokens a rank's experts get in a rehearsal, which has no values: the busiest rank's, as prices take it.

Tokens choose evenly and independently, within what the router's groups admit (``cost.operators.experts``). Every rank
is rehearsed as the one that gets most: so what it sends, computes and keeps is what is priced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from torch import Tensor

from autoplan.cost.operators.experts import Grouped, Travel
from autoplan.cost.operators.operator_seconds import grouped_of, operators_of
from autoplan.ir.record import PlanRecord
from autoplan.runtime.ops.experts import dispatch, routed

EXPERTS = "autoplan.experts"

Split = tuple[int, int, int]
"""Of a mixture: a token's choices, the experts of each rank, the ranks."""


@dataclass(frozen=True)
class Expected:
    """For each token of a rank: rows to each member, and how many of their choices name its experts."""

    rows: float
    choices: float


@contextmanager
def tokens_as_priced(record: PlanRecord) -> Iterator[None]:
    """Within it what a mixture counts is what the plan's prices take."""
    known = expected_of(record)
    even = dispatch.expected

    def expected(index: Tensor, experts: int, members: int) -> tuple[int, int]:
        found = known.get((index.shape[1], experts, members))
        if found is None:
            return even(index, experts, members)
        return round(found.rows * index.shape[0]), round(found.choices * index.shape[0])

    with ExitStack() as stack:
        for module in (dispatch, routed):
            stack.enter_context(patch.object(module, "expected", expected))
        yield


def expected_of(record: PlanRecord) -> Mapping[Split, Expected]:
    """By how a mixture is split; of several that are split alike the greatest."""
    found: dict[Split, Expected] = {}
    for block, choice in zip(record.model.blocks, record.chosen.blocks, strict=True):
        if not any(node.op == EXPERTS for node in block.nodes):
            continue
        operators, strategies = operators_of(block, fuses=record.training.compile), dict(choice.strategies)
        for node in (node for node in block.nodes if node.op == EXPERTS):
            grouped, travel = grouped_of(operators[node.name], strategies[node.name], record.chosen.mesh)
            if travel is None or travel.sent:
                continue
            key = (travel.choices, travel.experts // travel.ways, travel.ways)
            found[key] = greatest(found.get(key), of_token(grouped, travel))
    return found


def of_token(grouped: Grouped, travel: Travel) -> Expected:
    there = travel.tokens * travel.ways
    return Expected(travel.rows / there, grouped.rows * grouped.experts / there)


def greatest(one: Expected | None, other: Expected) -> Expected:
    return other if one is None else Expected(max(one.rows, other.rows), max(one.choices, other.choices))
