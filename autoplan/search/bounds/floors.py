"""What no plan of a setting undercuts before anything of it is solved: seconds by its operators alone, and bytes."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.cost.interleaved import least_chunk_rounds, least_held, runs_rounds
from autoplan.cost.step import held_microbatches, least_rounds, least_rounds_hidden, optimizer_states, sharing_of
from autoplan.ir.choice import tensor_mesh
from autoplan.options import Inference, Training
from autoplan.search.inter_op.stage_model import data_axis, least_share
from autoplan.search.operator_problems import OperatorProblems
from autoplan.search.space.candidates import Candidate
from autoplan.search.space.heterogeneous import devices_of, least_uneven_rounds, pace, spare_bytes


def lower_bound(operators: OperatorProblems, setting: Candidate) -> float:
    """Seconds that no plan of this setting undercuts: every operator at its quickest, stages perfectly even."""
    devices = devices_of(operators.topology, setting)
    if not devices:
        return operators.floor_s(setting) / setting.pp * rounds(setting, operators)
    slowest_s = operators.floors_s(setting, operators.topology.device)
    paces = [pace(operators.floors_s(setting, device), slowest_s) for device in devices]
    return sum(slowest_s) * uneven_rounds(setting, operators, paces)


def uneven_rounds(setting: Candidate, operators: OperatorProblems, paces: Sequence[float]) -> float:
    """Times that the chain at the slowest's pace takes in a step, at least, on ranks that are quicker. Of 1F1B, which
    hides forwards of early stages, no more is said than that each rank does its work."""
    many = setting.microbatches
    if setting.schedule == "1f1b":
        return least_uneven_rounds(paces, lambda ranks: many)
    sharing = sharing_of(operators.topology.device, setting.pp, setting.stage_devices)
    return least_uneven_rounds(paces, lambda ranks: least_rounds(ranks, many, sharing))


def rounds(setting: Candidate, operators: OperatorProblems) -> float:
    """Times that a stage's share of a microbatch takes in a step, at least."""
    sharing = sharing_of(operators.topology.device, setting.pp, setting.stage_devices)
    if runs_rounds(setting.schedule):
        sizes = (setting.pp, setting.microbatches, setting.virtual_stages)
        return least_chunk_rounds(setting.schedule, *sizes, sharing)
    if sharing.gain == 1 and setting.schedule == "1f1b":
        return least_rounds_hidden(setting.pp, setting.microbatches)
    return least_rounds(setting.pp, setting.microbatches, sharing)


def least_bytes(operators: OperatorProblems, setting: Candidate, training: Training | Inference) -> float:
    """Bytes that the fullest stage of this setting holds at least: its share of the states; of every segment that may
    be recomputed its input; and all that one of them keeps, beside its largest result and that one's gradient. Or the
    largest result of any with its gradient. Less what devices hold beyond the smallest of several kinds."""
    sizes, ways = operators.sizes, setting.stage_devices * setting.microbatches
    prices = operators.prices(tensor_mesh(setting.mesh), setting.schedule)
    data = data_axis(setting, prices, optimizer_states(training))
    states = sizes.parameters / (setting.operator_ways * setting.pp) * least_share(data, optimizer_states(training))
    if runs_rounds(setting.schedule):
        flight = least_held(setting.schedule, setting.pp, setting.microbatches)
    else:
        flight = held_microbatches(setting.schedule, setting.pp, setting.microbatches)
    inputs = sizes.inputs * sizes.repeated / setting.pp * sum(flight) / len(flight)
    kept = (inputs + sizes.rebuilt) / ways if operators.prepared.training else 0.0
    devices = devices_of(operators.topology, setting)
    spare = [spare_bytes(operators.topology, device) for device in devices] or [0]
    return max(states + kept - sum(spare) / len(spare), 2 * sizes.largest / ways - max(spare))
