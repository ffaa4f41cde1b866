"""A plan as it is verified: in float64, small enough for local processes, replicas averaged often, without dropout."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from autoplan.errors import InputsError
from autoplan.ir.choice import Hop
from autoplan.ir.graph import Model
from autoplan.ir.layout import Layout
from autoplan.ir.randomness import drops_by_rank, is_random, with_randomness
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.runtime.data.microbatches import Batch
from autoplan.trace.passes.precision import in_precision
from autoplan.verify.batch import example_batch, given_batch
from autoplan.verify.shrink import shrink

MOST_RANKS = 8
RULES = {
    "pipedream": "PipeDream's rule, gradients of the weights that each stage had on the way forward",
    "pipedream-vertical-sync": "PipeDream's rule with vertical sync, gradients of weights as old on all stages",
    "pipedream-2bw": "PipeDream-2BW's rule, gradients of the weights before the last update",
}
NOT_COMPRESSED = "compression is compared where the module is there and nothing drops out"
OFTEN = 2  # steps between two averages of replicas, of those that are verified


def in_float64(record: PlanRecord) -> PlanRecord:
    """The same plan, computing in float64: what exactness is measured with."""
    training = record.training
    wide = training.with_precision("fp64") if isinstance(training, Training) else replace(training, precision="fp64")
    return rewritten(replace(record, training=wide), in_precision(record.model, "fp64"))


def rewritten(record: PlanRecord, model: Model) -> PlanRecord:
    """The plan of a model whose blocks have lost operators: casts, dropout. What was chosen for these is gone; a
    redistribution of one's result is of what it read."""
    blocks = []
    for before, block, choice in zip(record.model.blocks, model.blocks, record.chosen.blocks, strict=True):
        left = {node.name for node in block.nodes}
        again = tuple(each for each in choice.again if each[0] in left)
        strategies = tuple(each for each in choice.strategies if each[0] in left)
        gone = {node.name: node.operands[0] for node in before.nodes if node.name not in left}
        hops = redistributed(choice.hops, gone)
        blocks.append(replace(choice, again=again, strategies=strategies, hops=hops))
    return replace(record, model=model, chosen=replace(record.chosen, blocks=tuple(blocks)))


def redistributed(hops: Sequence[Hop], gone: Mapping[str, str]) -> tuple[Hop, ...]:
    """Redistributions where some operators are gone, each once.

    gone  (result, what it was made of) of these operators
    """
    found: dict[tuple[str, Layout, Layout], Hop] = {}
    for hop in hops:
        value = hop.value
        while value in gone:
            value = gone[value]
        found.setdefault((value, hop.source, hop.target), replace(hop, value=value))
    return tuple(found.values())


def local_plan(record: PlanRecord, given: Batch | None, seed: int) -> tuple[PlanRecord, str, dict[str, torch.Tensor]]:
    """The plan in float64, shrunk where it has more than MOST_RANKS ranks; what to say of that; and a batch of it.

    given  a user's batch, None: one is drawn. InputsError where it is for a plan that is shrunk
    """
    exact, note, devices = in_float64(record), "", record.chosen.mesh.devices
    if devices > MOST_RANKS:
        if given is not None:
            cause = f"it is verified with smaller sizes, for it has more than {MOST_RANKS} ranks"
            raise InputsError(f"a batch for a plan of {devices} ranks", cause, "leave it out")
        exact, note = shrink(exact)
    return exact, note, example_batch(exact.model, seed) if given is None else given_batch(exact.model, given)


def trained_names(model: Model) -> frozenset[str]:
    """Every name that the user has for what a model trains."""
    held = (each for p in model.parameters if p.trainable for each in (p.members or (p,)))
    return frozenset(name for each in held for name in (each.source, *each.aliases))


def also(*notes: str) -> str:
    """Notes in one sentence, those that say nothing left out."""
    return "; ".join(filter(None, notes))


def apart_on_one(record: PlanRecord) -> int:
    """Microbatches that one device takes one after another: those of the plan, where each has its own statistics."""
    return record.chosen.microbatches if record.training.microbatch_statistics else 1


def synchronous(record: PlanRecord) -> PlanRecord:
    """The same plan with gradients of the newest weights, summed in every step: what one device equals."""
    p = record.chosen.parallelism
    schedule = "1f1b" if p.continuous else p.pipeline_schedule
    p = replace(p, local_steps=None, outer_optimizer=None, pipeline_schedule=schedule)
    p = replace(p, compression=None, compression_rank=None, compression_rate=None, compression_within=None)
    p = replace(p, gossip=None, servers=None, staleness=None, backups=None, ahead=None)
    return replace(record, chosen=replace(record.chosen, parallelism=p))


def averaged_often(record: PlanRecord) -> tuple[PlanRecord, str]:
    """The same plan with its replicas averaged so often that a verification sees it, and what to say of that."""
    every = record.chosen.parallelism.local_steps
    parallelism = replace(record.chosen.parallelism, local_steps=OFTEN)
    told = f"averaging every {OFTEN} steps in place of {every}"
    return replace(record, chosen=replace(record.chosen, parallelism=parallelism)), told


def rule_of(parallelism: Parallelism) -> str:
    """What an asynchronous program is compared with."""
    if parallelism.gossip:
        often = f"{parallelism.local_steps} steps" if parallelism.local_steps else "step"
        return f"gossip's rule, neighbours on the {parallelism.gossip} graph averaged every {often}"
    if parallelism.outer_optimizer:
        return f"DiLoCo's rule, an outer step every {parallelism.local_steps} steps"
    if parallelism.steps_locally:
        return f"local SGD's rule, averaging every {parallelism.local_steps} steps"
    if parallelism.backups:
        return f"backup workers' rule, the mean of all but {parallelism.backups} workers, who take turns"
    if parallelism.ahead:
        return "the rule of servers that apply gradients as they arrive, from workers in turn"
    if parallelism.staleness:
        old = f"{parallelism.staleness} update{'s' * (parallelism.staleness > 1)}"
        return f"delayed gradients' rule, gradients of the weights {old} before"
    if (how := parallelism.compressed) is not None:
        kinds = {
            "powersgd": f"PowerSGD's rule, gradients of rank {how.rank} with what was left out before",
            "int8": "int8's rule, each replica's gradient rounded, and their sum",
            "fp8": "fp8's rule, each replica's gradient rounded, and their sum",
            "1bit": "1-bit Adam's rule, each replica's part of the momentum in one bit, and their sum",
            "1bit-lamb": "1-bit LAMB's rule, each replica's part of the momentum in one bit, and their sum",
            "topk": f"top-k's rule, {how.rate:g} of each replica's elements with what was left out before",
        }
        of = f", of {how.within} ranks each, which sum gradients whole" if how.within > 1 else ""
        return kinds[how.kind] + of
    return RULES[parallelism.pipeline_schedule or ""]


def compressed_at_once(record: PlanRecord) -> tuple[PlanRecord, str]:
    """The same plan with gradients compressed from the start, or what of it can be, and what to say of that."""
    training = record.training
    how = record.chosen.parallelism.compressed
    if not isinstance(training, Training) or how is None:
        return record, ""
    start, first = how.warm_up(training.compression_start), int(how.one_bit)  # whose first step has no variance
    if start <= first:
        return record, ""
    told = f"compressed from step {first + 1} on in place of step {start + 1}"
    return replace(record, training=replace(training, compression_start=first)), told


def drawn_by_place(record: PlanRecord) -> tuple[PlanRecord, str]:
    """The same plan with draws that follow from each element's place, as one device can draw them, and what to say of
    that; the plan itself where ranks don't draw for themselves."""
    training = record.training
    if not isinstance(training, Training) or not any(drops_by_rank(n) for b in record.model.blocks for n in b.nodes):
        return record, ""
    model = with_randomness(record.model, "global")
    told = "drawn by each element's place: what each rank draws for itself (randomness='per-rank') no one device draws"
    return replace(record, model=model, training=replace(training, randomness="global")), told


def drops(model: Model) -> bool:
    """Whether the model drops elements or draws numbers: one device is then a program that drops and draws the same,
    not the user's module."""
    return any(is_random(node) for block in model.blocks for node in block.nodes)


def draws(model: Model) -> bool:
    """Whether the model draws numbers, which stay where nothing is dropped."""
    return any(node.op == "autoplan.uniform" for block in model.blocks for node in block.nodes)
