"""An exported program on one rank: the interface that train.py and users' scripts are written against."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from torch import Tensor

from autoplan.errors import WeightsError
from autoplan.ir.mesh import MICROBATCHES
from autoplan.option_values import OF_OPTIMIZER
from autoplan.runtime import own_state
from autoplan.runtime.agreement.agreement import Call
from autoplan.runtime.checkpoint import checkpoint
from autoplan.runtime.checkpoint.saving import Saver
from autoplan.runtime.collectives.mesh_axes import release
from autoplan.runtime.collectives.objects import from_first, together
from autoplan.runtime.continuous import Continuous
from autoplan.runtime.data.microbatches import Batch, Given, Microbatches, Rows, own_microbatches
from autoplan.runtime.elastic import launch
from autoplan.runtime.elastic.hang_report import BETWEEN
from autoplan.runtime.elastic.stderr_messages import note
from autoplan.runtime.engine import PipelineEngine, engine_of
from autoplan.runtime.inference.forward import Forward, random_keys
from autoplan.runtime.not_a_module import not_called, step_loss
from autoplan.runtime.optim.accumulation import Gradients
from autoplan.runtime.optim.asynchronous.diloco import local_steps
from autoplan.runtime.optim.asynchronous.local_sgd import replica_groups, replica_of
from autoplan.runtime.optim.asynchronous.planned_servers import servers_of
from autoplan.runtime.optim.asynchronous.weight_stashing import OlderVersions
from autoplan.runtime.optim.clip import clip_gradients
from autoplan.runtime.optim.masters import publish, share_gradients
from autoplan.runtime.optim.optimizer import rank_optimizer
from autoplan.runtime.optim.updates import Updates
from autoplan.runtime.own_state import OptimizerState
from autoplan.runtime.parallel import whole_tensors, zero
from autoplan.runtime.parallel.compiled import compile_as_asked
from autoplan.runtime.parallel.compression.compressor import ERROR
from autoplan.runtime.parallel.compression.program_sums import gradient_groups
from autoplan.runtime.parallel.gradient_buckets import GradientSums
from autoplan.runtime.parallel.loss_denominators import loss_from_all, whole_counts, whole_loss
from autoplan.runtime.parallel.seeding import drawing
from autoplan.runtime.parallel.stages import Keywords
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.runtime.rank_model import RankModel
from autoplan.runtime.sized_steps import Engine, SizedSteps, check_fed


class Program(RankModel):
    """A plan's program, on this rank. Every method is called on every rank.

    spec, module, timeout_s  as of ``RankModel``, which has the methods that fill and save the weights
    pretrained  a folder with what came with the model beside its weights; ``save_weights`` writes it beside them
    """

    def __init__(
        self, spec: ProgramSpec, module: ModuleType, timeout_s: float = launch.TIMEOUT_S, pretrained: Path | None = None
    ) -> None:
        super().__init__(spec, module, timeout_s, (*gradient_groups(spec), *replica_groups(spec)))
        if (uncompiled := compile_as_asked(spec, self.stages.modules, self.device.type)) and self.rank == 0:
            note(uncompiled)
        self.evaluation = Forward(spec, module, self.stages.modules, self.axes, self.device, self.world.device_mesh)
        self.sums = GradientSums(spec, self.held, self.axes)
        self.pretrained, self.saver, self.steps = pretrained, Saver(), 0
        own = self.held, self.device, replica_of(spec, self.axes), self.disk
        self.optimizer = rank_optimizer(spec, self.storage, *own)
        self._follow_tables(self.optimizer)
        self.sums.follow(self.optimizer)
        told = self.sums.unless_diverged, loss_from_all(spec.lowered)
        self.updates = Updates(spec.training, self.optimizer, self.held, self.device, lambda: self.saver.last, *told)
        self.local = local_steps(spec, self.held, self.axes, self.optimizer)
        given = self.axes, self.optimizer, lambda: publish(self.held), timeout_s, note
        self.servers = servers_of(spec, self.held, *given)
        self.backups = self.sums.backups = self.servers.backups if self.servers else None
        older = spec.parallelism.staleness  # kept before an update, once what is on its way has come
        self.versions = OlderVersions(self.held, self.optimizer, older) if older else None
        self.gradients = Gradients(self.held, self.optimizer)
        mine = self.stages.modules, self.axes, self.device, self.held, self.optimizer, self.sums
        beside = self.updates, self.agreement, self.gradients, self.broken
        self.continuous = Continuous(spec, *mine, *beside) if spec.continuous else None
        self.optimizer_state = OptimizerState(
            self.optimizer, self.updates, self.held, lambda: self.steps, lambda steps: setattr(self, "steps", steps)
        )
        self.optimizer.register_step_pre_hook(self._stepping)
        self.optimizer.register_step_post_hook(self._stepped)
        self.engine: Engine = self.continuous.engine if self.continuous else engine_of(spec, *mine[:3])
        self.steps_at = SizedSteps(spec, self.engine)
        self.world.made()

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """NotAModuleError: it says what to call."""
        raise not_called()

    def step(self, batch: Batch, accumulate: bool = False, rows: Rows | None = None) -> Tensor:
        """Forward and backward of one optimizer step: all microbatches, all stages, all gradient sums.

        batch       the whole batch, or this rank's rows of it (see ``runtime.data.microbatches``), by name or in order:
                    as planned, or with fewer rows or tokens (see ``runtime.sized_steps``)
        accumulate  adds the gradients to those of the batches since the last update, as a backward without zero_grad
                    does; each batch's loss is its own mean. A gradient that overflows in one of them skips the update
        rows        "whole" or "own": what the batch is said to be; None: its shapes tell, and one with as many rows as
                    the plan has for a rank is this rank's own
        Returns the loss of this batch, the same scalar on every rank (without a flush the oldest in flight's, whose
        gradients there may be: ``runtime.continuous``; of asynchronous servers that of this rank's rows). Without
        ``accumulate`` gradients are afterwards those of this batch alone, and those that no update has used are never
        dropped: that is an InputsError, before anything is computed. Nothing is updated. Under "fp16-mixed" loss and
        gradients are divided by the scale again; where a gradient of any rank overflowed, no rank has gradients, and
        the optimizer's step updates nothing. WeightsError where the program has no weights yet. InputsError, on every
        rank and before gradients change, for another batch, and where ranks disagree; LostRankError after a step of
        several stages that an exception broke off; DivergedError where the loss isn't finite: gradients are then what
        they were. On an accelerator whose optimizer is guarded it is raised by the next step, save or ``close``: no
        step waits for the device, and parameters and optimizer state are those before that loss.
        """
        self._check_filled("step")
        with self._during("forward and backward"):
            name = "step(accumulate=True)" if accumulate else "step"
            call = Call(name, self.steps, self.gradients.batches, own=rows == "own")
            if self.continuous:
                given = self.continuous.agreed(call, lambda: self._checked(batch, accumulate, rows))
                keywords, _ = self._counted(own_microbatches(self.spec, given, self.axes, self.device), self.spec)
                return step_loss(self.continuous.step(keywords, self.steps + 1))
            given = self.agreement.on(call, lambda: self._checked(batch, accumulate, rows))
            spec, engine, given = self.steps_at.settled(batch, given, self.device)
            inputs = own_microbatches(spec, given, self.axes, self.device)
            with self.gradients.of_another_batch(lambda: self.updates.skipped):
                loss = self._step(inputs, spec, engine)
            if self.spec.parallelism.offload not in OF_OPTIMIZER:
                share_gradients(self.held)  # a script may look at those of what the optimizer updates
            return step_loss(loss)

    def evaluate(self, batch: Batch) -> Tensor:
        """The loss of a batch as ``model.eval()`` has it, the same scalar on every rank; nothing is changed or kept.

        batch  1 to as many rows as planned, of as many tokens or fewer: the whole batch on every rank, or on each its
               own rows, which are then put together in the order of the data axis. Rows that are alike on all ranks are
               the whole batch
        Without dropout, batch norm by its running statistics, by the newest weights; of local SGD by the replicas'
        mean, as ``full_state_dict`` has it. A pipeline that isn't flushed is drained first. A loss that isn't finite is
        returned as it is. InputsError for another batch, ParallelismError for one that can't be evaluated.
        """
        self._check_filled("evaluate")
        with self._during("evaluation", "evaluate"), self.local.as_one() if self.local else nullcontext():
            return self.evaluation.run(batch, self.broken, self.spec.training.seed, self.steps)

    def _check_filled(self, call: str) -> None:
        if not self.filled:
            cause = "this program has no weights yet, only what its memory held before"
            remedy = "call program.init_weights(seed=0), load_weights(path) or load_checkpoint(path) first"
            raise WeightsError(f"program.{call}(batch)", cause, remedy)
        self.broken.check(call)

    def _checked(self, batch: Batch, accumulate: bool, rows: Rows | None) -> Given:
        self.gradients.check(accumulate, self.spec.parallelism.compressed)
        if self.continuous:
            check_fed(accumulate, self.steps_at.is_planned(batch, rows))
        return self.steps_at.checked(batch, rows, self.device)

    def _step(self, inputs: Microbatches, spec: ProgramSpec, engine: Engine) -> Tensor:
        self.sums.begin(spec.microbatches, self.steps)
        if self.servers:
            self.servers.before_step()
        keywords, counts = self._counted(inputs, spec)
        with self.broken.computing("a step"):
            with drawing(spec, self.device), self.versions.computing() if self.versions else nullcontext():
                given = keywords, self.updates.scale
                loss = self.backups.run(engine.run, *given) if self.backups else engine.run(*given)
            loss = self.backups.arrived(loss) if self.backups else loss
            self.sums.finish()
            loss = whole_loss(spec, loss, self.axes)
        self.updates.settle(loss, self.steps + 1, self.gradients.batches, counts)
        return loss

    def _counted(self, inputs: Microbatches, spec: ProgramSpec) -> tuple[Keywords, Microbatches]:
        """What the stages take by name of a batch, and its means' denominators among that."""
        counts = whole_counts(spec, self.module, inputs, self.axes)
        keys = random_keys(spec, spec.training.seed, self.steps, self.device, self.gradients.batches)
        return {**inputs, **counts, **keys, MICROBATCHES: (spec.microbatches,) * spec.microbatches}, counts

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scales all gradients so that their global norm is at most ``max_norm``; returns the norm before.

        With ``training.clip_grad_norm`` the optimizer does so by itself before each step. An error under "pipedream".
        """
        if self.continuous:
            self.continuous.check_alike()
        return clip_gradients(self.held, max_norm, self.device, replica_of(self.spec, self.axes))

    @property
    def skipped(self) -> bool:
        """Whether a gradient of the last step overflowed in float16, so that the optimizer's step updates nothing."""
        self.updates.look()
        return self.updates.skipped

    def set_learning_rate(self, rate: float) -> None:
        """Another learning rate than the plan's; where there is a schedule, the one that it starts from."""
        self.updates.set_learning_rate(rate)

    def state_dict(self, full: bool = False) -> dict[str, Tensor]:
        """What this rank holds of the model, for tools of one's own: an average of the weights, another checkpoint.

        full  whole tensors on the CPU of every rank, under the names that the model itself has: what torch.save
              writes and the model's own ``load_state_dict`` takes up. Every rank calls it; ``full_state_dict`` is the
              same on rank 0 alone

        By the program's names, which every plan of the model shares: parameters as DTensors over their stage's mesh,
        buffers whole, and on rank 0 what the program never reads. Like a module's they are views, which a step changes:
        clone what is to stay. Under mixed precision they are the float32 masters: what is written into them counts once
        ``load_state_dict`` takes it up. Replicas that step by themselves are averaged, in copies. The optimizer's
        state, the count of steps and the schedule's are ``program.optimizer.state_dict()``.
        """
        self.broken.check_values("state_dict")
        self._settle()
        if full:
            return whole_tensors.on_every_rank(self.full_state_dict(), self.device)
        further = self.stages.buffers | self.unread
        if self.local is None:
            return own_state.model_state(self.storage, self.held, further)
        local = self.local
        return own_state.model_state(self.storage, self.held, further, lambda held: local.mean(held.values))

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes up a ``state_dict`` of this plan, bit for bit; every rank gives its own, or the same whole tensors.

        WeightsError, on every rank and before anything is changed, where a key is missing or too many, or a tensor has
        another shape, dtype or placement.
        """
        if isinstance(state, Mapping) and not self._is_part(state):
            self.load_weights(state, strict=True)
            return
        with self._during("loading a state", "load_state_dict"):
            further = self.stages.buffers | self.unread
            own_state.load_model_state(own_state.model_state(self.storage, self.held, further), state)
            self._taken_up()

    def _is_part(self, state: Mapping[str, Tensor]) -> bool:
        """Whether a state is this rank's part; a stage without parameters has no DTensor in it."""
        alone = not self.held and state.keys() == (self.stages.buffers | self.unread).keys()
        return alone or own_state.is_sharded(state)

    def _averaged(self, values: Tensor | None) -> Tensor | None:
        return values if self.local is None or values is None else self.local.mean(values)

    def full_grads(self) -> dict[str, Tensor]:
        """Gradients likewise; a parameter without one is left out."""
        self.agreement.called(Call("full_grads", 0))
        self.updates.look()
        of = self.servers.gradient if self.servers else lambda held: self._averaged(held.whole_gradient)
        return whole_tensors.by_user_names(whole_tensors.gathered(self.spec, self.storage, self.held, of))

    def save_checkpoint(
        self,
        folder: str | os.PathLike,
        extra: Mapping[str, object] | None = None,
        keep: int | None = None,
        asynchronous: bool = False,
    ) -> None:
        """All that training goes on from, each rank its part, into a folder that all ranks see.

        The folder appears when it is complete; a checkpoint of this run that stood there is replaced then. A process
        that ends at any moment leaves what was saved before whole. Only files of checkpoints are ever touched.

        folder        one of its own for each checkpoint: it holds nothing else
        extra         plain values of your own, alike on every rank, copied now: the position in your data, say
        keep          of this run's checkpoints beside it that are named step-<number>, the newest and those that it
                      was reached from stay, ``keep`` in all; the others are removed afterwards
        asynchronous  returns once these values are copied into the host's memory, and writes them while training goes
                      on; the next save, a load and ``close`` wait for it. Of what lies on disks it returns at the end
        CheckpointError, on every rank, where another run saves there, the folder holds something else, ranks name
        different folders, or any couldn't write; DivergedError where a parameter or the optimizer's state isn't finite.
        What an asynchronous save finds while it writes is raised by the next of these.
        """
        with self._during("saving a checkpoint", "save_checkpoint"):
            self.broken.check_values("save_checkpoint")
            self.updates.look()
            if self.local:
                self.local.average()
            with self.sums.as_one():
                later, diverged = asynchronous and self.disk is None, self.updates.refusing()
                checkpoint.save(self.saver, self._snapshot(), folder, diverged, extra, keep, later)

    def latest_checkpoint(self, folder: str | os.PathLike) -> Path | None:
        """The checkpoint among a folder's ``step-<number>`` that was written last, as the first rank sees it; None
        without one.
        WeightsError, on every rank, where there are some and none is whole.

        Nodes may see a shared folder as it was a moment ago: so all go on from the same.
        """
        return from_first(together(lambda: checkpoint.latest_checkpoint(folder) if self.rank == 0 else None))

    def load_checkpoint(self, folder: str | os.PathLike) -> dict[str, object]:
        """Goes on from a checkpoint of this plan, or of another plan of the same model, on any number of ranks.

        Returns the ``extra`` that it was saved with. The checksum of every byte is compared first. WeightsError, on
        every rank and before anything is changed, where it isn't whole, doesn't fit, or was left by a schedule that
        has ended at a rate of 0 while the plan has none. What goes on otherwise than the plan says is told on stderr.
        """
        with self._during("loading a checkpoint", "load_checkpoint"):
            state = checkpoint.load(self.saver, self._snapshot(), folder)
            self.sums.share_out()
            self.broken.updating = False
            self._values_set()
            self.optimizer.zero_grad()  # gradients of the weights that were there before
        self.steps = state.step
        return dict(state.extra)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.updates.forget()  # the error that is on its way is the one to tell
            if self.servers:
                self.servers.give_up(error)
            if self.continuous:
                self.continuous.begin()  # others may not come to drain the pipeline
        super().__exit__(kind, error, traceback)

    def close(self) -> None:
        """Waits for a save in the background, and ends the process groups that this program started: the default one,
        or in a default one of yours those of its own. DivergedError where the last loss wasn't finite nor told."""
        if self.closed:
            return
        try:
            with self._during("saving a checkpoint"):
                self._settle(applied=False)
                self.saver.wait()
                self.updates.look()
        finally:
            self.closed = True
            self.saver.close()
            if self.disk is not None:
                self.disk.close()
            self.sums.close()
            if isinstance(self.engine, PipelineEngine):
                self.engine.close()
            release(self.axes.values())
            zero.release(self.stages.modules)
            if self.saver.group is not None:
                self.world.groups.append(self.saver.group)
                self.saver.group = None
            self.world.close(self.storage.meshes)

    def _snapshot(self) -> checkpoint.Snapshot:
        return checkpoint.Snapshot(
            self.spec, self.storage, self.held, self.stages.buffers, self.optimizer, self.steps,
            self.updates.parts, unread=self.unread, beside=self._beside(), factors=self.sums.factors(),
            draw=self.sums.begin_anew,
        )  # fmt: skip

    def _beside(self) -> Mapping[str, Mapping[str, Tensor]]:
        """What an asynchronous rule or a compression keeps of parameters, by kind and name."""
        if self.versions:
            return self.versions.stale()
        return self.local.beside() if self.local else {ERROR: self.sums.errors()}

    def _settle(self, applied: bool = True) -> None:
        if self.servers:
            (self.servers.settle if applied else self.servers.close)()
        if self.continuous:
            self.continuous.settle(applied)
        self._tables_whole()

    def _count(self) -> int:
        return self.steps

    def _check_parameters(self, call: str = "save_weights") -> None:
        super()._check_parameters(call)
        self.updates.check_parameters()

    def _values_set(self) -> None:
        self.filled = True
        self.updates.forget()
        publish(self.held)
        self._tables_set(self.optimizer)
        if self.servers:
            self.servers.begin()

    def _taken_up(self) -> None:
        self._values_set()
        for begin in (rule.begin for rule in (self.versions, self.local) if rule):
            begin()
        self.sums.begin_anew()

    def _stepping(self, *_: object) -> None:
        self.broken.check("optimizer.step")
        self.gradients.check_step()
        self.watch.enter("the update", self.steps)
        self.broken.update(self.optimizer)

    def _stepped(self, *_: object) -> None:
        self.broken.updating = False
        if self.continuous is None or self.continuous.updated():
            self.updates.stepped()
        self.gradients.stepped()
        self.steps += self.continuous is None or not self.continuous.draining  # else the batch is counted
        if self.local:
            self.local.stepped(self.steps)
        if self.servers:
            self.servers.updated()
        self.watch.enter(BETWEEN, self.steps)
