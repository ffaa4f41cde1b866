"""One row of the table: an architecture planned under each parallelism, exported, run on four ranks, compared."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

import autoplan
from autoplan.options import Parallelism, Training
from autoplan.plan import Plan
from autoplan.verify.compare import FLOAT64, Run, Tolerance, Worst, gradient_error, loss_error, zero_gradients
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import train_eagerly
from autoplan.verify.variants import in_float64
from tests.bench.architectures.architecture import Architecture
from tests.bench.architectures.under_torchrun import gradients_of_folders
from tests.bench.systems.ranks import Train, run
from tests.support.planning import parallelize_unproved

CLUSTER = "1x4 cpu"
RANKS = 4
PARALLELISMS: dict[str, Parallelism | str] = {
    "auto": "auto",
    "ddp": "ddp",
    "tp=4": Parallelism(tp=4),
    "pp=2 tp=2": Parallelism(pp=2, tp=2),
    "zero3": "zero3",
}
FLOAT32 = Tolerance(loss=1e-5, gradients=1e-5, parameters=float("inf"))
TRAINING = Training(optimizer="adamw", learning_rate=1e-3, clip_grad_norm=None)


@dataclass(frozen=True)
class Outcome:
    """What became of an architecture under one parallelism.

    plan     in one line; "" where there is none
    exact    errors of the loss and the worst gradient in float64, against one device
    single   likewise in float32 under torchrun; None where it wasn't asked for
    problem  why it couldn't be built, planned, exported or run
    """

    architecture: str
    parallelism: str
    plan: str = ""
    exact: tuple[Worst, Worst] | None = None
    single: tuple[Worst, Worst] | None = None
    problem: str = ""
    seconds: float = 0.0

    @property
    def faults(self) -> tuple[str, ...]:
        """What keeps the cell from being equal to one device, each with its figure."""
        said = [self.problem] if self.problem else []
        assert said or self.exact is not None, "a cell without a problem was compared"
        said += beyond("float64", self.exact, FLOAT64) + beyond("float32", self.single, FLOAT32)
        return tuple(said)


def beyond(precision: str, found: tuple[Worst, Worst] | None, bound: Tolerance) -> list[str]:
    pairs = zip(("loss", "gradient"), found or (), (bound.loss, bound.gradients), strict=False)
    return [
        f"{precision} {what}: error {worst.error:.1e} of {worst.name}, the bound is {limit:.0e}"
        for what, worst, limit in pairs
        if not worst.error <= limit
    ]


@dataclass
class Row:
    """An architecture while its cells are made: one device's runs, and what has been exported.

    exact, single  one device in float64 and in float32
    weights        a safetensors file of the state that all of them start from
    """

    architecture: Architecture
    folder: Path
    weights: str
    exact: Run
    single: Run
    exported: dict[str, Path] = field(default_factory=dict)

    def batch(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        given = self.architecture.example()
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in given.items()}


def row_of(architecture: Architecture, folder: Path) -> Row:
    """One device's loss and gradients, in both precisions, from the same weights."""
    state = architecture.module().state_dict()
    weights = folder / "weights.safetensors"
    save_file({key: value.detach().clone().contiguous() for key, value in state.items()}, weights)
    row = Row(architecture, folder, str(weights), Run((), {}, {}), Run((), {}, {}))
    row.exact = alone(row, "fp64", torch.float64)
    row.single = alone(row, "fp32", torch.float32)
    return row


def alone(row: Row, precision: str, dtype: torch.dtype) -> Run:
    module = row.architecture.module().to(dtype)
    return train_eagerly(module, None, row.batch(dtype), TRAINING.with_precision(precision), 1)


def check(
    pool: RankPool, architecture: Architecture, parallelisms: Mapping[str, Parallelism | str], *, float32: bool
) -> list[Outcome]:
    """All cells of one architecture; what goes wrong on the way is a cell's outcome, too."""
    with tempfile.TemporaryDirectory(prefix="autoplan-architectures-") as name:
        try:
            row = row_of(architecture, Path(name))
        except Exception as error:  # whatever the user's own model says: it is what the table tells
            problem = f"on one device: {told(error)}"
            return [Outcome(architecture.name, parallelism, problem=problem) for parallelism in parallelisms]
        outcomes = [exactly(pool, row, parallelism, asked) for parallelism, asked in parallelisms.items()]
        return with_float32(row, outcomes) if float32 and row.exported else outcomes


def exactly(pool: RankPool, row: Row, name: str, asked: Parallelism | str) -> Outcome:
    """Planned from the meta device, exported, run on the ranks in float64 and compared."""
    start = time.perf_counter()
    outcome = Outcome(row.architecture.name, name)
    try:
        plan = planned(row.architecture, asked)
        outcome = replace(outcome, plan=str(plan))
        folder = Plan(in_float64(plan.record)).export(row.folder / file_name("exact", name))
        (found,) = run(pool, [Train(str(folder), row.weights, [row.batch(torch.float64)])])
        assert isinstance(found, Run)
        outcome = replace(outcome, exact=compared(found, row.exact, row.exact))
        row.exported[name] = Path(plan.export(row.folder / file_name("single", name)))
    except Exception as error:  # likewise: an outcome of the cell
        outcome = replace(outcome, problem=told(error))
    return replace(outcome, seconds=time.perf_counter() - start)


def planned(architecture: Architecture, asked: Parallelism | str) -> autoplan.Plan:
    return parallelize_unproved(
        architecture.module("meta"), CLUSTER, architecture.example(), training=TRAINING, parallelism=asked
    )


def with_float32(row: Row, outcomes: list[Outcome]) -> list[Outcome]:
    """The same plans in float32, all under one torchrun."""
    found = gradients_of_folders(RANKS, row.exported, row.weights, row.batch(torch.float32))
    if isinstance(found, str):
        return [replace(o, problem=o.problem or f"under torchrun: {found}") for o in outcomes]
    return [
        replace(o, single=compared(found[o.parallelism], row.single, row.exact)) if o.parallelism in found else o
        for o in outcomes
    ]


def compared(found: Run, expected: Run, exact: Run) -> tuple[Worst, Worst]:
    zero = zero_gradients(exact)
    return loss_error(found, expected), gradient_error(found, expected, zero)


def told(error: BaseException) -> str:
    """The error in one line, with the place where it isn't one that users meet."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if len(text) < 600 else f"{type(error).__name__}: … {text[-600:]}"


def file_name(precision: str, parallelism: str) -> str:
    return f"{precision}-{parallelism.replace('=', '').replace(' ', '-')}"
