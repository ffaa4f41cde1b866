"""The rule of servers that apply gradients as they arrive: one process that makes a run's updates in their order.

Each server has some of the program's parameters, which are the user's or pieces of them, and an optimizer of these. A
worker's gradient is computed once the versions of all shards are there that it had read, and applied by each server in
its own order (``runtime.optim.asynchronous.arrivals``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from autoplan.ir.typed_program import StoredParameter
from autoplan.options import Training
from autoplan.runtime.optim.asynchronous.arrivals import Arrival
from autoplan.runtime.optim.lr_scheduler import LearningRates
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.verify.compare import Run
from autoplan.verify.reference import state_of

Batch = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Batch], float]
Rows = Callable[[int, int], Batch]
"""(a worker, the number of its step) -> its rows of that batch."""
Orders = Mapping[int, Sequence[Arrival]]
"""Each server's arrivals, by its rank."""


class Replayed:
    """One server: its pieces of the module's parameters, each version of them, and what is to be applied."""

    def __init__(
        self, module: nn.Module, stored: Sequence[StoredParameter], training: Training, order: Sequence[Arrival]
    ) -> None:
        whole = dict(module.named_parameters(remove_duplicate=False))
        self.places = [(whole[p.source], p) for p in stored]
        self.pieces = [nn.Parameter(piece(tensor, p).detach().clone()) for tensor, p in self.places]
        named = [(name, copy) for p, copy in zip(stored, self.pieces, strict=True) for name in p.names]
        self.optimizer = build_optimizer(named, replace(training, lr_schedule=None))
        self.order, self.compensation = order, training.delay_compensation
        self.versions = [self.values()]
        self.reads: dict[int, list[int]] = {}
        for one in order:
            self.reads.setdefault(one.worker, []).append(one.read)

    def values(self) -> list[Tensor]:
        return [copy.detach().clone() for copy in self.pieces]

    def knows(self, worker: int, step: int) -> bool:
        """Whether the version is there that a worker has read for its step."""
        return self.reads[worker][step] < len(self.versions)

    def put(self, worker: int, step: int) -> None:
        """Has the module have it."""
        self.put_version(self.reads[worker][step])

    @torch.no_grad()
    def put_version(self, version: int) -> None:
        for (tensor, stored), value in zip(self.places, self.versions[version], strict=True):
            piece(tensor, stored).copy_(value)

    def gradients(self) -> list[Tensor | None]:
        """Of its pieces, as the module has them now."""
        return [None if t.grad is None else piece(t.grad, p).clone() for t, p in self.places]

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor | None], rates: Sequence[float]) -> None:
        read = self.versions[self.order[len(self.versions) - 1].read]
        for copy, gradient, then in zip(self.pieces, gradients, read, strict=True):
            copy.grad = gradient
            if gradient is not None and self.compensation:
                copy.grad = gradient + self.compensation * gradient * gradient * (copy - then)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self.optimizer.step()
        self.versions.append(self.values())

    def next(self) -> tuple[int, int] | None:
        """The worker, and the number of its step, whose gradients are to be applied next; None where all have been."""
        done = len(self.versions) - 1
        if done == len(self.order):
            return None
        worker = self.order[done].worker
        return worker, sum(one.worker == worker for one in self.order[:done])


def replay(
    module: nn.Module, loss_of: Loss, rows: Rows, training: Training, spec: ProgramSpec, orders: Orders, told: int = 0
) -> Run:
    """The run that these orders tell of, of losses those of the worker ``told``; gradients are the workers' mean at the
    first weights."""
    shards = {
        rank: Replayed(module, [p for p in spec.lowered.parameters if spec.owners.get(p.name) == rank], training, order)
        for rank, order in orders.items()
    }
    computed: dict[tuple[int, int], dict[int, list[Tensor | None]]] = {}
    losses: dict[tuple[int, int], float] = {}
    first: list[dict[str, Tensor]] = []
    while waiting := {rank: one for rank, shard in shards.items() if (one := shard.next()) is not None}:
        before = sum(len(shard.versions) for shard in shards.values()), len(computed)
        for worker, step in dict.fromkeys(waiting.values()):
            if (worker, step) not in computed and all(shard.knows(worker, step) for shard in shards.values()):
                for shard in shards.values():
                    shard.put(worker, step)
                module.zero_grad()
                losses[worker, step] = loss_of(module, rows(worker, step))
                computed[worker, step] = {rank: shard.gradients() for rank, shard in shards.items()}
                if step == 0:
                    found = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
                    first.append(found)
        for rank, one in waiting.items():
            if one in computed:
                shards[rank].apply(computed[one][rank], rates_at(training, one[1]))
        after = sum(len(shard.versions) for shard in shards.values()), len(computed)
        assert after != before, "a gradient is of weights that its own update makes"
    for shard in shards.values():
        shard.put_version(-1)
    names = {name for one in first for name in one}
    gradients = {n: torch.stack([one[n] for one in first if n in one]).sum(0) / len(first) for n in names}
    mine = sorted(step for worker, step in losses if worker == told)
    return Run(tuple(losses[told, step] for step in mine), gradients, state_of(module))


def rates_at(training: Training, step: int) -> list[float]:
    """Of the optimizer's groups, in this step of a worker."""
    parameters = [(name, nn.Parameter(torch.zeros(()))) for name in ("",)]
    optimizer = build_optimizer(parameters, replace(training, lr_schedule=None))
    if training.lr_schedule is not None:
        rates = LearningRates(training.lr_schedule, optimizer)
        for _ in range(step):
            optimizer.step()
            rates.moved()
    return [float(group["lr"]) for group in optimizer.param_groups]


def piece(tensor: Tensor, stored: StoredParameter) -> Tensor:
    """Of a user's parameter what the program has as one of its own, a view."""
    return tensor if stored.dim < 0 else tensor.narrow(stored.dim, stored.start, stored.stop - stored.start)
