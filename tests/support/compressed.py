"""PowerSGD's rule in one process, with nothing but torch, the user's module and the draws that factors begin with.

Vogels et al. 2019, algorithm 1 on the whole batch's gradient with one error: what all ranks' compression comes to,
since it is linear in the gradients (their lemma 3). Each box of a parameter that ranks hold is a matrix by itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autoplan.plan import Plan
from autoplan.runtime.parallel.own_box import part_of
from autoplan.runtime.parallel.powersgd import first_factor
from tests.support.asynchronous import Batch, How, Simulated


@dataclass(frozen=True)
class Box:
    """A part of a parameter of the user's module.

    begins  [columns, rank]: the factor Q before the first step
    until   the step from which on it is summed whole, and what was left out of it is dropped
    """

    name: str
    slices: tuple[slice, ...]
    begins: Tensor
    until: int = 10**9


def powersgd(
    module: nn.Module, batches: Sequence[Batch], boxes: Sequence[Box], how: How, start: int = 0
) -> Simulated:
    """One device's steps with compressed gradients, after ``start`` steps with whole ones."""
    module = copy.deepcopy(module)
    optimizer = how.optimizer(module)
    parameters = dict(module.named_parameters())
    errors = [torch.zeros_like(parameters[box.name][box.slices]) for box in boxes]
    factors = [box.begins.clone() for box in boxes]
    losses = []
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = how.loss(module, batch)
        loss.backward()
        for n, box in enumerate(boxes):
            if not start <= step < box.until:
                continue
            gradient = parameters[box.name].grad
            assert gradient is not None
            matrix = (gradient[box.slices] + errors[n]).flatten(1)
            left = torch.linalg.qr(matrix @ factors[n]).Q
            factors[n] = matrix.t() @ left
            sent = left @ factors[n].t()
            errors[n] = (matrix - sent).view_as(errors[n])
            gradient[box.slices] = sent.view_as(errors[n])
        how.update(module, optimizer)
        losses.append(float(loss.detach()))
    return Simulated(losses, {n: v.clone() for n, v in module.state_dict().items() if v.is_floating_point()})


def boxes_of(plan: Plan) -> list[Box]:
    """What of a plan's parameters goes as factors: the boxes of those that one stage has, in which the factors have at
    most half the elements."""
    lowered, rank = plan.lowered, plan.parallelism.low_rank
    mesh, found = lowered.mesh, []
    for stored in lowered.parameters:
        rows, columns = (*stored.local_shape, 1)[0], math.prod(stored.local_shape[1:])
        if len(stored.local_shape) < 2 or len(set(stored.stages)) > 1 or 2 * rank * (rows + columns) >= rows * columns:
            continue
        ranks = [{a.name: mesh.coordinate(n, a.name) for a in mesh.device_axes} for n in range(mesh.devices)]
        for part in dict.fromkeys(part_of(stored.type.shape, stored.layout, mesh, rank) for rank in ranks):
            place = part.shifted(stored.dim, stored.start) if stored.dim >= 0 else part
            begins = first_factor(stored.name, part, rank, plan.record.training.seed, torch.float64)
            found.append(Box(stored.source, place.slices, begins))
    return found
