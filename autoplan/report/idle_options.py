"""What was asked for and makes no difference to a plan: each option that a plan makes no use of is told, with why.

An option that never could is refused instead (``options``, ``search.space.pinned_checks``, ``compile``). ``NEEDS`` says
of such a field when it matters; every plan follows the others.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace

from autoplan.cluster import ClusterSpec
from autoplan.emit.source import size_text
from autoplan.ir.randomness import drops, is_random
from autoplan.ir.record import PlanRecord
from autoplan.option_values import AUTO, OF_OPTIMIZER, SET_RATES
from autoplan.options import Training
from autoplan.rules.constraints import WHOLE_STATES, Constraint
from autoplan.rules.nn.expert_capacity import MIXTURE, ROUTED, drops_nothing
from autoplan.rules.strategies import Strategy
from autoplan.search.space.systems import resolve

Reason = Callable[[PlanRecord], str]
"""Why a plan makes no use of a field; "" where it does."""


def idle_options(record: PlanRecord) -> list[str]:
    """A line for each option without effect."""
    told = (f"No effect: {given}, for {why}." for given, why in (*idle_fields(record), *idle_cluster(record.cluster)))
    return [*told, *idle_constraints(record), *more_memory(record.cluster)]


def idle_fields(record: PlanRecord) -> Iterator[tuple[str, str]]:
    """Of the parallelism that was asked for, and of the training, what is set and has no use: (field=value, why)."""
    pinned, training = resolve(record.asked.request, record.cluster), record.training
    for name, value in pinned.pinned().items():
        if value != OFF.get(name) and (why := NEEDS.get(name, used)(record)):
            yield f"{name}={value!r}", why
    for field in fields(training) if isinstance(training, Training) else ():
        value = getattr(training, field.name)
        if value != field.default and (why := NEEDS.get(field.name, used)(record)):
            yield f"{field.name}={value!r}", why


def used(record: PlanRecord) -> str:
    return ""


def unshared(record: PlanRecord) -> str:
    p = record.chosen.parallelism
    alone = (p.dp or 1) * (p.cp or 1) == 1
    return "the plan has dp=1, and there are no ranks to share the states out among" if alone else ""


def replicated(record: PlanRecord) -> str:
    trains, zero = isinstance(record.training, Training), record.chosen.parallelism.zero
    return "" if trains or zero == 3 else "a forward alone shards parameters under zero=3, and nothing else"


def unrepeated(record: PlanRecord) -> str:
    again = any(stage.recompute or stage.selective for stage in record.chosen.stages)
    asked = record.asked.parallelism.recompute != "auto"
    return "no block of the model repeats, for which it would save memory" if asked and not again else ""


def offloaded(record: PlanRecord) -> str:
    kept = any(stage.host for stage in record.chosen.predicted.peak_bytes)
    updates = record.chosen.parallelism.offload in (*OF_OPTIMIZER, "parameters")
    return "" if kept or updates else unrepeated(record)


def unpipelined(record: PlanRecord) -> str:
    if record.chosen.parallelism.pp == 1:
        return "the plan has no pipeline"
    same = record.chosen.parallelism.virtual_stages == 1 and not isinstance(record.training, Training)
    return "a forward alone has no backward to put in order" if same else ""


def unsequenced(record: PlanRecord) -> str:
    split = record.chosen.parallelism.sequence_parallel
    return "" if split else "no activation between tensor-parallel operators lies split along a sequence"


def nothing_cut(record: PlanRecord) -> str:
    if record.chosen.parallelism.tp_overlap:
        return ""
    if resolve(record.asked.request, record.cluster).tp_overlap == AUTO:
        return "the plan has no tensor axis" if (record.chosen.parallelism.tp or 1) == 1 else NOT_QUICKER
    return "no gather before a product, and no sum after one, has rows on a rank that divide into as many chunks"


def nothing_exchanged(record: PlanRecord) -> str:
    if record.chosen.parallelism.ep_overlap or (why := without_experts(record)):
        return "" if record.chosen.parallelism.ep_overlap else why
    if not any(strategy.on(axis).body == ROUTED for strategy, axis in mixtures(record)):
        return "no tokens travel to experts: every rank has those of its own, or all tokens"
    auto = resolve(record.asked.request, record.cluster).ep_overlap == AUTO
    if not auto and record.training.compile:
        return "a compiled block takes a mixture as one operator; give Training(compile=False), or a number of chunks"
    return NOT_QUICKER if auto else "the model's mixtures have no shared expert, nor any product beside them"


def mixtures(record: PlanRecord) -> Iterator[tuple[Strategy, str]]:
    """How each is split, with each axis."""
    for block, choice in zip(record.model.blocks, record.chosen.blocks, strict=True):
        names = {node.name for node in block.nodes if node.op == MIXTURE}
        yield from ((s, axis) for name, s in choice.strategies if name in names for axis, _ in s.axes)


def without_context(record: PlanRecord) -> str:
    return "" if (record.chosen.parallelism.cp or 1) > 1 else "the plan has cp=1; give cp=2 or more"


def without_experts(record: PlanRecord) -> str:
    mixtures = any(node.op == MIXTURE for block in record.model.blocks for node in block.nodes)
    return "" if mixtures else "the model has no mixture of experts"


def never_full(record: PlanRecord) -> str:
    mixtures = [(block, node) for block in record.model.blocks for node in block.nodes if node.op == MIXTURE]
    capacity = record.training.expert_capacity if isinstance(record.training, Training) else None
    if capacity is None or not all(drops_nothing(*mixture) for mixture in mixtures):
        return ""
    return "an expert takes all tokens of a row then, and nothing is dropped"


def unsummed(record: PlanRecord) -> str:
    p = record.chosen.parallelism
    if p.steps_locally:
        return "no gradients are summed over dp"
    return "the plan has dp=1, and no gradients are summed over it" if unshared(record) else ""


def one_microbatch(record: PlanRecord) -> str:
    return "a step has one microbatch, which is the batch" if record.chosen.microbatches == 1 else ""


def nothing_drops(record: PlanRecord) -> str:
    nodes = [node for block in record.model.blocks for node in block.nodes]
    return "" if any(map(drops, nodes)) else "nothing in the model drops out"


def nothing_drawn(record: PlanRecord) -> str:
    nodes = [*(node for block in record.model.blocks for node in block.nodes), *record.model.constants]
    if any(map(is_random, nodes)) or record.chosen.parallelism.compression is not None:
        return ""
    return "a step draws no random numbers; parameters are drawn under init_weights(seed=…)"


def own_rate(record: PlanRecord) -> str:
    schedule = record.training.lr_schedule if isinstance(record.training, Training) else None
    if schedule is None or schedule.name not in SET_RATES:
        return ""
    return f"lr_schedule={schedule.name!r} sets every rate from {SET_RATES[schedule.name]}"


NOT_QUICKER = "nothing is predicted to be quicker for it; on a device that waits for each collective nothing is hidden"
OFF = {"zero": 0, "dp_replicate": 1, "recompute": "none", "offload": "none", "sequence_parallel": False, "etp": 1,
       "tp_overlap": 1, "ep_overlap": 1}  # fmt: skip
"""Values under which a field asks for nothing."""
NEEDS: Mapping[str, Reason] = {
    "zero": unshared, "dp_replicate": replicated, "recompute": unrepeated, "offload": offloaded,
    "pipeline_schedule": unpipelined, "sequence_parallel": unsequenced, "cp_attention": without_context,
    "etp": without_experts, "reduce_dtype": unsummed, "statistics": one_microbatch, "randomness": nothing_drops,
    "seed": nothing_drawn, "learning_rate": own_rate, "tp_overlap": nothing_cut, "ep_overlap": nothing_exchanged,
    "expert_capacity": never_full,
    "expert_dropping": never_full,
}  # fmt: skip


def idle_cluster(cluster: ClusterSpec) -> Iterator[tuple[str, str]]:
    """Links that are described and that no two devices are joined by, and memory that isn't there."""
    levels = cluster.topology().levels
    if cluster.network is not None and not any(level.size > 1 for level in levels[1:]):
        yield f"network={cluster.network!r}", "the cluster is one node"
    if cluster.node is not None and levels[0].size == 1:
        yield f"node={cluster.node!r}", "a node has one device"
    for name, factor in cluster.bandwidth:
        without = replace(cluster, bandwidth=tuple(pair for pair in cluster.bandwidth if pair[0] != name))
        before, after = ([each for each in c.topology().levels if each.size > 1] for c in (without, cluster))
        if before == after:
            yield f"bandwidth={name}:{factor:g}", "no two devices are joined by that link"


def more_memory(cluster: ClusterSpec) -> Iterator[str]:
    """Of memory that a cluster is said to have beyond its devices'."""
    given, device = cluster.memory_bytes, cluster.profile()[0]
    if given is not None and given > device.memory_bytes:
        yield (
            f"Memory: memory_bytes={size_text(given)} is more than the {size_text(device.memory_bytes)} of a "
            f"{device.name}; a plan that fills it runs on no such device."
        )


def idle_constraints(record: PlanRecord) -> Iterator[str]:
    """Layouts that are pinned or forbidden over an axis that the plan doesn't have."""
    for constraint in record.asked.constraints:
        if set(constraint.states) - set(WHOLE_STATES) and not has_axis(record, constraint):
            word = "pins" if constraint.allow else "forbids"
            yield (
                f"No effect: the constraint on {constraint.target!r}, which {word} {', '.join(constraint.states)} over "
                f"{constraint.axis}, for the plan doesn't split over that axis. Give tp=2 or more."
            )


def has_axis(record: PlanRecord, constraint: Constraint) -> bool:
    sizes = record.chosen.parallelism.tensor_sizes
    return any(size > 1 for size in sizes) if constraint.axis == "tp" else constraint.axis in record.chosen.mesh.names

