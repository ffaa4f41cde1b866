"""A pipeline without a flush: one step's last backwards run beside the next step's first forwards.

Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training" (SOSP), section 3.3, and Narayanan
et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training" (ICML), section 3.1. A batch of m microbatches enters
with each call of ``Program.step``. On rank r of d its gradient is complete in that call or a few calls later, and the
optimizer's step after it applies it. With t counting batches since the pipeline was empty, w_r the weights of rank r,
f_t the loss of batch t, and w_r(t) = w_r(0) where t < 0:

    w_r(t+1) = w_r(t) - update(gradient of f_t at (w_1(t-n_1), …, w_d(t-n_d)))

    pipedream                n_r = ⌈(d-1-r)/m⌉, which is d-1-r where each microbatch is a batch (weight stashing)
    pipedream-vertical-sync  n_r = ⌈(d-1)/m⌉ on every rank
    pipedream-2bw            n_r = 1 on every rank, which takes m ≥ d

Ranks with weights in common, tied ones, are as late as the first of them, for an update is by the sum of their
gradients. A microbatch's forward and backward on a rank use the same version of its weights: with those in flight a
rank holds 1 + ⌈(d-1-r)/m⌉ versions, with 2BW two.

A step returns the loss of the oldest batch in flight: of batch t-n_1, and of batch 0 until that has come out. No rank
waits for another but for the microbatches, for a loss as old as the gradients that it applies, and for an agreement.
Nothing is updated before the first gradients are complete, nor by a batch whose loss isn't finite.

Whatever reads or sets the weights drains the pipeline first: saving and loading,
state dicts, evaluation, ``close``. Then the backwards that are left run, each rank applies the gradients that it still
has, and all have made as many updates as there were batches. The next batch begins anew, with no older version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from autoplan.errors import InputsError
from autoplan.runtime.agreement.agreement import Agreement, Asked, Call
from autoplan.runtime.broken_off import BrokenOff
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.data.microbatches import Given
from autoplan.runtime.engine import PipelineEngine
from autoplan.runtime.optim.accumulation import Gradients
from autoplan.runtime.optim.asynchronous.stashed_versions import StashedVersions
from autoplan.runtime.optim.updates import Updates
from autoplan.runtime.parallel.gradient_buckets import GradientSums
from autoplan.runtime.parallel.loss_denominators import summed_loss
from autoplan.runtime.parallel.seeding import drawing
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.parallel.stages import Keywords, StageModule
from autoplan.runtime.pipeline.order import schedule_of, update_delays
from autoplan.runtime.pipeline.stage import Message
from autoplan.runtime.program_spec import PIPELINE, ProgramSpec
from cost_models.pipeline.order import Action, last_actions, next_actions
from cost_models.pipeline.schedule import staleness

ByName = Mapping[str, Tensor | None]


class ContinuousEngine(PipelineEngine):
    """One stage on each rank, whose messages and graphs stay from one step to the next.

    before    forwards since the pipeline was empty
    left      the batch of each microbatch whose backward is to come
    versions  of the weights that batches in flight compute with
    """

    def begin(self, spec: ProgramSpec, compute: Callable[[int], None]) -> None:
        """The pipeline is empty; ``compute`` has the parameters be those of a version."""
        self.schedule, self.count, self.compute = schedule_of(spec), spec.microbatches, compute
        (self.stage,) = self.stages.values()
        self.stage.begin(self.stage.scale)
        self.before, self.versions = 0, dict[int, int]()
        self.keywords: Keywords = {}

    def feed(self, keywords: Keywords, version: int) -> Iterable[int]:
        """Runs a step on another batch, which computes with this version; gives the number of the batch whose last
        backward is over, once it is."""
        self.keywords, self.versions[self.before // self.count] = keywords, version
        actions = tuple(next_actions(self.schedule, self.axis.rank, self.axis.size, self.count, self.before))
        self.before += self.count
        return self.run_through(actions)

    def drain(self) -> Iterable[int]:
        """Runs the backwards that are left."""
        return self.run_through(last_actions(self.schedule, self.axis.rank, self.axis.size, self.before))

    def run_through(self, actions: Sequence[Action]) -> Iterable[int]:
        for action, following in zip(actions, (*actions[1:], None), strict=False):
            self.exchange.post(action)
            if following is not None:
                self.exchange.post(following)
            batch, place = divmod(action.microbatch, self.count)
            self.compute(self.versions[batch])
            self.exchange.send(action, self.act(action, self.exchange.receive(action), self.keywords))
            if action.kind == "B" and place == self.count - 1:
                self.versions.pop(batch)
                yield batch

    def act(self, action: Action, received: Message, keywords: Keywords) -> Message:
        if action.kind == "F":
            return self.stage.forward(action.microbatch % self.count, received, keywords, action.microbatch)
        return self.stage.backward(action.microbatch, received)

    def losses(self) -> Tensor:
        """The sum of those of the batch that was fed last; zero on a rank that doesn't hold the last stage."""
        found, self.stage.losses = self.stage.losses, []
        return torch.stack(found).sum() if found else self.no_loss.clone()


class Continuous:
    """What a program without a flush keeps from one step to the next, on one rank.

    engine    has the microbatches in flight, ``versions`` the weights that they have met
    late      steps from a batch's to that whose update is by its gradients
    partial   gradients of the batch whose backwards haven't all run
    waiting   gradients of batches that are complete here, and aren't to be applied yet
    due       whether the parameters have gradients for the optimizer's next step; not before the first are complete
    begun     batches whose gradients' sums have begun
    draining  whether updates are the last of a pipeline that is being drained
    """

    def __init__(
        self, spec: ProgramSpec, stages: Sequence[StageModule], axes: Mapping[str, MeshAxis], device: torch.device,
        held: Sequence[ShardedParameter], optimizer: Optimizer, sums: GradientSums, updates: Updates,
        agreement: Agreement, gradients: Gradients, broken: BrokenOff,
    ) -> None:  # fmt: skip
        self.broken, self.agreement, self.gradients, self.device = broken, agreement, gradients, device
        self.spec, self.axes, self.optimizer, self.sums, self.updates = spec, axes, optimizer, sums, updates
        axis = axes[PIPELINE]
        self.delays = update_delays(spec)
        self.late = self.delays[axis.rank]
        self.loss_late = staleness(schedule_of(spec), axis.size, spec.microbatches)[0]
        self.held = [h for h in held if h.stored.trainable]
        self.engine = ContinuousEngine(spec, stages, axis, device)
        self.due = False
        self.draining = False
        self.versions = StashedVersions(held, optimizer, self.needed, self.updating)
        self.begin()
        optimizer.register_state_dict_pre_hook(lambda *_: self.settle())
        optimizer.register_load_state_dict_pre_hook(lambda *_: self.settle())

    def begin(self) -> None:
        """The pipeline is empty."""
        self.versions.begin()
        self.engine.begin(self.spec, self.versions.compute)
        self.partial: ByName = {}
        self.waiting: deque[ByName] = deque()
        self.told: deque[tuple[Tensor, dist.Work | None, int]] = deque()
        self.begun = 0
        self.asked: deque[Asked] = deque()

    def agreed(self, call: Call, prepare: Callable[[], Given]) -> Given:
        """As ``Agreement.on``. While the pipeline is full the others are heard of some steps later, as losses are: an
        error of this rank's batch is raised here at once, and where batches don't belong together on all ranks then."""
        if not self.engine.before:
            return self.agreement.on(call, prepare)
        given = prepare()
        self.asked.append(self.agreement.asked(call, given))
        if len(self.asked) > self.loss_late:
            self.agreement.heard(self.asked.popleft())
        return given

    def step(self, keywords: Keywords, number: int) -> Tensor:
        """Feeds a batch; the loss of the oldest in flight. Gradients are afterwards those that the optimizer's next
        step is by, if there are any yet. ``number``: of this step."""
        keywords = kept(keywords)
        batch, started = self.engine.before // self.spec.microbatches, None
        self.gradients.clear()
        self.put(self.partial)
        self.partial = {}  # a sum may lie elsewhere
        with self.broken.computing("a step"), drawing(self.spec, self.device):
            if batch >= self.late and self.waiting:
                started = self.start()
            for _ in self.engine.feed(keywords, self.versions.newest):
                self.waiting.append(self.taken())
                if batch >= self.late and started is None:
                    started = self.start()
            self.partial = self.taken()
            self.finish(started)
            self.gradients.fed()
            self.tell(number)
            if started is not None:
                self.drop_unsound()
        return self.heard()

    def needed(self) -> set[int]:
        """The versions that batches in flight have met."""
        return set(self.engine.versions.values())

    def updating(self) -> bool:
        """Whether the optimizer finds gradients."""
        return any(h.gradient is not None for h in self.held)

    def updated(self) -> bool:
        """After the optimizer's step: whether it has updated anything."""
        self.versions.updated()
        return self.due

    def check_alike(self) -> None:
        """InputsError where stages have gradients of different batches."""
        if len(set(self.delays)) > 1:
            cause = "stages have gradients of different batches at a time, of which there is no one norm"
            remedy = "use pipeline_schedule='pipedream-vertical-sync' or 'pipedream-2bw', or don't clip"
            raise InputsError("program.clip_grad_norm_(max_norm)", cause, remedy)

    def settle(self, applied: bool = True) -> None:
        """Before weights are read or set. InputsError where gradients that are due haven't been used."""
        self.gradients.check_drained(applied and bool(self.engine.before))
        self.drain(applied)

    def start(self) -> ByName:
        """Begins the sums of the gradients that have waited longest; others are left as they are."""
        others, self.begun = self.taken(), self.begun + 1
        self.put(self.waiting.popleft())
        self.sums.begin(1)
        self.sums.start()
        found = self.taken()
        self.put(others)
        return found

    def finish(self, started: ByName | None) -> None:
        """Has the parameters, the newest, have the gradients whose sums have begun."""
        self.versions.compute(self.versions.newest)
        self.due = started is not None
        if started is not None:
            self.put(started)
            self.sums.finish()

    def drop_unsound(self) -> bool:
        """Whether the batch that is due has a loss that isn't finite: then nothing is due. The host of an accelerator
        doesn't look: where the optimizer's kernels take a flag they change nothing (``runtime.optim.updates``)."""
        loss, work, _ = self.told[self.begun - 1 - self.engine.before // self.spec.microbatches]
        wrong = ~torch.isfinite(arrived(loss, work))
        if self.updates.late:
            self.optimizer.found_inf = wrong.float()  # type: ignore[attr-defined]
        elif self.device.type == "cpu" and bool(wrong):
            self.due = False
            self.put({})
            return True
        return False

    def drain(self, applied: bool) -> None:
        """Empties the pipeline. DivergedError, on every rank, where a loss that no step has returned isn't finite.

        applied  whether updates are made of what is left; else it is dropped
        """
        if not self.engine.before or self.broken.told:
            return
        with self.broken.computing("draining the pipeline"), drawing(self.spec, self.device):
            self.run_out(applied)
            told, asked = [(arrived(loss, work), of) for loss, work, of in self.told][1:], tuple(self.asked)
        self.begin()
        for one in asked:
            self.agreement.heard(one)
        for loss, of in told if applied else ():
            self.updates.arrived(loss, of)

    def run_out(self, applied: bool) -> None:
        """Runs the backwards that are left, and their updates."""
        self.put(self.partial)
        self.draining = True
        try:
            while self.waiting and applied:
                self.apply()
            for _ in self.engine.drain():
                self.waiting.append(self.taken())
                if applied:
                    self.apply()
        finally:
            self.draining = False
        self.versions.compute(self.versions.newest)
        self.engine.exchange.wait()

    def apply(self) -> None:
        """One of the updates that are left."""
        started = self.start()
        partial = self.taken()
        self.finish(started)
        if not self.drop_unsound():
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.due = False
        self.put(partial)

    def tell(self, number: int) -> None:
        """The loss of the last batch, that of step ``number``, from the last stage to all; nobody waits for it yet."""
        pipeline = self.axes[PIPELINE]
        loss, last = summed_loss(self.spec, self.engine.losses(), self.axes), pipeline.size - 1
        self.told.append((loss, dist.broadcast(loss, group=pipeline.group, group_src=last, async_op=True), number))

    def heard(self) -> Tensor:
        """The loss of the oldest batch in flight, on all ranks alike."""
        while len(self.told) > self.loss_late + 1:
            self.told.popleft()
        told, work, of = self.told[0]
        loss = arrived(told, work)
        self.updates.arrived(loss, of)
        return loss

    def taken(self) -> ByName:
        """The gradients that there are; then there are none."""
        found = {h.name: h.parameter.grad for h in self.held}
        self.put({})
        return found

    def put(self, gradients: ByName) -> None:
        for each in self.held:
            each.parameter.grad = gradients.get(each.name)


def arrived(loss: Tensor, work: dist.Work | None) -> Tensor:
    assert work is not None, "this rank is no member of the pipeline's group"
    work.wait()
    return loss.clone()


def kept(keywords: Keywords) -> Keywords:
    """A batch's values for as long as it is in flight: the caller may write the next batch over his."""
    given = {name: [x.clone() for x in parts if isinstance(x, Tensor)] for name, parts in keywords.items()}
    return {name: given[name] or parts for name, parts in keywords.items()}
