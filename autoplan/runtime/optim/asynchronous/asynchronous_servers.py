"""Parameter servers that apply each worker's gradients as they arrive, and workers that don't wait for one another.

Every rank is a worker; those that have a shard serve it beside, a thread for each other worker. A worker's step,

    compute  the gradients of its own rows, the mean over these, at the weights that it has read
    push     to every server its shard's, with the learning rates of this worker's step; the server makes one update
    pull     the new values, which the worker waits for before its next step: a server keeps them back where it is more
             than ``ahead`` steps ahead of the slowest (``arriving_shard``)

So n workers make n updates in a step of each. Which weights a gradient is of, and in which order a server applies them,
differs from run to run; ``arrivals`` says what is kept of it. Calls that all ranks make together (an evaluation, a
checkpoint) let all come to one point first: then all have the same values, the newest. Who is there waits for others
that have more steps to take, and these no longer for it.

A worker whose process ends is left out, and its servers, if it has any shard of its own, with it: workers that need
these end, to be started anew from a checkpoint. Messages are gloo's, between processes' host memory, on a process group
of their own, with the rank of the server as their tag: two ranks may serve each other.
"""

import atexit
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from autoplan.errors import InputsError, LaunchError, LostRankError
from autoplan.option_values import UNBOUNDED
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.optim.asynchronous.arrivals import Arrival
from autoplan.runtime.optim.asynchronous.arriving_shard import Shard
from autoplan.runtime.optim.asynchronous.shard_message import ShardMessage
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program_spec import ProgramSpec

END, PUSH, PULL, SETTLES = 0.0, 1.0, 2.0, 3.0
FOREVER = timedelta(days=30)  # a server waits for a worker as long as it lives: whoever hangs the watchdog names


class AsynchronousServers:
    """Of one program on one rank; a collective of the whole world to make.

    arrived  is called once new values are there
    tell     is told of workers that are lost, and at the end how old the weights were
    shard    what this rank serves; None: nothing
    """

    backups = None

    def __init__(
        self, spec: ProgramSpec, held: Sequence[ShardedParameter], axis: MeshAxis, optimizer: Optimizer,
        arrived: Callable[[], None], tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        if held[0].parameter.device.type != "cpu":
            cause = "servers that apply gradients as they arrive serve from the host's memory, so far on CPUs alone"
            raise LaunchError(f"ahead={spec.parallelism.ahead!r}", cause, "use staleness=1 on this device")
        self.rank, self.workers, self.optimizer = axis.rank, axis.size, optimizer
        self.arrived, self.tell = arrived, tell
        self.group = dist.new_group(backend="gloo", timeout=FOREVER)
        trained = [h for h in held if h.stored.trainable]
        owners = sorted(set(spec.owners.values()))
        self.shards = {rank: [h for h in trained if spec.owners[h.name] == rank] for rank in owners}
        numbers = 1 + len(optimizer.param_groups)
        self.messages = {rank: ShardMessage(each, numbers) for rank, each in self.shards.items() if rank != self.rank}
        mine = self.shards.get(self.rank)
        self.shard = Shard(spec, mine, self.workers) if mine else None
        self.coming: list[tuple[int, dist.Work]] = []
        self.bounded = spec.parallelism.ahead != UNBOUNDED
        self.waiting = self.moved = self.used = False
        others = [rank for rank in range(self.workers) if rank != self.rank] if mine else []
        self.threads = [threading.Thread(target=self.serve, args=(rank, numbers), daemon=True) for rank in others]
        for thread in self.threads:
            thread.start()
        self.closed = False
        atexit.register(self.at_exit)  # a thread that waits within gloo would abort the process that ends
        optimizer.register_state_dict_pre_hook(lambda *_: self.settle())
        optimizer.register_load_state_dict_pre_hook(lambda *_: self.settle())
        optimizer.register_load_state_dict_post_hook(lambda *_: self.begin())

    @property
    def recorded(self) -> list[Arrival] | None:
        """Of this rank's shard the arrivals so far; None on a rank without one, and where none are kept."""
        return self.shard.recorded if self.shard else []

    def record(self) -> None:
        """From here on arrivals are kept."""
        if self.shard:
            self.shard.recorded = []

    def pin(self, orders: Mapping[int, Sequence[Arrival]] | None) -> None:
        """The order of each server from the first update on, by its rank; None: as they come."""
        if self.shard:
            self.shard.pin(None if orders is None else orders[self.rank])

    def serve(self, worker: int, numbers: int) -> None:
        """One worker, until it ends; in a thread of its own."""
        assert self.shard is not None
        message = ShardMessage(self.shard.held, numbers)
        try:
            while True:
                try:
                    dist.recv(message.bytes, group=self.group, group_src=worker, tag=self.rank)
                except RuntimeError as error:
                    self.lost(worker, error)
                    return
                kind, *rates = message.numbers.tolist()
                if kind == END:
                    break
                if kind == SETTLES:
                    self.shard.settles(worker)
                    continue
                if kind == PUSH:
                    self.shard.push(worker, message.given(), rates)
                self.shard.pull(worker, message.tensors, between_steps=kind == PULL)
                try:
                    dist.send(message.bytes, group=self.group, group_dst=worker, tag=self.rank)
                except RuntimeError as error:
                    self.lost(worker, error)
                    return
            self.shard.gone(worker)
        except BaseException as error:  # what ends a thread alone would leave its worker waiting
            self.shard.fail(error)

    def lost(self, worker: int, error: Exception) -> None:
        assert self.shard is not None
        cause = str(error).partition("\n")[0][:200]
        self.tell(
            f"worker {worker} is gone ({cause}): the server on rank {self.rank} goes on without it, until the next "
            "checkpoint, evaluation or other call that all ranks make, which fails"
        )
        self.shard.gone(worker)

    def before_step(self) -> None:
        """A step is about to compute: with what its servers let this worker go on with."""
        self.come()
        self.used = False

    def before_update(self) -> None:
        """The optimizer's step is here: gradients go to their servers, and none are left."""
        gradients = {h.name: h.gradient for each in self.shards.values() for h in each}
        if all(gradient is None for gradient in gradients.values()):
            if self.used:
                cause = "the gradients of the last step have gone to the servers, and nothing would be updated"
                raise InputsError("program.optimizer.step()", cause, "call program.step(batch) before it")
            return  # no step has been taken, or it broke off, which the caller is told
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        sent = []
        for rank, message in self.messages.items():
            message.put([PUSH, *rates], gradients)
            sent.append(self.send(rank))
        if self.shard is not None:
            self.shard.push(self.rank, gradients, rates)
        self.wait(sent)
        self.ask()
        for each in (h for shard in self.shards.values() for h in shard):
            each.parameter.grad = each.updated.grad = None
        self.waiting = self.moved = self.used = True

    def updated(self) -> None:
        """After the optimizer's step, which found nothing."""

    def ask(self) -> None:
        """Begins to receive what the servers have been asked for."""
        for rank, message in self.messages.items():
            with reaching(rank):
                work = dist.irecv(message.bytes, group=self.group, group_src=rank, tag=rank)
            assert work is not None
            self.coming.append((rank, work))

    def send(self, server: int) -> tuple[int, dist.Work]:
        with reaching(server):
            work = dist.isend(self.messages[server].bytes, group=self.group, group_dst=server, tag=server)
        assert work is not None
        return server, work

    def tell_servers(self, kind: float) -> None:
        sent = []
        for rank, message in self.messages.items():
            message.numbers[0] = kind
            sent.append(self.send(rank))
        self.wait(sent)

    def wait(self, works: Sequence[tuple[int, dist.Work]]) -> None:
        for rank, work in works:
            with reaching(rank):
                work.wait()

    def come(self) -> None:
        """Waits for the values of this worker's next step."""
        if self.waiting:
            self.take(between_steps=False)
            self.waiting = False

    @torch.no_grad()
    def take(self, between_steps: bool) -> None:
        if self.shard is not None:
            mine = {h.name: h.values for h in self.shard.held}
            self.shard.pull(self.rank, mine, between_steps)
        self.wait(self.coming)
        for rank, _ in self.coming:
            for each in self.shards[rank]:
                each.values.copy_(self.messages[rank].tensors[each.name])
        self.coming = []
        self.arrived()

    def settle(self) -> None:
        """All ranks have the newest values, and the optimizer the state of what is served here; all of them call it."""
        self.come()
        if self.bounded:
            self.tell_servers(SETTLES)
            if self.shard is not None:
                self.shard.settles(self.rank)
        moved = torch.tensor(float(self.moved))
        dist.all_reduce(moved, group=self.group)  # every worker's gradients have been applied
        if not moved and not self.bounded:
            return
        self.tell_servers(PULL)
        self.ask()
        self.take(between_steps=True)
        dist.barrier(self.group)  # before anyone's next
        if self.shard is not None:
            for parameter, state in self.shard.states().items():
                self.optimizer.state[parameter] = state
        self.moved = False

    def begin(self) -> None:
        """Something other than an update has set the values; all ranks call it."""
        self.waiting = self.moved = False
        if self.shard is not None:
            self.shard.begin(self.optimizer.state)
        dist.barrier(self.group)  # before anyone pushes

    def gradient(self, held: ShardedParameter) -> Tensor | None:
        """The mean over the workers of their gradients that no server has yet; all ranks call it."""
        there = torch.tensor(float(held.gradient is not None))
        dist.all_reduce(there, group=self.group)
        if not there:
            return None
        found = torch.zeros_like(held.values) if held.gradient is None else held.gradient.clone()
        dist.all_reduce(found, group=self.group)
        return found / self.workers

    def give_up(self, error: BaseException) -> None:
        """This rank ends by an error: whoever its server has next ends, too, once it has."""
        self.waiting = False
        if self.shard is not None:
            self.shard.fail(error)

    def at_exit(self) -> None:
        """The process ends, and nobody has closed this."""
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.give_up(error)
        self.close()

    def close(self) -> None:
        """Tells the servers that this worker has ended, and waits for the others of its own."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.at_exit)
        self.come()
        for rank, message in self.messages.items():
            message.numbers[0] = END
            with suppress(RuntimeError):  # one that is gone needs no word
                dist.send(message.bytes, group=self.group, group_dst=rank, tag=rank)
        if self.shard is not None:
            self.shard.gone(self.rank)
            for thread in self.threads:
                thread.join()
            if self.shard.version:
                mean = self.shard.late / self.shard.version
                self.tell(
                    f"the server on rank {self.rank} made {self.shard.version} updates by gradients of weights "
                    f"{mean:.1f} updates older on average, {self.shard.latest} at most"
                )


@contextmanager
def reaching(server: int) -> Iterator[None]:
    """LostRankError where what is within ends because a server has."""
    try:
        yield
    except RuntimeError as error:
        cause = str(error).partition("\n")[0][:200]
        remedy = "start all anew from a checkpoint"
        raise LostRankError(f"the parameter server on rank {server}", f"it is gone: {cause}", remedy) from error
