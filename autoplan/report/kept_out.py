"""Why a plan that is quicker than the one chosen isn't the one chosen."""

from __future__ import annotations

from autoplan.ir.record import PlanRecord
from autoplan.option_values import CONTINUOUS, ON_DISK
from autoplan.options import Parallelism


def kept_out(record: PlanRecord, quicker: Parallelism) -> str:
    """The reason, a clause: what of it the search doesn't try by itself, else what was asked, else the gap it left."""
    asked = record.asked
    kinds = unasked(asked.parallelism, quicker)
    if kinds:
        return f"the search doesn't try {' or '.join(kinds)} by itself"
    against = any(getattr(quicker, name) != value for name, value in asked.parallelism.pinned().items())
    if asked.system or against or asked.constraints:
        return "what was pinned or constrained kept it out"
    return f"the search stopped within {100 * record.search.optimality_gap:.1f}% of its bound"


def unasked(asked: Parallelism, p: Parallelism) -> list[str]:
    """What a parallelism has that no candidate of the search has unless it is pinned."""
    kinds = (
        ("servers", bool(p.servers), "parameter servers"),
        ("compression", p.compression is not None, "compressed gradients"),
        ("local_steps", p.steps_locally, "replicas that step by themselves"),
        ("backups", bool(p.backups), "backup workers"),
        ("ahead", bool(p.ahead), "gradients applied as they arrive"),
        ("pipeline_schedule", p.continuous, f"a pipeline without a flush ({', '.join(CONTINUOUS)})"),
        ("tensor", len(p.tensor_sizes) > 1, "several tensor axes"),
        ("tensor_system", p.tensor_system is not None, f"tensor_system={p.tensor_system!r}"),
        ("offload", p.offload == ON_DISK, "states on disks"),
        ("tp_overlap", p.tp_overlap not in (None, 1), "tensor collectives in chunks"),
        ("ep_overlap", p.ep_overlap not in (None, 1), "tokens beside the shared expert"),
    )
    return [words for name, has, words in kinds if has and getattr(asked, name) is None]
