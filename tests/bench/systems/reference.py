"""One device: the user's own module, run once for each model and precision, whatever is compared with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from autoplan.options import Parallelism, Training
from autoplan.plan import Plan
from autoplan.runtime.parallel.servers.backups import in_turns
from autoplan.trace.batch_binding import bind
from autoplan.verify import STEPS
from autoplan.verify.compare import Run
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import train_eagerly
from tests.bench.systems.mixed import Steps
from tests.bench.systems.ranks import Batch, FirstSteps, run
from tests.support import zoo
from tests.support.asynchronous import (
    Diloco,
    Gossip,
    How,
    Meet,
    Simulated,
    first_workers,
    local_sgd,
    older_weights,
    pipeline_ages,
    told,
    workers_in_turn,
)
from tests.support.compressed import FrozenAdam, FrozenLamb, boxes_of, compressed, replicas_of
from tests.support.compressed import Run as Compressing
from tests.support.planning import parallelize_unproved

LOSSES, GRADIENTS = 32, 4
CAUSAL = ("llama", "gpt2")  # whose module shifts labels by a token
"""Batches over which distances in bf16-mixed are taken: each has one loss, but many elements of gradients."""
DTYPES = {"fp64": torch.float64, "fp32": torch.float32}


@contextmanager
def references(make: Callable[[str], zoo.Made], training: Training) -> Iterator[References]:
    """References of the models that ``make`` makes, under one optimizer."""
    with tempfile.TemporaryDirectory(prefix="autoplan-references-") as folder, RankPool(1, timeout_s=240) as alone:
        yield References(make, training, Path(folder), alone)


class References:
    """What one device makes of each model, computed when it is first asked for.

    folder  where files of weights and plans of one rank go
    alone   a pool of one rank
    """

    def __init__(
        self, make: Callable[[str], zoo.Made], training: Training, folder: Path, alone: RankPool
    ) -> None:
        self.make, self.training, self.folder, self.alone = make, training, folder, alone
        self._names: dict[str, tuple[str, ...]] = {}
        self._trained: dict[tuple[str, str], Run] = {}
        self._wide: dict[str, Steps] = {}
        self._mixed: dict[tuple[str, int], Steps] = {}

    def weights(self, model: str) -> str:
        """A safetensors file of the model's parameters and buffers."""
        file = self.folder / f"{model}.safetensors"
        if not file.exists():
            state = self.make(model)[0].state_dict()
            save_file({name: value.detach().clone().contiguous() for name, value in state.items()}, file)
        return str(file)

    def batch(self, model: str, precision: str = "fp32", seed: int = 0) -> Batch:
        """A batch under the names that a plan has for it."""
        given = zoo.batch_of(model, seed)
        if model not in self._names:
            module, _, loss_fn = self.make(model)
            self._names[model] = bind(module, given, loss_fn).names
        values = given.values() if isinstance(given, dict) else given
        named = zip(self._names[model], values, strict=True)
        return {n: v.to(DTYPES[precision]) if v.is_floating_point() else v for n, v in named}

    def batches(self, model: str) -> list[Batch]:
        return [self.batch(model, seed=seed) for seed in range(LOSSES)]

    def trained(self, model: str, precision: str) -> Run:
        """STEPS optimizer steps of the module on its batch, in "fp64" or "fp32"."""
        key = model, precision
        if key not in self._trained:
            self._trained[key] = self.eagerly(model, precision, self.batch(model, precision), STEPS)
        return self._trained[key]

    def by_rule(self, model: str, plan: Plan, batches: Sequence[Batch]) -> Simulated:
        """One process that trains the module on these batches by the rule of an asynchronous plan, in float64."""
        module, _, _ = self.make(model)
        rate = self.training.learning_rate
        how = How(optimizer=lambda one: torch.optim.AdamW(one.parameters(), lr=rate))
        chosen = plan.record.chosen
        if chosen.parallelism.compressed:
            replicas, start = replicas_of(plan, shifted=model in CAUSAL), plan.record.training.compression_start or 0
            if chosen.parallelism.compressed.one_bit:
                frozen = FrozenLamb if chosen.parallelism.compression == "1bit-lamb" else FrozenAdam
                how = replace(how, optimizer=lambda one: frozen(one, start, rate))
            return compressed(module.double(), batches, boxes_of(plan), how, replicas, Compressing(start))
        if not chosen.parallelism.steps_locally:
            if chosen.parallelism.backups:
                workers = chosen.mesh.size("dp")
                first = workers - chosen.parallelism.backups
                order = [in_turns(step, workers, first) for step in range(len(batches))]
                return first_workers(module.double(), batches, workers, order, chosen.microbatches, how)
            if chosen.parallelism.ahead:
                return workers_in_turn(module.double(), batches, chosen.mesh.size("dp"), chosen.microbatches, how)
            if not chosen.parallelism.continuous:
                return older_weights(module.double(), batches, how, chosen.parallelism.staleness or 0)
            ages = pipeline_ages(plan)
            found = older_weights(module.double(), batches, how, of=ages.__getitem__)
            return replace(found, losses=told(found.losses, max(ages.values())))
        replicas, every = chosen.parallelism.dp, chosen.parallelism.local_steps or 1
        assert replicas is not None
        module = module.double()
        meet: Meet | None = Diloco(module) if chosen.parallelism.outer_optimizer else None
        meet = Gossip(chosen.parallelism.gossip, replicas) if chosen.parallelism.gossip else meet
        return local_sgd(module, batches, replicas, chosen.microbatches, every, how, meet)

    def wide(self, model: str) -> Steps:
        """The module in float32 on each of the batches."""
        if model not in self._wide:
            found = [self.eagerly(model, "fp32", batch, 1) for batch in self.batches(model)]
            gradients = tuple(run.gradients for run in found[:GRADIENTS])
            self._wide[model] = Steps(tuple(run.losses[0] for run in found), gradients)
        return self._wide[model]

    def eagerly(self, model: str, precision: str, batch: Batch, steps: int) -> Run:
        module, _, loss_fn = self.make(model)
        training = self.training.with_precision(precision)
        return train_eagerly(module.to(DTYPES[precision]), loss_fn, batch, training, steps)

    def mixed(self, model: str, microbatches: int) -> Steps:
        """One device in bf16-mixed on each of the batches, in as many microbatches as what it is compared with."""
        key = model, microbatches
        if key not in self._mixed:
            folder = self.alone_plan(model, microbatches)
            job = FirstSteps(folder, self.weights(model), self.batches(model), GRADIENTS)
            (found,) = run(self.alone, [job])
            assert isinstance(found, Steps)
            self._mixed[key] = found
        return self._mixed[key]

    def alone_plan(self, model: str, microbatches: int) -> str:
        """The exported folder of a plan for one rank."""
        module, batch, loss_fn = self.make(model)
        rows = zoo.BATCH // microbatches
        plan = parallelize_unproved(
            module, "1x1 cpu", batch, loss_fn=loss_fn, training=self.training.with_precision("bf16-mixed"),
            parallelism=Parallelism(dp=1, tp=1, pp=1, zero=0, micro_batch=rows, recompute="none"),
        )  # fmt: skip
        return str(plan.export(self.folder / f"{model}-{microbatches}"))
