"""The rules of the asynchronous systems in one process, with nothing but torch and the user's module.

Local SGD (McMahan et al. 2017, algorithm 1, FedAvg with every client in every round; Lin et al. 2020) and PipeDream-2BW
(Narayanan et al. 2021, section 3.1: W(t+1) = W(t) - update of the gradient at W(t-1)), both by AdamW.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autoplan.plan import Plan
from autoplan.trace.passes.precision import widened

Batch = Mapping[str, Tensor]
RATE = 1e-2
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")


@dataclass(frozen=True)
class Simulated:
    """What training left: losses of all steps, parameters after the last one."""

    losses: list[float]
    parameters: dict[str, Tensor]


@dataclass(frozen=True)
class How:
    """How a module's loss is taken and its parameters updated; its own mean and AdamW, where nothing else is said.

    clip  the norm to which gradients are clipped before each update
    """

    loss: Callable[[nn.Module, Batch], Tensor] = lambda module, batch: loss_of(module, batch)
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = lambda module: torch.optim.AdamW(
        module.parameters(), lr=RATE
    )
    clip: float | None = None

    def update(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if self.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), self.clip)
        optimizer.step()


def loss_of(module: nn.Module, batch: Batch) -> Tensor:
    """The module's own mean over valid tokens, its casts to float32 widened."""
    with widened():
        return module(**batch).loss


def replica_rows(batch: Batch, replicas: int, microbatches: int) -> list[dict[str, Tensor]]:
    """Each replica's rows: its share of each microbatch of the whole batch."""
    chunks = {name: [c.chunk(replicas) for c in value.chunk(microbatches)] for name, value in batch.items()}
    return [{n: torch.cat([c[r] for c in parts]) for n, parts in chunks.items()} for r in range(replicas)]


def averaged(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {n: torch.stack([s[n] for s in states]).mean(0) for n in states[0] if states[0][n].is_floating_point()}


def local_sgd(
    module: nn.Module, batches: Sequence[Batch], replicas: int, microbatches: int, every: int, how: How = How(),
    meet: Meet | None = None,
) -> Simulated:  # fmt: skip
    """Replicas that step by themselves; every ``every`` steps parameters and the optimizer's moments are averaged, or
    the replicas ``meet`` otherwise."""
    modules = [copy.deepcopy(module) for _ in range(replicas)]
    optimizers = [how.optimizer(m) for m in modules]
    losses = []
    for step, batch in enumerate(batches, start=1):
        found = []
        for one, optimizer, rows in zip(modules, optimizers, replica_rows(batch, replicas, microbatches), strict=True):
            optimizer.zero_grad()
            loss = how.loss(one, rows)
            loss.backward()
            how.update(one, optimizer)
            found.append(float(loss.detach()))
        losses.append(sum(found) / replicas)
        if step % every == 0:
            (meet or average)(modules, optimizers)
    return Simulated(losses, averaged([m.state_dict() for m in modules]))


def first_workers(
    module: nn.Module, batches: Sequence[Batch], workers: int, order: Sequence[Sequence[int]], microbatches: int,
    how: How = How(),
) -> Simulated:  # fmt: skip
    """Steps by the mean of the gradients of those who were done first, in each step of ``order``; each of its own mean,
    zero without a valid label (Chen et al. 2016, algorithm 4)."""
    optimizer, losses = how.optimizer(module), []
    for taken, batch in zip(order, batches, strict=True):
        rows = replica_rows(batch, workers, microbatches)
        each = [how.loss(module, rows[n]) for n in taken if bool((rows[n]["labels"] != -100).any())]
        optimizer.zero_grad()
        mean = torch.stack(each).sum() / len(taken)
        mean.backward()
        how.update(module, optimizer)
        losses.append(float(mean.detach()))
    return Simulated(losses, dict(module.state_dict()))


def workers_in_turn(
    module: nn.Module, batches: Sequence[Batch], workers: int, microbatches: int, how: How = How()
) -> Simulated:
    """Updates by one worker's gradients each (Dean et al. 2012, Downpour SGD), where workers push one after another and
    go on with what their own update made. Losses are the first worker's."""
    optimizer, losses = how.optimizer(module), []
    read = [values(module)] * workers
    for batch in batches:
        for worker, rows in enumerate(replica_rows(batch, workers, microbatches)):
            newest = values(module)
            put(module, read[worker])
            optimizer.zero_grad()
            loss = how.loss(module, rows)
            loss.backward()
            put(module, newest)
            how.update(module, optimizer)
            read[worker] = values(module)
            if worker == 0:
                losses.append(float(loss.detach()))
    return Simulated(losses, dict(module.state_dict()))


def average(modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    for parameters in zip(*(m.parameters() for m in modules), strict=True):
        states = [o.state[p] for o, p in zip(optimizers, parameters, strict=True)]
        alike = [list(parameters), *([s[field] for s in states] for field in MOMENTS if field in states[0])]
        for tensors in alike:
            mean = torch.stack([t.detach() for t in tensors]).mean(0)
            for tensor in tensors:
                tensor.detach().copy_(mean)


class Diloco:
    """What DiLoCo's replicas do when they meet (Douillard et al. 2023, algorithm 1, lines 11 to 13): Nesterov's update,
    written out, of what they began with. Their own moments stay."""

    def __init__(self, module: nn.Module, rate: float = 0.7, momentum: float = 0.9) -> None:
        self.begun, self.rate, self.momentum = values(module), rate, momentum
        self.velocity = [torch.zeros_like(value) for value in self.begun]

    def __call__(self, modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        for i, parameters in enumerate(zip(*(m.parameters() for m in modules), strict=True)):
            change = self.begun[i] - torch.stack([p.detach() for p in parameters]).mean(0)
            self.velocity[i] = self.momentum * self.velocity[i] + change
            self.begun[i] = self.begun[i] - self.rate * (change + self.momentum * self.velocity[i])
        for module in modules:
            put(module, self.begun)


class Gossip:
    """What replicas do on a graph: each one's parameters become the mean of its own and its neighbours', by the graph's
    matrix of weights (Lian et al. 2017, algorithm 1; of the exponential graph, Ying et al. 2021, one neighbour at a
    time). Moments stay."""

    def __init__(self, graph: str, replicas: int) -> None:
        self.graph, self.replicas, self.meetings = graph, replicas, 0

    def weights(self) -> Tensor:
        """[replicas, replicas]: what each takes of each."""
        eye = torch.eye(self.replicas, dtype=torch.float64)
        if self.graph == "ring":
            near = [eye, eye.roll(1, 1), eye.roll(-1, 1)] if self.replicas > 2 else [eye, eye.roll(1, 1)]
        else:
            jumps = [jump for jump in (1, 2, 4, 8) if jump < self.replicas]
            near = [eye, eye.roll(-jumps[self.meetings % len(jumps)], 1)]
        return torch.stack(near).mean(0)

    def __call__(self, modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        mixed = self.weights()
        for parameters in zip(*(m.parameters() for m in modules), strict=True):
            before = torch.stack([p.detach() for p in parameters])
            for parameter, row in zip(parameters, mixed, strict=True):
                parameter.detach().copy_(torch.tensordot(row, before, 1))
        self.meetings += 1


def older_weights(
    module: nn.Module, batches: Sequence[Batch], how: How = How(), updates: int = 1,
    of: Callable[[str], int] | None = None, drained: Sequence[int] = (),
) -> Simulated:  # fmt: skip
    """Gradients at the weights so many updates before the newest, applied to these; 0: one device's own steps.

    of       the same by a parameter's name, where they differ
    drained  steps before which all older versions are let go
    """
    module = copy.deepcopy(module)
    optimizer = how.optimizer(module)
    names = [name for name, _ in module.named_parameters()]
    versions, begun = [values(module)], 0
    losses = []
    for step, batch in enumerate(batches):
        begun = step if step in drained else begun
        ages = [of(name) if of else updates for name in names]
        put(module, [versions[max(begun, step - age)][place] for place, age in enumerate(ages)])
        optimizer.zero_grad()
        loss = how.loss(module, batch)
        loss.backward()
        put(module, versions[-1])
        how.update(module, optimizer)
        versions.append(values(module))
        losses.append(float(loss.detach()))
    return Simulated(losses, {n: v.clone() for n, v in module.state_dict().items() if v.is_floating_point()})


def pipeline_ages(plan: Plan) -> dict[str, int]:
    """By the user's names, how many updates late a parameter of a pipeline without a flush is (Narayanan et al. 2019,
    section 3.3): as its stage, and what several stages have as late as the first of these, which have all of theirs so.
    """
    lowered, schedule = plan.lowered, plan.parallelism.pipeline_schedule
    d, m = plan.parallelism.pp, plan.record.chosen.microbatches
    assert d is not None
    own = [math.ceil((d - 1 - r * (schedule == "pipedream")) / m) for r in range(d)]
    own = [1] * d if schedule == "pipedream-2bw" else own
    for stored in lowered.parameters:
        for stage in stored.stages:
            own[stage] = max(own[stage], *(own[other] for other in stored.stages))
    found: dict[str, int] = {}
    for stored in lowered.parameters:
        for one in stored.members or (stored,):
            found |= dict.fromkeys((one.source, *one.aliases), own[stored.stages[0]])
    return found


def told(losses: Sequence[float], late: int, drained: Sequence[int] = ()) -> list[float]:
    """The losses that steps return which return the oldest in flight's."""
    begun, found = 0, []
    for step in range(len(losses)):
        begun = step if step in drained else begun
        found.append(losses[max(begun, step - late)])
    return found


def values(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def put(module: nn.Module, given: Sequence[Tensor]) -> None:
    for parameter, value in zip(module.parameters(), given, strict=True):
        parameter.detach().copy_(value)


def shuffled(batch: Batch, steps: int) -> Iterator[dict[str, Tensor]]:
    """A batch for each step: the same rows in another order, so that replicas see others."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        order = torch.randperm(len(next(iter(batch.values()))), generator=generator)
        yield {name: value[order] for name, value in batch.items()}


Meet = Callable[[Sequence[nn.Module], Sequence[torch.optim.Optimizer]], None]
Rule = Callable[[nn.Module, Sequence[Batch]], Simulated]
