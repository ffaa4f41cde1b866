"""Turns the best evaluated candidate into ``ir.choice.Chosen``, which lowering reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autoplan.ir.choice import BlockChoice, Chosen, most_recomputed, tensor_mesh
from autoplan.ir.graph import Model
from autoplan.ir.layout import Layout, S
from autoplan.ir.mesh import TENSOR
from autoplan.option_values import AUTO
from autoplan.options import Parallelism
from autoplan.rules.strategies import Strategy
from autoplan.search.evaluate import Evaluated
from autoplan.search.intra_op.problem_inputs import SEQUENCE
from autoplan.search.predict import predict
from autoplan.search.space.batch_axes import CONSTANTS
from autoplan.search.state import SearchState


def choose(best: Evaluated, work: SearchState) -> Chosen:
    """The result in the words that lowering reads."""
    model, candidate = work.prepared.model, best.candidate
    mesh = tensor_mesh(candidate.mesh)
    on_batch = work.prepared.batch
    layouts = tuple(
        Layout.of(len(t.type.shape), {axis: split.batch[i] for axis, split in on_batch.items()}, mesh)
        for i, t in enumerate(model.batch)
    )
    constants = []
    for node in model.constants:
        chosen = {axis: split.strategies[CONSTANTS, node.name] for axis, split in on_batch.items()}
        whole = work.prepared.whole(node)
        constants.append((node.name, Strategy(tuple((a, chosen.get(a, whole)) for a in mesh.names))))
    return Chosen(
        candidate.mesh,
        parallelism_of(best),
        candidate.microbatches,
        layouts,
        tuple(constants),
        blocks_of(best, model),
        best.stages,
        predict(best, work.prepared, work.operators.topology),
    )


def blocks_of(found: Evaluated, model: Model) -> tuple[BlockChoice, ...]:
    """How each block runs; those that repeat with what they compute again, where some segment does so selectively."""
    if found.candidate.offload == "activations" or not any(stage.selective for stage in found.stages):
        return found.point.blocks
    uses = Counter(segment.block for segment in model.segments)
    return tuple(
        replace(choice, again=price.selective.again if uses[number] > 1 else ())
        for number, (choice, price) in enumerate(zip(found.point.blocks, found.point.prices, strict=True))
    )


def parallelism_of(found: Evaluated) -> Parallelism:
    """The candidate as a Parallelism with every field filled. Sequence parallelism is what the layouts say: a boundary
    activation [batch, sequence, features] split along its sequence."""
    s = found.candidate
    inputs = [layout for block in found.point.blocks for layout in block.inputs]
    return Parallelism(
        **s.sizes,
        zero=s.zero,
        micro_batch=s.rows,
        pipeline_schedule=s.schedule,
        virtual_stages=s.virtual_stages,
        recompute="none" if s.offload == "activations" else recomputation(found),
        sequence_parallel=s.tp > 1 and any(splits_sequence(layout) for layout in inputs),
        offload=None if s.offload == "none" else s.offload,
        tensor=s.factors,
        cp_attention=s.cp_attention or None,
        dp_replicate=s.dp_replicate,
        tensor_system=s.tensor_system or None,
        tp_overlap=most_chunks(found),
        ep_overlap=exchange_of(found),
        local_steps=s.local_steps if s.local_steps > 1 else None,
        outer_optimizer=s.outer_optimizer or None,
        gossip=s.gossip or None,
        compression=s.compressed.kind if s.compressed else None,
        compression_rank=(s.compressed.rank or None) if s.compressed else None,
        compression_rate=(s.compressed.rate or None) if s.compressed else None,
        compression_within=s.compressed.within if s.compressed and s.compressed.within > 1 else None,
        servers=s.servers or None,
        staleness=s.versions - 1 if s.servers else None,
        backups=s.backups or None,
        ahead=s.ahead or None,
        all_reduce=found.stage_model.data.all_reduce or None,
        tables=s.tables or None,
        table_cache=s.table_cache if s.tables else None,
        table_misses=s.table_misses if s.tables else None,
    )


def most_chunks(found: Evaluated) -> int | str | None:
    """Into how many chunks redistributions beside products are cut; None where none is. Pinned it is the same again."""
    hops = (hop for block in found.point.blocks for hop in block.hops)
    most = max((step.chunks for hop in hops for step in hop.steps or ()), default=1)
    if most == 1:
        return None
    return AUTO if len(found.stage_model.data.prices.chunks) > 1 else most


def exchange_of(found: Evaluated) -> int | str | None:
    """How mixtures' tokens travel, as ``Parallelism.ep_overlap``; None where all travel whole, beside nothing."""
    used = {how for block in found.point.blocks for _, how in block.exchanges}
    asked = found.stage_model.data.prices.exchanges
    return None if not used else AUTO if len(asked) > 1 else used.pop()


def splits_sequence(layout: Layout) -> bool:
    """Whether an activation [batch, sequence, features] is split along its sequence on a tensor axis."""
    return layout.rank == 3 and any(layout.state(a) == S(SEQUENCE) for a in layout.axes if a in TENSOR)


def recomputation(found: Evaluated) -> str:
    """What all repeated segments do; "auto" where they differ, so that pinned it is the same plan again."""
    most, repeated = most_recomputed(found.stages), int(found.stage_model.chain.repeated.sum())
    alike = sum(stage.recompute if most == "full" else stage.selective for stage in found.stages)
    return most if most == "none" or alike == repeated else "auto"
