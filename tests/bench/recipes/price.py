"""One job's plans: freely, and as each of its recipes pins it. The model is traced once."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date

import torch

from autoplan.cluster import ClusterSpec
from autoplan.compile import traced_model
from autoplan.errors import AutoplanError
from autoplan.models.inputs import resolve_inputs
from autoplan.models.named import resolve_model
from autoplan.options import Parallelism, Training
from autoplan.report.words import choice_text
from autoplan.search.chosen import choose
from autoplan.search.driver import best_plan
from autoplan.search.explain.does_not_fit import leanest, needs
from autoplan.search.space.batch_moves import with_batch_moves
from autoplan.search.state import SearchState, begin
from autoplan.trace.initialise import given
from tests.bench.recipes.adapters import with_adapters
from tests.bench.recipes.row import Job, Recipe


@dataclass(frozen=True)
class Planned:
    """A plan, or why there is none.

    cpu_s  that finding it took of the processor, tracing left out
    """

    plan: str = ""
    step_s: float = 0.0
    mfu: float = 0.0
    memory_bytes: int = 0
    cpu_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class JobPlans:
    """Ours, and theirs by a recipe's name.

    day         on which they were planned
    wall_bytes  of a device, that a plan may fill
    peak_bytes  of this process
    """

    ours: Planned
    theirs: dict[str, Planned]
    wall_bytes: int
    peak_bytes: int
    day: str

    def to_dict(self) -> dict:
        return asdict(self)


def job_plans_of(data: dict) -> JobPlans:
    """``JobPlans.to_dict`` undone."""
    theirs = {name: Planned(**one) for name, one in data["theirs"].items()}
    return JobPlans(Planned(**data["ours"]), theirs, data["wall_bytes"], data["peak_bytes"], data["day"])


def plan_job(job: Job, recipes: Sequence[Recipe]) -> JobPlans:
    torch.set_num_threads(1)
    cluster = ClusterSpec.of(job.cluster)
    training = Training(precision="bf16-mixed", compile=cluster.profile()[0].compiles)
    request = resolve_model(job.model, job.settings, batch=job.batch, seq=job.seq)
    module = given(request.model).module
    if job.adapters:
        module = with_adapters(module, job.adapters)
    inputs = resolve_inputs(module, request.example_inputs, cluster.devices)
    model = with_batch_moves(traced_model(module, inputs, request.loss_fn, training))
    work = begin(model, cluster, training, Parallelism())
    theirs = {recipe.name: planned(work, recipe.pins) for recipe in recipes}
    ours = planned(work, Parallelism())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return JobPlans(ours, theirs, cluster.usable_bytes, peak, date.today().isoformat())


def planned(work: SearchState, pins: Parallelism) -> Planned:
    """The best plan under some pins; what an error says where there is none."""
    start = time.process_time()
    try:
        own = begin(work.prepared.model, work.cluster, work.training, pins)
        best = best_plan(own, pins)
        if best is None:
            return Planned(reason=f"doesn't fit: {needs(own, leanest(own, pins))}", cpu_s=time.process_time() - start)
        chosen = choose(best, own)
    except AutoplanError as error:
        return Planned(reason=str(error), cpu_s=time.process_time() - start)
    predicted = chosen.predicted
    return Planned(
        choice_text(chosen, own.prepared.model), predicted.step_time_s, predicted.mfu,
        max(memory.total for memory in predicted.peak_bytes), time.process_time() - start,
    )  # fmt: skip
