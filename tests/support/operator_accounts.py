"""The operators that a rehearsed rank launched, statement by statement, beside what the plan's prices are for."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from autoplan.emit.calls.column_products import Lines
from autoplan.rehearsal.pricing.priced_operators import FORWARD, launched, places_of
from autoplan.rehearsal.pricing.priced_plan import PlanPrices
from autoplan.rehearsal.records import RankTrace

ATTENTION = "attention"


@dataclass(frozen=True)
class Flops:
    """Of the products of one line in one run of its block, forward.

    statement  the values that they give, "q_proj, k_proj, v_proj" where one call gives several
    priced   that its price is for; of causal attention the pairs above the diagonal are left out
    counted  by torch's formulas, which count them; None of an operator for which it has none, as of a mixture's experts
    """

    block: str
    statement: str
    priced: float
    counted: float | None
    causal: bool

    @property
    def differ(self) -> bool:
        if self.counted is None:
            return False
        least = self.counted / 2 if self.causal else self.counted
        return not least <= self.priced * (1 + 1e-9) <= self.counted * (1 + 2e-9)


@dataclass(frozen=True)
class OperatorAccount:
    """One rank's operators.

    unpriced  (line, operators, bytes that they move) of lines that belong to no statement of a block
    unrun     statements that have a price, of which no operator was seen: (block, statement, seconds)
    flops     of every statement that multiplies
    """

    unpriced: tuple[tuple[str, int, int], ...]
    unrun: tuple[tuple[str, str, float], ...]
    flops: tuple[Flops, ...]

    @property
    def differences(self) -> tuple[Flops, ...]:
        return tuple(each for each in self.flops if each.differ)


def operator_account(plan: PlanPrices, trace: RankTrace, program: str) -> OperatorAccount:
    """The operators of a rank that was rehearsed eagerly, statement by statement."""
    share, places = plan.share(trace), places_of(program, plan.lowered)
    uses, _, _ = share.uses()
    calls = launched(trace, places)
    beside: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    counted: Counter[tuple[int, str]] = Counter()
    seen = set()
    for each in calls:
        block = each.place.block
        if block is None:
            beside[each.call.line][0] += 1
            beside[each.call.line][1] += each.call.moved
            continue
        seen.add((block, each.place.statement))
        if each.phase == FORWARD:
            counted[block, each.place.statement] += each.call.flops
    flops, unrun = [], []
    for block in sorted(uses):
        name, runs = plan.lowered.blocks[block].name, uses[block] * share.microbatches
        line_of = Lines.of(plan.lowered.blocks[block]).line_of
        lines: dict[str, list[str]] = defaultdict(list)
        strategies = plan.record.chosen.blocks[block].strategies
        costs = {value: share.prices.operator(plan.operators[block][value], s) for value, s in strategies}
        for value in costs:
            lines[line_of.get(value, value)].append(value)
        for line, values in lines.items():
            products = [value for value in values if costs[value].flops] or [line]
            priced = sum(costs[value].flops for value in values)
            if priced or counted[block, line]:
                rules = [plan.operators[block][value] for value in products]
                causal = any(operator.rule.cost == ATTENTION for operator in rules)
                known = counted[block, line] or all(operator.node.op.startswith("aten.") for operator in rules)
                count = counted[block, line] / runs if known else None
                flops.append(Flops(name, ", ".join(products), priced, count, causal))
            if (block, line) not in seen:
                unrun += [(name, value, costs[value].forward_s) for value in values if costs[value].seconds]
    unpriced = tuple((line, count, size) for line, (count, size) in beside.items())
    return OperatorAccount(unpriced, tuple(unrun), tuple(flops))
