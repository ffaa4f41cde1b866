"""The rule of gradients of older weights: of stale parameter servers, and of a pipeline without a flush."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from autoplan.ir.record import PlanRecord
from autoplan.lower.after_search import program_of
from autoplan.options import Training
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.pipeline.order import update_delays
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.verify.compare import Run
from autoplan.verify.reference import gradients_of, state_of, update

Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class Lateness:
    """By how many updates the weights that a gradient is of are older than those that it changes.

    each   by the names of the user's parameters; of others ``other``
    losses  steps from a batch's to that which returns its loss
    """

    each: Mapping[str, int]
    other: int
    losses: int

    @property
    def most(self) -> int:
        return max([self.other, *self.each.values()])


def lateness(record: PlanRecord) -> Lateness:
    """Of a plan. Without a flush, a parameter is as late as its stage (``runtime.continuous``)."""
    parallelism, training = record.chosen.parallelism, record.training
    if not parallelism.continuous:
        return Lateness({}, parallelism.staleness or 0, 0)
    assert isinstance(training, Training)
    spec = ProgramSpec(program_of(record), parallelism, training)
    late, found = update_delays(spec), dict[str, int]()
    for stored in spec.lowered.parameters:
        for one in stored.members or (stored,):
            found |= dict.fromkeys((one.source, *one.aliases), late[spec.pipeline_ranks(stored)[0]])
    return Lateness(found, 0, late[0])


def train_on_older(
    module: nn.Module, loss_of: Callable[[nn.Module, Batch], float], batch: Batch, training: Training, steps: int,
    late: Lateness,
) -> Run:  # fmt: skip
    """Each parameter's gradient at the weights so many updates before the newest, applied to these. Losses are those
    that the steps return."""
    optimizer = build_optimizer(module.named_parameters(remove_duplicate=False), training)
    behind = [late.each.get(name, late.other) for name, _ in module.named_parameters()]
    versions = [values(module)] * (1 + late.most)
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for step in range(steps):
        put(module, [versions[age][place] for place, age in enumerate(behind)])
        optimizer.zero_grad()
        losses.append(loss_of(module, batch))
        if step == 0:
            gradients = gradients_of(module)
        put(module, versions[0])
        update(module, optimizer, training)
        versions = [values(module), *versions[:-1]]
    told = [losses[max(0, step - late.losses)] for step in range(steps)]
    return Run(tuple(told), gradients, state_of(module))


def values(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def put(module: nn.Module, given: Sequence[Tensor]) -> None:
    for parameter, value in zip(module.parameters(), given, strict=True):
        parameter.detach().copy_(value)
