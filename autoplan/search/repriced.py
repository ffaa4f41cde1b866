"""A plan priced again from its record: what the search compared, for whoever holds the plan alone."""

from __future__ import annotations

from dataclasses import fields

from autoplan.ir.choice import tensor_mesh
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism
from autoplan.search.evaluate import Evaluated, finish
from autoplan.search.intra_op.intra_op_plan import priced_plan
from autoplan.search.intra_op.problem_inputs import OperatorInputs
from autoplan.search.intra_op.solve import Solution
from autoplan.search.space.candidates import Candidate
from autoplan.search.state import SearchState, begin

UNSOLVED = Solution((), (), 0.0, 0.0, 0.0, 0.0, 0.0)  # the record says what was chosen, so nothing is solved


def repriced(record: PlanRecord) -> tuple[SearchState, Evaluated]:
    """(what stands before a search, the plan as the search evaluated it): ``step_s`` is the predicted step time."""
    state = begin(record.model, record.cluster, record.training, Parallelism())
    candidate = candidate_of(record)
    mesh = tensor_mesh(record.chosen.mesh)
    form = OperatorInputs(state.prepared, mesh, {}, state.operators.prices(mesh, candidate.schedule))
    point = priced_plan(form, record.chosen.blocks, UNSOLVED)
    return state, finish(candidate, point, state.evaluator.costs.stage_model(candidate, point), record.chosen.stages)


def candidate_of(record: PlanRecord) -> Candidate:
    """The candidate that a plan was found for; what it recomputes is in its stages."""
    parallelism = record.chosen.parallelism
    known = {name: value for name, value in vars(parallelism).items() if value is not None}
    given = {f.name: known[f.name] for f in fields(Candidate) if f.name in known}
    folding = parallelism.folding
    mesh = parallelism.mesh()
    beside = {
        "dp": mesh.size("dp"),
        "ep": folding.data,
        "folds": folding.beside,
        "inner": folding.inner,
        "micro_batch": known["micro_batch"] * folding.data,
        "schedule": parallelism.pipeline_schedule,
        "versions": 1 + (parallelism.staleness or 0),
        "microbatches": record.chosen.microbatches,
        "recompute": "auto",
        "compressed": parallelism.compressed,
    }
    return Candidate(**{**given, **beside})
