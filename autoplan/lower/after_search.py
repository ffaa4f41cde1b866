"""The passes that follow the search: lower, typecheck, replicas that step alone, microbatches with their own losses."""

from autoplan.ir.choice import Chosen
from autoplan.ir.graph import Model
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Lowered
from autoplan.lower.lowering import lower
from autoplan.lower.microbatch_losses import each_apart
from autoplan.lower.replicas import on_their_own
from autoplan.lower.typecheck import typecheck


def typed_program(model: Model, chosen: Chosen, apart: bool = False) -> Lowered:
    """The typed program of a choice, its layouts proven.

    apart  each microbatch has its own statistics (``Training.statistics``)

    Raises LayoutError where the layouts don't follow from one another, ParallelismError where replicas are to step
    alone (``local_steps``, ``gossip``), or have means of their own (``backups``, ``ahead``), and an operator joins
    their rows.
    """
    program, p = lower(model, chosen), chosen.parallelism
    typecheck(program, apart)
    asked = f"gossip={p.gossip!r}" if p.gossip else f"local_steps={p.local_steps}"
    asked = f"backups={p.backups}" if p.backups else f"ahead={p.ahead!r}" if p.ahead else asked
    program = on_their_own(program, asked) if p.replica_mean_loss else program
    return each_apart(program) if apart else program


def program_of(record: PlanRecord) -> Lowered:
    """The typed program of a plan."""
    return typed_program(record.model, record.chosen, record.training.microbatch_statistics)
