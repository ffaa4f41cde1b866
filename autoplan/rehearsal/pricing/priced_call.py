"""One priced call, and what of a rank's share it is told by."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.ir.mesh import whole_axis
from autoplan.ir.typed_program import StoredParameter
from autoplan.rehearsal.pricing.priced_plan import RankShare
from autoplan.rehearsal.records import Span


@dataclass(frozen=True)
class PricedCall:
    """Calls alike.

    where    as in ``PricedCollective``: "LlamaDecoderLayer o_proj", "gradients", "stage 0 -> 1"
    kind     as it is issued: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send", "receive"
    span     of its group
    bytes    the size it is known by: of a gather the result's, of all others what one rank puts in
    count    in one step of the rank
    seconds  of one
    parts    the program may issue it in several parts, or as several together: the bytes of all are compared
    padding  bytes that the program puts in beside: what aligns gradients in their buckets, and counts them; what makes
             a parameter's rows divide
    unsized  the bytes follow from the batch's values, so that the number of calls alone is known
    sometimes  it isn't in every step, so that none of it may be there
    rounding bytes by which one may be larger or smaller than that
    """

    where: str
    kind: str
    span: Span
    bytes: int
    count: int
    seconds: float = 0.0
    parts: bool = False
    padding: int = 0
    unsized: bool = False
    sometimes: bool = False
    rounding: int = 0


def held(share: RankShare) -> list[StoredParameter]:
    """The parameters of a rank that have gradients."""
    stages = set(share.stages)
    return [p for p in share.plan.lowered.parameters if p.trainable and stages.intersection(p.stages)]


def span(share: RankShare, axes: str) -> Span:
    """Of the group over these axes, as far as the mesh has them."""
    return share.plan.span([axis for axis in axes.split(",") if whole_axis(axis) in share.plan.mesh])


def summed_over_operators(share: RankShare, parameter: StoredParameter) -> tuple[str, ...]:
    """The operator axes over which its gradient is summed; of one that isn't trained those along which it is whole."""
    axes, mesh = share.plan.mesh.operator_axes, share.plan.mesh
    if not parameter.trainable:
        return tuple(axis for axis in axes if mesh.size(axis) > 1 and parameter.layout.state(axis).kind != "S")
    return tuple(axis for axis in axes if axis in parameter.reduce_axes)
