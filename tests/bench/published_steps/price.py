"""The plans of rows that share a trace, each under its own pins, cluster and training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce

import torch

from autoplan.compile import traced_model
from autoplan.errors import AutoplanError
from autoplan.ir.graph import Block, Model, Node, Ref
from autoplan.ir.randomness import with_randomness
from autoplan.models.inputs import resolve_inputs
from autoplan.models.named import resolve_model
from autoplan.options import Training
from autoplan.report.words import choice_text
from autoplan.search.chosen import choose
from autoplan.search.driver import fastest
from autoplan.search.explain.does_not_fit import leanest, needs
from autoplan.search.space.batch_moves import with_batch_moves
from autoplan.search.state import begin, candidates
from autoplan.trace.initialise import given
from tests.bench.published_steps.job import Job, Traced
from tests.bench.published_steps.traits import LOSS, traits

CAST = "aten.to.dtype"
BOUNDLESS = 1e15  # bytes of a device: the time of a row that doesn't fit in ours, which ran in theirs


@dataclass(frozen=True)
class Planned:
    """What ``parallelize`` says of a row.

    step_s, peak_bytes  of the plan; of one that doesn't fit, as if memory had no end
    last_bytes          of the last stage, whose rank writes many logs
    fits                within what the device's profile leaves to tensors
    reason              why there is no plan; "" where there is one
    cpu_s               that it took, the trace left out
    """

    plan: str = ""
    step_s: float = 0.0
    peak_bytes: int = 0
    last_bytes: int = 0
    fits: bool = False
    reason: str = ""
    cpu_s: float = 0.0

    def to_dict(self) -> dict:
        return asdict(self)


def plan_all(traced: Traced, jobs: Sequence[Job]) -> list[Planned]:
    """The plans of jobs whose trace is this one."""
    torch.set_num_threads(1)
    try:
        model = trace(traced, jobs[0])
    except AutoplanError as error:
        return [Planned(reason=str(error)) for _ in jobs]
    return [planned(model, job) for job in jobs]


def plan_group(group: tuple[Traced, list[Job]]) -> tuple[list[Job], list[Planned]]:
    """Jobs that share a trace with their plans: what a process of a pool is sent."""
    return group[1], plan_all(*group)


def trace(traced: Traced, job: Job) -> Model:
    request = resolve_model(traced.model, traced.settings, batch=traced.batch, seq=traced.seq)
    module = given(request.model).module
    if traced.whole:
        for part in module.modules():
            if getattr(part, "is_causal", False):
                part.is_causal = False  # type: ignore[assignment]
    inputs = resolve_inputs(module, request.example_inputs, job.cluster.devices)
    training = Training(precision=traced.precision)
    model = with_batch_moves(traced_model(module, inputs, request.loss_fn, training))
    model = with_randomness(model, "per-rank")  # as every one of these trainers draws
    changes = [change for given, change in ((traced.apart, dropped_apart), (traced.lean, lean_loss)) if given]
    return replace(model, blocks=tuple(reduce(lambda made, change: change(made), changes, b) for b in model.blocks))


def dropped_apart(block: Block) -> Block:
    """The block with a view between each softmax and the dropout of its result: no kernel goes across it."""
    softmax = {node.name: node for node in block.nodes if "softmax" in node.op}
    nodes: list[Node] = []
    for node in block.nodes:
        scores = next((softmax[name] for name in node.operands if name in softmax and "dropout" in node.op), None)
        if scores is not None:
            view = f"{scores.name}_view"
            nodes.append(Node(view, "aten.reshape.default", (Ref(scores.name), scores.type.shape), (), scores.type))
            own = Ref(scores.name)
            node = replace(node, args=tuple(Ref(view) if arg == own else arg for arg in node.args))
        nodes.append(node)
    return replace(block, nodes=tuple(nodes))


def lean_loss(block: Block) -> Block:
    """The block whose cross-entropy reads logits as the head makes them, with no cast to float32 between. Its kernels
    are priced as those of a loss on 16 bits; what it holds is ``ONE_KERNEL``."""
    nodes = {node.name: node for node in block.nodes}
    made: list[Node] = []
    for node in block.nodes:
        cast = nodes.get(node.operands[0]) if node.op == LOSS else None
        if cast is not None and cast.op == CAST:
            node = replace(node, args=(cast.args[0], *node.args[1:]))
        made.append(node)
    read = {name for node in made for name in node.operands} | set(block.outputs)
    return replace(block, nodes=tuple(node for node in made if node.op != CAST or node.name in read))


def planned(model: Model, job: Job) -> Planned:
    """The fastest plan under a job's pins, whether or not it fits."""
    with traits(job, model):
        return fastest_plan(model, job)


def fastest_plan(model: Model, job: Job) -> Planned:
    start = time.process_time()
    try:
        work = begin(model, job.cluster, job.training, job.pins)
        limit = float(job.cluster.usable_bytes)
        best, why = fastest(work, candidates(work.limits, job.pins), limit), ""
        if best is None:
            why = f"needs {needs(work, leanest(work, job.pins))}"
            work = begin(model, job.cluster, job.training, job.pins)
            best = fastest(work, candidates(work.limits, job.pins), BOUNDLESS)
        if best is None:
            return Planned(reason="no plan of these axes", cpu_s=time.process_time() - start)
        chosen = choose(best, work)
    except AutoplanError as error:
        return Planned(reason=str(error), cpu_s=time.process_time() - start)
    peaks = [memory.total for memory in chosen.predicted.peak_bytes]
    return Planned(
        choice_text(chosen, model), chosen.predicted.step_time_s, max(peaks), peaks[-1], not why, why,
        time.process_time() - start,
    )  # fmt: skip
