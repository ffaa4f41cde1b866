"""Lower bounds in closed form on a candidate's step time and bytes, before any integer program of it is solved."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.cost.interleaved import is_interleaved, least_held, least_interleaved_slots
from autoplan.cost.step import (
    Sharing,
    held_microbatches,
    least_slots,
    least_slots_hidden,
    optimizer_states,
    sharing_of,
)
from autoplan.ir.choice import tensor_mesh
from autoplan.options import Inference, Training
from autoplan.search.inter_op.parameter_shares import data_axis, least_share
from autoplan.search.operator_problems import OperatorProblems
from autoplan.search.space.candidates import Candidate
from autoplan.search.space.heterogeneous import devices_of, headroom_bytes, least_uneven_slots, pace


def lower_bound(operators: OperatorProblems, candidate: Candidate) -> float:
    """Seconds that no plan of this candidate undercuts: every operator at its quickest, stages perfectly even."""
    devices = devices_of(operators.topology, candidate)
    if not devices:
        return operators.floor_s(candidate) / candidate.pp * slots(candidate, operators)
    slowest_s = operators.floors_s(candidate, operators.topology.device)
    paces = [pace(operators.floors_s(candidate, device), slowest_s) for device in devices]
    return sum(slowest_s) * uneven_slots(candidate, operators, paces)


def uneven_slots(candidate: Candidate, operators: OperatorProblems, paces: Sequence[float]) -> float:
    """Times that the chain at the slowest's pace takes in a step, at least, on ranks that are quicker. Of 1F1B, which
    hides forwards of early stages, no more is said than that each rank does its work."""
    many = candidate.microbatches
    if candidate.schedule == "1f1b":
        return least_uneven_slots(paces, lambda ranks: many)
    sharing = sharing_of(operators.topology.device, candidate.pp, candidate.stage_devices)
    return least_uneven_slots(paces, lambda ranks: least_slots(ranks, many, sharing))


def slots(candidate: Candidate, operators: OperatorProblems) -> float:
    """Slots of a step at least: times that a stage's share of a microbatch takes in it."""
    sizes = (candidate.pp, candidate.microbatches, candidate.virtual_stages)
    key = (candidate.schedule, *sizes, candidate.stage_devices)
    if key not in operators.slots:
        sharing = sharing_of(operators.topology.device, candidate.pp, candidate.stage_devices)
        operators.slots[key] = slots_of(candidate.schedule, *sizes, sharing)
    return operators.slots[key]


def slots_of(schedule: str, ranks: int, microbatches: int, virtual_stages: int, sharing: Sharing) -> float:
    if is_interleaved(schedule):
        return least_interleaved_slots(schedule, ranks, microbatches, virtual_stages, sharing)
    if sharing.gain == 1 and schedule == "1f1b":
        return least_slots_hidden(ranks, microbatches)
    return least_slots(ranks, microbatches, sharing)


def least_bytes(operators: OperatorProblems, candidate: Candidate, training: Training | Inference) -> float:
    """Bytes that the fullest stage of this candidate holds at least: its share of the states; of every segment that may
    be recomputed its input; and all that one of them keeps, beside its largest result and that one's gradient. Or the
    largest result of any with its gradient. Less what devices hold beyond the smallest of several kinds."""
    sizes, ways = operators.sizes, candidate.stage_devices * candidate.microbatches
    prices = operators.prices(tensor_mesh(candidate.mesh), candidate.schedule)
    data = data_axis(candidate, prices, optimizer_states(training))
    share = least_share(data, optimizer_states(training), candidate, bool(operators.prepared.by_rows))
    share *= not operators.prepared.caches_tables  # of which any part may lie elsewhere
    states = sizes.parameters * share + sizes.frozen * data.frozen_share(data.wide)
    states /= candidate.operator_ways * candidate.pp
    if is_interleaved(candidate.schedule):
        flight = least_held(candidate.schedule, candidate.pp, candidate.microbatches)
    else:
        flight = held_microbatches(candidate.schedule, candidate.pp, candidate.microbatches)
    inputs = sizes.inputs * sizes.repeated / candidate.pp * sum(flight) / len(flight)
    kept = (inputs + sizes.rebuilt) / ways if operators.prepared.training else 0.0
    devices = devices_of(operators.topology, candidate)
    headroom = [headroom_bytes(operators.topology, device) for device in devices] or [0]
    return max(states + kept - sum(headroom) / len(headroom), 2 * sizes.largest / ways - max(headroom))
