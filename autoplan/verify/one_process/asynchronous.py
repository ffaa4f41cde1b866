"""The references of the asynchronous systems: the user's own module, trained in this process by their rule."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from autoplan.ir.record import PlanRecord
from autoplan.lower.after_search import program_of
from autoplan.options import Training
from autoplan.runtime.optim.asynchronous.arrivals import in_turn
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.parallel.servers.backups import in_turns
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.trace.checks.modes import set_modes, wholly_evaluated
from autoplan.verify.compare import Run
from autoplan.verify.one_process.applied_arrivals import replay
from autoplan.verify.one_process.compressed_steps import Compressed, train_compressed
from autoplan.verify.one_process.older_weights import lateness, put, train_on_older, values
from autoplan.verify.one_process.replica_gradients import replica_rows
from autoplan.verify.reference import backward, gradients_of, parts_of, state_of, update

Batch = Mapping[str, Tensor]
Meet = Callable[[Sequence[nn.Module], Sequence[torch.optim.Optimizer], int], None]
"""What replicas and their optimizers do in a meeting of this number."""


def train_by_rule(
    module: nn.Module, loss_fn: Callable | None, batch: Batch, training: Training, record: PlanRecord, steps: int
) -> Run:
    """``steps`` optimizer steps on one batch, in float64: local SGD's, a compression's, or of older weights (see
    ``runtime.optim.asynchronous`` and ``runtime.parallel.compression``). Of local SGD's replicas the loss, the
    gradients and the parameters are the mean."""
    parallelism, microbatches = record.chosen.parallelism, record.chosen.microbatches
    set_modes(module, training=True, switched=wholly_evaluated(module))

    def loss_of(one: nn.Module, rows: Batch) -> float:
        parts = parts_of(rows, microbatches if training.microbatch_statistics else 1)
        return sum(backward(one, loss_fn, part, training, 1 / len(parts)) for part in parts)

    if parallelism.steps_locally:
        assert parallelism.dp is not None
        rows = replica_rows(batch, parallelism.dp // parallelism.folding.data, microbatches)
        meet = Outer(module, training).meet if parallelism.outer_optimizer else average
        meet = partial(gossip, parallelism.gossip) if parallelism.gossip else meet
        return train_replicas(module, loss_of, rows, training, parallelism.local_steps or 1, steps, meet)
    if parallelism.backups:
        assert parallelism.dp is not None
        rows = replica_rows(batch, parallelism.dp, microbatches)
        return train_with_backups(module, loss_of, rows, training, parallelism.dp - parallelism.backups, steps)
    if parallelism.ahead:
        assert parallelism.dp is not None
        rows = replica_rows(batch, parallelism.dp, microbatches)
        spec = ProgramSpec(program_of(record), parallelism, training)
        orders = dict.fromkeys(spec.owners.values(), in_turn(parallelism.dp, steps))
        return replay(module, loss_of, lambda worker, _: rows[worker], training, spec, orders)
    if parallelism.compressed:

        def one_loss(one: nn.Module, rows: Batch) -> float:
            return backward(one, loss_fn, rows, training)

        return train_compressed(module, one_loss, batch, training, Compressed(module, record, training.seed), steps)
    return train_on_older(module, loss_of, batch, training, steps, lateness(record))


def train_replicas(
    module: nn.Module, loss_of: Callable[[nn.Module, Batch], float], rows: Sequence[Batch], training: Training,
    every: int, steps: int, meet: Meet,
) -> Run:  # fmt: skip
    """Each on its own rows; every so many steps they meet: are averaged, or updated by an outer optimizer."""
    modules = [copy.deepcopy(module) for _ in rows]
    optimizers = [build_optimizer(one.named_parameters(remove_duplicate=False), training) for one in modules]
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for step in range(1, steps + 1):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses.append(sum(map(loss_of, modules, rows)) / len(rows))
        if step == 1:
            gradients = mean_of([{n: p.grad for n, p in one.named_parameters()} for one in modules])
        for one, optimizer in zip(modules, optimizers, strict=True):
            update(one, optimizer, training)
        if step % every == 0:
            meet(modules, optimizers, step // every - 1)
    return Run(tuple(losses), gradients, mean_of([one.state_dict() for one in modules]))


def train_with_backups(
    module: nn.Module, loss_of: Callable[[nn.Module, Batch], float], rows: Sequence[Batch], training: Training,
    first: int, steps: int,
) -> Run:  # fmt: skip
    """By the mean of so many workers' gradients, of each worker's own mean; all take turns in being dropped."""
    optimizer = build_optimizer(module.named_parameters(remove_duplicate=False), training)
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(sum(loss_of(module, rows[n]) for n in in_turns(step, len(rows), first)) / first)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(first)
        if step == 0:
            gradients = gradients_of(module)
        update(module, optimizer, training)
    return Run(tuple(losses), gradients, state_of(module))


class Outer:
    """DiLoCo's outer optimizer over what a round began with (``runtime.optim.asynchronous.diloco``)."""

    def __init__(self, module: nn.Module, training: Training) -> None:
        self.begun = copy.deepcopy(module)
        rate, momentum = training.outer_learning_rate, training.outer_momentum
        self.optimizer = torch.optim.SGD(self.begun.parameters(), rate, momentum, nesterov=True)

    def meet(self, modules: Sequence[nn.Module], *_: object) -> None:
        """By the mean of what the replicas have changed; all go on from its result."""
        for begun, *replicas in zip(self.begun.parameters(), *(one.parameters() for one in modules), strict=True):
            mean = torch.stack([p.detach() for p in replicas]).mean(0)
            begun.grad = begun.detach() - mean if begun.requires_grad else None
        self.optimizer.step()
        for one in modules:
            put(one, values(self.begun))


def gossip(graph: str, modules: Sequence[nn.Module], _: object, number: int) -> None:
    """Each replica's mean with its neighbours; ``number``: of the meeting, from 0."""
    replicas = len(modules)
    places = {1, replicas - 1} if graph == "ring" else {2 ** (number % math.ceil(math.log2(replicas)))}
    before = [values(one) for one in modules]
    for n, one in enumerate(modules):
        near = [before[n], *(before[(n - place) % replicas] for place in places)]
        put(one, [torch.stack(each).mean(0) for each in zip(*near, strict=True)])


def average(modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], *_: object) -> None:
    """Parameters and the optimizer's moments, which have an element for each of theirs."""
    for parameters in zip(*(one.parameters() for one in modules), strict=True):
        states = [optimizer.state.get(p, {}) for optimizer, p in zip(optimizers, parameters, strict=True)]
        fields = [f for f, v in states[0].items() if isinstance(v, Tensor) and v.shape == parameters[0].shape]
        for tensors in (list(parameters), *([state[f] for state in states] for f in fields)):
            mean = torch.stack([tensor.detach() for tensor in tensors]).mean(0)
            for tensor in tensors:
                tensor.detach().copy_(mean)


def mean_of(several: Sequence[Mapping[str, Tensor | None]]) -> dict[str, Tensor]:
    """Of the tensors that all have; what isn't floating is alike everywhere."""
    found = {}
    for name, first in several[0].items():
        tensors = [each for one in several if (each := one[name]) is not None]
        if first is not None and len(tensors) == len(several):
            found[name] = torch.stack(tensors).mean(0) if first.is_floating_point() else first.clone()
    return found
