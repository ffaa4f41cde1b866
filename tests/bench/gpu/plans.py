"""The plans of one rank that the parts run: made on any machine, by the known profile, and kept in the folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

import autoplan
from autoplan import Parallelism, Plan, Training
from autoplan.runtime.program import Program
from tests.bench.gpu.clock import Act
from tests.bench.gpu.setting import Setting
from tests.support.planning import parallelize_alone


@dataclass(frozen=True)
class OneRank:
    """A plan of one rank, all of it pinned.

    parts  microbatches
    """

    model: str
    precision: str
    compiled: bool = True
    recompute: str = "none"
    parts: int = 1

    @property
    def slug(self) -> str:
        kind = "compiled" if self.compiled else "eager"
        said = (self.model, self.precision, kind, self.recompute, str(self.parts))
        return "-".join(said).lower().replace(", ", "-").replace(" ", "-")


def plan_of(setting: Setting, asked: OneRank) -> Plan:
    """By the measured profile where there is one. The module has no values: they come when a program runs."""
    with torch.device("meta"):
        module = setting.module(asked.model, dropout=True)
    training = Training(precision=asked.precision, learning_rate=1e-4, compile=asked.compiled)
    rows = setting.size.rows // asked.parts
    parallelism = Parallelism(dp=1, tp=1, pp=1, micro_batch=rows, recompute=asked.recompute)
    return parallelize_alone(
        module, setting.cluster(), dict(setting.batch()), training=training, parallelism=parallelism
    )


def folder_of(setting: Setting, asked: OneRank) -> Path:
    """Of the exported plan; it is made where it isn't there yet, and what runs doesn't depend on its prices."""
    folder = setting.folder / "plans" / asked.slug
    return folder if folder.exists() else plan_of(setting, asked).export(folder)


@contextmanager
def running(setting: Setting, asked: OneRank) -> Iterator[Program]:
    """The plan's program with a module's values; one process, a process group of its own."""
    with autoplan.load(folder_of(setting, asked)).program() as program:
        program.load_weights(module_on_device(setting, asked.model).state_dict())
        yield program


def module_on_device(setting: Setting, model: str) -> torch.nn.Module:
    with setting.on:
        return setting.module(model, dropout=True)


def step_of(program: Program, setting: Setting) -> Act:
    """A step on a batch in the host's memory, and its update; gives the loss."""
    batch = dict(setting.batch())

    def act() -> torch.Tensor:
        program.optimizer.zero_grad()
        loss = program.step(batch)
        program.optimizer.step()
        return loss

    return act
