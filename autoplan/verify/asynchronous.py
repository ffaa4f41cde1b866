"""The references of the asynchronous systems: the user's own module, trained in this process by their rule."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from autoplan.options import Parallelism, Training
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.trace.checks.modes import set_modes, wholly_evaluated
from autoplan.verify.compare import Run
from autoplan.verify.reference import backward, gradients_of, parts_of, state_of, update

Batch = Mapping[str, Tensor]


def train_by_rule(
    module: nn.Module, loss_fn: Callable | None, batch: Batch, training: Training, parallelism: Parallelism,
    microbatches: int, steps: int,
) -> Run:  # fmt: skip
    """``steps`` optimizer steps on one batch, in float64: local SGD's or PipeDream-2BW's (see
    ``runtime.optim.local_sgd`` and ``runtime.optim.weight_stashing``). Of local SGD's replicas the loss, the gradients
    and the parameters are the mean."""

    set_modes(module, training=True, switched=wholly_evaluated(module))

    def loss_of(one: nn.Module, rows: Batch) -> float:
        parts = parts_of(rows, microbatches if training.apart else 1)
        return sum(backward(one, loss_fn, part, training, 1 / len(parts)) for part in parts)

    if parallelism.steps_locally:
        assert parallelism.dp is not None and parallelism.local_steps is not None
        rows = replica_rows(batch, parallelism.dp // parallelism.folding.data, microbatches)
        outer = Outer(module, training) if parallelism.outer_optimizer else None
        return train_replicas(module, loss_of, rows, training, parallelism.local_steps, steps, outer)
    return train_on_older(module, loss_of, batch, training, steps)


def replica_rows(batch: Batch, replicas: int, microbatches: int) -> list[dict[str, Tensor]]:
    """Each replica's rows of a batch: its share of each microbatch (``runtime.data.microbatches``)."""
    shares = {name: [part.chunk(replicas) for part in value.chunk(microbatches)] for name, value in batch.items()}
    return [{name: torch.cat([s[r] for s in parts]) for name, parts in shares.items()} for r in range(replicas)]


def train_replicas(
    module: nn.Module, loss_of: Callable[[nn.Module, Batch], float], rows: Sequence[Batch], training: Training,
    every: int, steps: int, outer: Outer | None = None,
) -> Run:  # fmt: skip
    """Each on its own rows; all averaged every so many steps, or updated by an outer optimizer."""
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
        if step % every == 0 and outer is not None:
            outer.step(modules)
        elif step % every == 0:
            average(modules, optimizers)
    return Run(tuple(losses), gradients, mean_of([one.state_dict() for one in modules]))


class Outer:
    """DiLoCo's outer optimizer over what a round began with (``runtime.optim.outer_steps``)."""

    def __init__(self, module: nn.Module, training: Training) -> None:
        self.begun = copy.deepcopy(module)
        rate, momentum = training.outer_learning_rate, training.outer_momentum
        self.optimizer = torch.optim.SGD(self.begun.parameters(), rate, momentum, nesterov=True)

    def step(self, modules: Sequence[nn.Module]) -> None:
        """By the mean of what the replicas have changed; all go on from its result."""
        for begun, *replicas in zip(self.begun.parameters(), *(one.parameters() for one in modules), strict=True):
            mean = torch.stack([p.detach() for p in replicas]).mean(0)
            begun.grad = begun.detach() - mean if begun.requires_grad else None
        self.optimizer.step()
        for one in modules:
            put(one, values(self.begun))


def train_on_older(
    module: nn.Module, loss_of: Callable[[nn.Module, Batch], float], batch: Batch, training: Training, steps: int,
) -> Run:  # fmt: skip
    """Gradients at the weights before the last update, applied to the newest."""
    optimizer = build_optimizer(module.named_parameters(remove_duplicate=False), training)
    older = values(module)
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for step in range(steps):
        newest = values(module)
        put(module, older)
        optimizer.zero_grad()
        losses.append(loss_of(module, batch))
        if step == 0:
            gradients = gradients_of(module)
        put(module, newest)
        older = newest
        update(module, optimizer, training)
    return Run(tuple(losses), gradients, state_of(module))


def average(modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
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


def values(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def put(module: nn.Module, given: Sequence[Tensor]) -> None:
    for parameter, value in zip(module.parameters(), given, strict=True):
        parameter.detach().copy_(value)
