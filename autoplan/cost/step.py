"""Seconds and bytes of what happens once a step, and of a whole schedule."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autoplan.cost.gathered_optimizer import GATHERED
from autoplan.cost.interleaved import is_interleaved, splits
from autoplan.cost.operators.operator_seconds import Operator, price_operator
from autoplan.cost.zero_costs import DataAxis
from autoplan.ir.graph import Model, Parameter
from autoplan.ir.mesh import Mesh
from autoplan.option_values import OF_OPTIMIZER, ON_DISK, ROWWISE
from autoplan.options import Inference, Training
from autoplan.rules.strategies import Strategy
from cost_models.compute import update_seconds
from cost_models.hardware import Device, Topology
from cost_models.offload import disk_update_seconds, host_update_seconds
from cost_models.optimizers import OPTIMIZERS
from cost_models.pipeline import AHEAD, ASYNCHRONOUS, Run, Timeline, in_flight, runs, simulate
from cost_models.pipeline.schedule import gradients_held, staleness, weight_versions
from cost_models.pipeline.shared import Sharing, shared_runs, shared_step_seconds

CLIPPING_PASSES = 3.0   # gradients are read for their norm, then read and written scaled
UNSCALING_PASSES = 2.0  # gradients are read and written divided by the loss' scale


def stored_ratio(training: Training | Inference) -> float:
    """Bytes in which masters and gradients are stored for each byte of what is computed with (``Prices.stored``)."""
    return 2.0 if isinstance(training, Training) and training.mixed else 1.0


REDUCED_BYTES = {"fp32": 4, "bf16": 2}
USED_BYTES = {"fp64": 8, "fp32": 4}


def reduced_ratio(training: Training | Inference) -> float | None:
    """Bytes in which data and context axes sum gradients for each byte in which parameters are used; None where no
    dtype is asked for (``Prices.reduced``)."""
    if isinstance(training, Inference) or training.reduce_dtype is None:
        return None
    return REDUCED_BYTES[training.reduce_dtype] / USED_BYTES.get(training.precision, 2)


def optimizer_states(training: Training | Inference, model: Model | None = None, ways: float = 1.0) -> float:
    """Elements of optimizer state for each parameter element: the mean over a model's parameters; without one, and
    where groups have optimizers of their own (``states_beyond``), what it is at least.

    ways  ranks over which a parameter is shared out. Rows and columns that stand for a matrix (Adafactor's) every rank
          has whole, so that an element of its part comes with as many times more
    """
    if isinstance(training, Inference):
        return 0
    if len(training.optimizers) > 1:
        trained = [p for p in model.parameters if p.trainable] if model is not None else []
        if not trained:
            return min(whole_copies(training.updating(number)) for number in range(1 + len(training.groups)))
        return min(states_of(training, parameter) for parameter in trained)
    by_shape = model is not None and training.optimizer in (*GATHERED, ROWWISE)  # beside Muon vectors have AdamW
    trainable = [p for p in model.parameters if p.trainable] if model is not None and by_shape else []
    total = sum(p.type.elements for p in trainable)
    if not total:
        return whole_copies(training)
    if training.optimizer == ROWWISE:
        return sum(map(rows_of, trainable)) / total
    if training.optimizer == "muon":
        return sum(p.type.elements * (1 if len(p.type.shape) == 2 else 2) for p in trainable) / total
    return sum(factored_elements(p.type.shape) * (ways if len(p.type.shape) > 1 else 1) for p in trainable) / total


def states_of(training: Training, parameter: Parameter) -> float:
    """The same of one parameter, whose group may have an optimizer of its own."""
    how = training.updating(training.group_of(parameter.names))
    return rows_of(parameter) / parameter.type.elements if how.optimizer == ROWWISE else whole_copies(how)


def states_beyond(training: Training | Inference, model: Model) -> dict[str, float]:
    """By parameter what it has more than ``optimizer_states`` says; empty where one optimizer updates all."""
    if isinstance(training, Inference) or len(training.optimizers) == 1:
        return {}
    least = optimizer_states(training, model)
    return {p.name: more for p in model.parameters if p.trainable and (more := states_of(training, p) - least)}


def rows_of(parameter: Parameter) -> int:
    """Accumulators of row-wise Adagrad: of rows along the last dim, of a vector's elements; of boxes of tables that lie
    in one parameter their rows."""
    shape = parameter.type.shape
    if len(shape) == 1 and parameter.members:
        return sum(member.size[0] for member in parameter.members)
    return math.prod(shape[:-1]) if len(shape) > 1 else math.prod(shape)


def factored_elements(shape: Sequence[int]) -> int:
    """Elements of a parameter's second moment in Adafactor: rows and columns, the last two dims; a vector is whole."""
    if len(shape) < 2:
        return math.prod(shape)
    return math.prod(shape[:-2]) * (shape[-2] + shape[-1])


def whole_copies(training: Training) -> int:
    """Copies of the parameter that an optimizer keeps, options that ask for further ones counted."""
    options = training.optimizer_settings()
    moves = bool(options.get("momentum"))
    if training.optimizer == "sgd":
        return int(moves)
    further = bool(options.get("amsgrad")) + bool(options.get("centered")) + (training.optimizer == "rmsprop" and moves)
    return OPTIMIZERS[training.optimizer].copies + further


def optimizer_passes(training: Training | Inference) -> float:
    """Passes over a parameter's bytes in one update: it, its gradient and its states are read, it and they written;
    LAMB's update is computed twice, for its norm and to be applied.

    That the optimizer's kernels pass over them more often is in ``Device.update_efficiency``.
    """
    if isinstance(training, Inference):
        return 0.0
    states = max(whole_copies(training.updating(number)) for number in range(1 + len(training.groups)))
    clipping = CLIPPING_PASSES if training.clip_grad_norm is not None else 0.0
    unscaling = UNSCALING_PASSES if training.scales_loss else 0.0
    return 3 + 2 * states + clipping + unscaling + (1 + states if training.optimizer == "lamb" else 0)


FUSED = ("adam", "adamw", "sgd")
"""Optimizers of which torch has a kernel that updates a parameter in one pass over memory, on CPUs and GPUs."""


def in_one_pass(training: Training | Inference) -> bool:
    """Whether an update makes nothing beside what is stored: ``runtime.optim.optimizer.in_one_pass`` asks for such a
    kernel, unless options say otherwise."""
    if not isinstance(training, Training) or not {*training.optimizers} <= {*FUSED}:
        return False
    given = [training.updating(number).optimizer_settings() for number in range(1 + len(training.groups))]
    own = ((), *(group.options for group in training.groups))
    asked = [{**base, **dict(more)} for base, more in zip(given, own, strict=True)]
    if len(training.optimizers) == 1:  # then what a group says of foreach doesn't count beside a fused kernel
        return all(each.get("fused", "foreach" not in given[0]) for each in asked)
    return all(each.get("fused", "foreach" not in each) for each in asked)


def looks_at_all(training: Training | Inference) -> bool:
    """Whether an update looks at the gradients of all stages: for their norm, or LAMB's of each whole parameter."""
    return isinstance(training, Training) and (training.clip_grad_norm is not None or training.optimizer == "lamb")


def update_s(bytes: float, passes: float, data: DataAxis, states: float) -> float:
    """Seconds of the optimizer over the bytes of parameter that one device updates.

    states  bytes of the optimizer's for each of these

    What is offloaded is updated on the host, at the pace of its memory. Where parameters stay on the device
    ("optimizer") their gradients go down the link before, and the updated parameters up after it, as the device holds
    them, in the open: the optimizer's step begins when the last gradient is summed, and the next forward reads every
    parameter. From and to a disk the states go meanwhile ("nvme"), and may take longer.
    """
    if not data.offloads:
        return float(update_seconds(bytes * passes, data.prices.device))
    up = bytes / data.prices.stored if data.publishes else bytes
    moved_s = data.link_s(bytes) + data.link_s(up) if data.offload in OF_OPTIMIZER else 0.0
    updated_s = moved_s + float(host_update_seconds(bytes * passes, data.host))
    if data.offload != ON_DISK:
        return updated_s
    assert data.host.disk is not None
    return max(updated_s, float(disk_update_seconds(bytes * (1 + states), data.host.disk)))


def held_microbatches(schedule: str, stages: int, microbatches: int) -> tuple[int, ...]:
    """Microbatches whose activations each stage holds at its peak; one at a time where there is no pipeline."""
    return in_flight(schedule, stages, microbatches) if stages > 1 else (1,)


def held_between_steps(
    schedule: str, stages: int, microbatches: int, ends: bool, gradient_share: float
) -> np.ndarray:
    """[stages, 2] bytes of older versions of the weights, and of gradients beside those of one batch, per byte of a
    stage's trained parameters: what a pipeline without a flush holds (``runtime.continuous``).

    ends            whether the last stage has weights in common with the first, and is as late
    gradient_share  bytes of gradients per byte of parameters
    """
    sizes = schedule, stages, microbatches
    versions, gradients, late = weight_versions(*sizes), list(gradients_held(*sizes)), staleness(*sizes)
    gradients[-1] += (late[0] - late[-1]) * ends
    return (np.array([versions, gradients]).T - 1) * (1.0, gradient_share)


def receives_ahead(device: Device) -> int:
    """Actions by which a message's receive precedes the one that reads it (``runtime.pipeline.stage_messages``). Where
    there are no streams, or devices share processors, none is counted on: messages take the processors themselves."""
    return 0 if device.blocking or device.sharers > 1 else AHEAD


def timeline(
    schedule: str, forward_s: Sequence[float], backward_s: Sequence[float], send_s: Sequence[float], microbatches: int,
    sharing: Sharing, virtual_stages: int = 1, weights_s: Sequence[float] | None = None, ahead: int = AHEAD,
) -> Timeline:  # fmt: skip
    """The schedule's timeline; without a pipeline its microbatches follow one another.

    forward_s, backward_s  of each stage, ``virtual_stages`` of them on a rank
    send_s                 of a message over each border
    weights_s              where the schedule splits the backward, the part that is the weights' gradients
    ahead                  as of ``receives_ahead``

    The bubble is what ranks wait beside messages on their way.
    """
    schedule, further = as_run(schedule, len(forward_s), virtual_stages, weights_s)
    times = (schedule, forward_s, backward_s, send_s, microbatches)
    line = simulate(*times, **further, ahead=ahead)
    full = sharing.gain == 1 or schedule in ASYNCHRONOUS  # where nothing is flushed all stages work all the time
    step_s = line.step_s if full else shared_step_seconds(*times, sharing, **further)
    spent_s = sum(line.busy_s) + sum(line.waits_s)
    idle = 1 - spent_s / (len(line.busy_s) * step_s) if step_s > 0 else 0.0
    ends_s = line.ends_s if sharing.gain == 1 else ()
    return replace(line, step_s=step_s, bubble_fraction=max(0.0, idle), ends_s=ends_s)


def after_line_s(line: Timeline, sums_s: Sequence[float], updates_s: Sequence[float]) -> float:
    """Seconds from a timeline's end to the step's: each rank sums gradients once it is done itself, and all update
    when the last one has.

    sums_s, updates_s  of each pipeline rank
    """
    ends_s = line.ends_s or [line.step_s] * len(sums_s)
    return max(end_s + sum_s for end_s, sum_s in zip(ends_s, sums_s, strict=True)) - line.step_s + max(updates_s)


def timeline_runs(
    schedule: str, forward_s: Sequence[float], backward_s: Sequence[float], send_s: Sequence[float], microbatches: int,
    sharing: Sharing, virtual_stages: int = 1, weights_s: Sequence[float] | None = None, ahead: int = AHEAD,
) -> tuple[tuple[Run, ...], ...]:  # fmt: skip
    """When each pipeline rank runs each action of ``timeline``, whose arguments it takes."""
    schedule, further = as_run(schedule, len(forward_s), virtual_stages, weights_s)
    times = (schedule, forward_s, backward_s, send_s, microbatches)
    return runs(*times, **further, ahead=ahead) if sharing.gain == 1 else shared_runs(*times, sharing, **further)


def as_run(
    schedule: str, stages: int, virtual_stages: int, weights_s: Sequence[float] | None
) -> tuple[str, dict[str, Any]]:
    """(the schedule, what ``simulate`` is told of it beside); without a pipeline that of one stage."""
    schedule = schedule if stages > 1 else "1f1b"
    count = virtual_stages if is_interleaved(schedule) else None
    return schedule, {"virtual_stages": count, "weight_s": weights_s if splits(schedule) else None}


def sharing_of(device: Device, stages: int, width: int) -> Sharing:
    """How stages of ``width`` devices each share processors: those next to each other among the device's sharers."""
    return Sharing(max(1, min(stages, device.sharers // width)), device.alone)


def least_slots(stages: int, microbatches: int, sharing: Sharing) -> float:
    """No schedule of even stages takes fewer times of one microbatch on one stage: a microbatch goes through all
    stages, and the last stage begins when the first microbatch comes to it; a stage's work is done in any case."""
    return max(float(microbatches), (microbatches + stages - 1) / sharing.gain)


FORWARD_SHARE = 0.5
"""Of a segment's time that its forward takes at most: gradients take as much or twice that."""


def least_slots_hidden(stages: int, microbatches: int) -> float:
    """The same for 1F1B, where stages may be uneven: a stage's first forwards run while the first microbatch goes on to
    the end and comes back, so that early stages may hold more.

    A step takes Σ t + (m-1)·t_k - w_k·f_k or more for every stage k, with w_k = min(m-1, d-1-k) forwards of warm-up
    (``search.inter_op.local_search``), of which the largest is least where all are equal.
    """
    more = microbatches - 1
    if more == 0:
        return float(stages)
    inverse = (1 / (more - FORWARD_SHARE * min(more, stages - 1 - k)) for k in range(stages))
    return max(float(microbatches), stages * (1 + 1 / sum(inverse)))


def straggling(nodes: int, device: Device) -> float:
    """The factor by which the slowest of many nodes holds up a step."""
    return 1 + device.straggler_per_doubling * math.log2(nodes)


def model_flops_per_s(
    blocks: Sequence[Mapping[str, Operator]], uses: Mapping[int, int], topology: Topology, training: bool
) -> tuple[float, float]:
    """(FLOPs of the model over the whole batch, peak FLOPs per second of all devices at its main dtype).

    uses  how often each block stands in the chain
    """
    by_dtype: dict[str, float] = {}
    for index, operators in enumerate(blocks):
        for operator in operators.values():
            if flops := product_flops(operator, topology.device):
                dtype = operator.operands[0].dtype
                times = uses[index] * (passes(operator) if training else 1)
                by_dtype[dtype] = by_dtype.get(dtype, 0.0) + flops * times
    if not by_dtype:
        return 0.0, 0.0
    main = max(by_dtype, key=lambda dtype: by_dtype[dtype])
    return sum(by_dtype.values()), sum(device.peak_flops_per_s[main] * count for device, count in topology.kinds)


def product_flops(operator: Operator, device: Device) -> float:
    """FLOPs of one forward of an operator over a whole microbatch, on one device: of its matmuls."""
    return price_operator(operator, Strategy(()), Mesh(()), device, fuses=True, training=False).flops


FORWARD_AND_BACKWARD = 3  # FLOPs of a step over those of its forward: each matmul has two gradients


def passes(operator: Operator) -> int:
    """FLOPs of a step over those of an operator's forward. Of a product with a weight that isn't trained one gradient
    is left, or none where nothing is trained before it."""
    frozen = any(weighs and not carries for weighs, carries in zip(operator.weighs, operator.carries, strict=True))
    return 1 + any(operator.carries) if frozen else FORWARD_AND_BACKWARD
