"""How the tokens of a mixture meet their experts, and what was assumed about their choices."""

from collections.abc import Sequence

from autoplan.cost.operators.operator_seconds import Operator, operators_of, travel_of
from autoplan.emit.source import size_text
from autoplan.ir.choice import BlockChoice
from autoplan.ir.graph import Node
from autoplan.ir.mesh import OPERATOR_AXES
from autoplan.ir.record import PlanRecord
from autoplan.options import Inference
from autoplan.report.words import wide_axes
from autoplan.rules.nn.expert_capacity import drops_nothing
from autoplan.rules.registry import AxisStrategy
from autoplan.rules.strategies import Strategy

OP = "autoplan.experts"


def experts_notes(record: PlanRecord) -> list[str]:
    """One note for each way in which experts are split, naming the blocks that have them so."""
    found: dict[str, list[str]] = {}
    for block, choice in zip(record.model.blocks, record.chosen.blocks, strict=True):
        strategies, operators = dict(choice.strategies), operators_of(block, fuses=record.training.compile)
        for node in block.nodes:
            if node.op == OP:
                text = text_of(record, operators[node.name], strategies[node.name]) + kept_text(record, choice, node)
                text += "" if drops_nothing(block, node) else dropped_text(record)
                found.setdefault(text, []).append(block.name)
    return [f"Experts of {', '.join(dict.fromkeys(names))}: {text}" for text, names in found.items()]


def text_of(record: PlanRecord, operator: Operator, strategy: Strategy) -> str:
    """Of one mixture: the axes over which experts are split, and those over which each is."""
    wide = [axis for axis in wide_axes(record.chosen.mesh) if axis in OPERATOR_AXES]
    over, each = ([a for a in wide if strategy.on(a).body], [a for a in wide if splits_each(strategy.on(a))])
    parts = [split_text(record, operator, strategy, over)] if over else []
    if each:
        parts.append(f"the inner dim of each is split over {sizes(record, each)}, partial sums are added up")
    return f"{'; '.join(parts)}." if parts else "every rank has all of them for its own tokens."


def kept_text(record: PlanRecord, choice: BlockChoice, node: Node) -> str:
    """Whether a mixture's first products are kept, of a plan that trains."""
    if isinstance(record.training, Inference) or not node.args[3]:
        return ""
    selects = any(s.selective for s in record.chosen.stages) and record.chosen.parallelism.offload != "activations"
    if selects and node.name in dict(choice.again):
        return " Where a block recomputes selectively, its first products are computed again in the backward."
    kept = " Its first products are kept for the backward"
    if selects:
        return f"{kept}, unless a block recomputes in full, its activation's results unless one does so selectively."
    return f"{kept}, and what its activation makes of them, unless a block recomputes in full."


def dropped_text(record: PlanRecord) -> str:
    """What a capacity leaves out, of a plan that trains with one."""
    training = record.training
    if isinstance(training, Inference) or training.expert_capacity is None:
        return ""
    which = "the later ones" if training.expert_dropping == "order" else "those of lesser scores"
    return (
        f" Of each row's choices an expert takes at most {training.expert_capacity:g} times an even share; {which} are "
        "dropped, so the model isn't equal to the one that drops none. What is dropped follows from the row alone, "
        "alike under every plan and on one device."
    )


def split_text(record: PlanRecord, operator: Operator, strategy: Strategy, over: Sequence[str]) -> str:
    split = f"split over {sizes(record, over)}"
    if strategy.on(over[0]).body == "routed_experts":
        return f"{split}, tokens travel to them by all-to-all{assumed(record, operator, strategy)}"
    return (
        f"{split}, where every rank has all tokens and what its experts give is summed up; it is assumed that tokens "
        "choose evenly and independently"
    )


def sizes(record: PlanRecord, axes: Sequence[str]) -> str:
    """``ep=4 x tp=2``"""
    return " x ".join(f"{axis}={record.chosen.mesh.size(axis)}" for axis in axes)


def splits_each(way: AxisStrategy) -> bool:
    """Whether every expert is split, not the experts."""
    return any(state.kind == "S" and state.dim > 0 for state in way.inputs[3:])


def assumed(record: PlanRecord, operator: Operator, strategy: Strategy) -> str:
    """What a price says of loads that aren't known before a step."""
    travel = travel_of(operator, strategy, record.chosen.mesh)
    assert travel is not None
    if travel.sent:
        return (
            f": {travel.sent} rows from each rank to each other, as many as the capacity admits, empty ones among "
            f"them, {size_text(travel.there_bytes)} in a microbatch, and as many back. Nothing is counted, and the "
            "host waits for nothing"
        )
    whole, groups = travel.tokens * travel.ways, travel.groups
    within = f" within {groups.kept} of {groups.count} groups, as the router limits them" if groups.count > 1 else ""
    busiest, above = 100 * travel.rows / whole, 100 * travel.imbalance
    return (
        f": each goes once to every rank that has any of its experts, and one row comes back; priced as tokens that "
        f"choose evenly and independently{within}, of which the busiest rank gets {busiest:.0f}% of its group's "
        f"({above:.0f}% above the mean), {size_text(travel.there_bytes)} in a microbatch. How "
        "many go where is counted in each step"
    )
