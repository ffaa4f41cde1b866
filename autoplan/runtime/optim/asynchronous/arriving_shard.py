"""A server's shard whose updates are by one worker's gradients each, as they arrive.

Its values and their optimizer state lie here, beside what this rank's own worker computes with. Workers are ahead of
one another by a bounded number of steps (Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous
Parallel Parameter Server"), or by any (Dean et al. 2012, "Large Scale Distributed Deep Networks", Downpour SGD). Who
has taken c steps reads weights for the next one once all workers that are there have taken c - ahead.

A gradient g of weights v meets weights w. With ``delay_compensation`` λ what is applied is g + λ·g⊙g⊙(w - v), where
λ·g⊙g stands for the Hessian (Zheng et al. 2017, "Asynchronous Stochastic Gradient Descent with Delay Compensation").
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from autoplan.errors import LostRankError
from autoplan.option_values import UNBOUNDED
from autoplan.runtime.optim.asynchronous.arrivals import Arrival, Turns
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program_spec import ProgramSpec

Gradients = Mapping[str, Tensor | None]


class Shard:
    """Of one server; several threads call it.

    held      its parameters
    version   updates that there have been
    steps     of each worker that is there, those that it has taken since all came to one point
    settling  workers that wait for all to come to one point: nobody waits for them
    read      the version that each worker's next gradients are of
    met       by worker the values that it has read; empty where nothing is compensated
    recorded  the arrivals, in their order; None: they aren't kept
    """

    recorded: list[Arrival] | None = None

    def __init__(self, spec: ProgramSpec, held: Sequence[ShardedParameter], workers: int) -> None:
        self.held, self.ahead, self.workers = held, spec.parallelism.ahead, workers
        self.copies = {h.name: nn.Parameter(torch.empty_like(h.values)) for h in held}
        named = [(name, self.copies[h.name]) for h in held for name in h.stored.names]
        self.optimizer = build_optimizer(named, replace(spec.training, lr_schedule=None))
        self.changed = threading.Condition()
        self.failed: BaseException | None = None
        self.turns: Turns | None = None
        self.steps = dict.fromkeys(range(workers), 0)
        self.settling: set[int] = set()
        self.read, self.version = [0] * workers, 0
        self.late, self.latest = 0, 0
        self.compensation = spec.training.delay_compensation
        self.met: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def begin(self, states: Mapping[Tensor, Mapping[str, object]]) -> None:
        """Values are those that this rank's worker has, and the states these; all workers read that."""
        with self.changed:
            for each in self.held:
                self.copies[each.name].copy_(each.values)
            self.optimizer.state.clear()
            for each in self.held:
                if each.updated in states:
                    self.optimizer.state[self.copies[each.name]] = dict(states[each.updated])
            self.read = [self.version] * self.workers
            self.steps = dict.fromkeys(self.steps, 0)
            for worker in self.steps:
                self.keep_read(worker)

    def states(self) -> Mapping[nn.Parameter, dict[str, object]]:
        """The optimizer's, by what the program's own optimizer knows the parameters by; the same tensors."""
        found = ((h.updated, self.copies[h.name]) for h in self.held)
        return {known: self.optimizer.state[copy] for known, copy in found if copy in self.optimizer.state}

    def pin(self, order: Sequence[Arrival] | None) -> None:
        self.turns = None if order is None else Turns(order, self.workers)

    @torch.no_grad()
    def push(self, worker: int, gradients: Gradients, rates: Sequence[float]) -> None:
        """One update, by these gradients at these learning rates of the optimizer's groups."""
        with self.changed:
            turns = self.turns
            self.wait(lambda: turns is None or turns.may_push(worker, self.version))
            for name, copy in self.copies.items():
                copy.grad = self.compensated(worker, name, gradients[name])
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.recorded is not None:
                self.recorded.append(Arrival(worker, self.read[worker]))
            late = self.version - self.read[worker]
            self.late, self.latest = self.late + late, max(self.latest, late)
            self.version += 1
            self.steps[worker] += 1
            self.changed.notify_all()

    @torch.no_grad()
    def pull(self, worker: int, into: Mapping[str, Tensor], between_steps: bool = False) -> None:
        """The newest values, once this worker may go on to its next step; ``between_steps``: as they are, all workers
        having come to one point."""
        with self.changed:
            if not between_steps:
                self.wait(lambda: self.may_go_on(worker))
                if self.turns is not None:
                    self.turns.has_read(worker)
            for name, copy in self.copies.items():
                into[name].copy_(copy)
            self.read[worker] = self.version
            self.keep_read(worker)
            if between_steps and worker in self.steps:
                self.steps[worker] = 0
            self.settling.discard(worker)
            self.changed.notify_all()

    def compensated(self, worker: int, name: str, gradient: Tensor | None) -> Tensor | None:
        """A worker's gradient as it is applied to what the weights are by now."""
        if gradient is None or self.compensation is None:
            return gradient
        moved = self.copies[name].detach() - self.met[worker][name]
        return gradient + self.compensation * gradient * gradient * moved

    def keep_read(self, worker: int) -> None:
        """What this worker reads now, where that will be asked for."""
        if self.compensation:
            self.met[worker] = {name: copy.detach().clone() for name, copy in self.copies.items()}

    def may_go_on(self, worker: int) -> bool:
        if self.turns is not None and not self.turns.may_read(worker, self.version):
            return False
        stepping = [taken for other, taken in self.steps.items() if other not in self.settling]
        return self.ahead == UNBOUNDED or min(stepping) >= self.steps[worker] - int(self.ahead or 0)

    def settles(self, worker: int) -> None:
        """A worker takes no step until all have come to one point; its next pull is there."""
        with self.changed:
            self.settling.add(worker)
            self.changed.notify_all()

    def wait(self, until: Callable[[], bool]) -> None:
        """LostRankError where a thread that serves others has failed."""
        self.changed.wait_for(lambda: self.failed is not None or until())
        if self.failed is not None:
            cause = f"{type(self.failed).__name__}: {self.failed}"
            raise LostRankError("a parameter server", cause, "start all anew from a checkpoint") from self.failed

    def gone(self, worker: int) -> None:
        """A worker takes no further steps: nobody waits for it."""
        with self.changed:
            self.steps.pop(worker, None)
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.failed = error
            self.changed.notify_all()
