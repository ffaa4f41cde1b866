"""The order of a rank's actions under its schedule: the one by which the search prices it (``cost_models.pipeline``).

Where a new schedule goes: docs/architecture.md, "Where to look".
"""

from autoplan.errors import ParallelismError
from autoplan.option_values import CONTINUOUS
from autoplan.runtime.program_spec import PIPELINE, ProgramSpec
from cost_models.pipeline.order import Action, actions
from cost_models.pipeline.schedule import staleness

ONE_STAGE = {"gpipe": "gpipe", "1f1b": "1f1b", **dict.fromkeys(CONTINUOUS, "1f1b")}
"""Schedules by the order that they run in; those without a flush differ from 1F1B in where a step ends, and in their
weights (``runtime.pipeline.continuous``)."""


def rank_actions(spec: ProgramSpec, rank: int) -> tuple[Action, ...]:
    """What a pipeline rank runs in one step, in order. ParallelismError where the schedule can't run its stages."""
    name, ranks = schedule_of(spec), spec.size(PIPELINE)
    several = len(spec.lowered.stages) // ranks
    if name not in ONE_STAGE:
        return actions(name, rank, ranks, spec.microbatches, several)
    if several > 1:
        held = f"a rank has {several} stages, the schedule runs one"
        raise ParallelismError(f"pipeline_schedule={name!r}", held, "use pipeline_schedule='interleaved'")
    return actions(ONE_STAGE[name], rank, ranks, spec.microbatches)


def update_delays(spec: ProgramSpec) -> tuple[int, ...]:
    """For each pipeline rank of a schedule without a flush, the steps from a batch's to that whose update is by its
    gradients: ``staleness``, and where ranks have weights in common that of the first of them."""
    late = list(staleness(schedule_of(spec), spec.size(PIPELINE), spec.microbatches))
    for ranks in map(spec.pipeline_ranks, spec.lowered.parameters):
        for rank in ranks:
            late[rank] = max(late[other] for other in ranks)
    return tuple(late)


def schedule_of(spec: ProgramSpec) -> str:
    return spec.parallelism.pipeline_schedule or "gpipe"


def reads_from(action: Action, stages: int) -> int | None:
    """The stage whose message an action reads: activations, or their gradients. None where it reads none."""
    before = action.stage - 1 if action.kind == "F" else action.stage + 1
    return before if action.kind != "W" and 0 <= before < stages else None


def sends_to(action: Action, stages: int) -> int | None:
    """The stage that reads what an action makes, by an action of the same kind; None where nothing is sent."""
    after = action.stage + 1 if action.kind == "F" else action.stage - 1
    return after if action.kind != "W" and 0 <= after < stages else None

