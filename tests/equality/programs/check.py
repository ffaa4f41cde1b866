"""Programs run on ranks, held to the module on one device; what fails is made smaller."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from safetensors.torch import save_file

from autoplan.export.folder import write_folder
from autoplan.ir.record import PlanRecord
from autoplan.verify.compare import Run, gradient_error, loss_error, zero_gradients
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import train_eagerly
from tests.bench.systems.mixed import Steps
from tests.bench.systems.ranks import FirstSteps, run
from tests.equality.programs.draw import draw_program
from tests.equality.programs.plans import TRAINING, plan_of
from tests.equality.programs.program import Module, Program, batch_of
from tests.equality.programs.setting import Setting, draw_setting
from tests.equality.programs.shrink import shrink

BOUND = 1e-10


class Pools:
    """Ranks by their number, started when they are first asked for."""

    def __init__(self) -> None:
        self.stack, self.pools = ExitStack(), {}  # type: ignore[var-annotated]

    def __enter__(self) -> Pools:
        return self

    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stack.close()

    def of(self, size: int) -> RankPool:
        if size not in self.pools:
            self.pools[size] = self.stack.enter_context(RankPool(size, timeout_s=240))
        return self.pools[size]


@dataclass(frozen=True)
class Failure:
    """A program that isn't equal to one device, or has no plan, or fails: as it was drawn, and as small as it gets."""

    seed: int
    setting: Setting
    program: Program
    says: str
    smaller: Program
    still: str

    def __str__(self) -> str:
        return (
            f"seed {self.seed}, {self.setting}\n{self.says}\n{self.program}\n"
            f"as small as it gets ({self.still}):\n{self.smaller}"
        )


def failures(seeds: Sequence[int], pools: Pools) -> list[Failure]:
    """Every program of these seeds that fails, shrunk."""
    drawn = [(seed, draw_setting(seed)) for seed in seeds]
    jobs = [(seed, setting, draw_program(seed, setting)) for seed, setting in drawn]
    found = []
    for seed, setting, program in jobs:
        says = fault(program, setting, pools)
        if says:
            smaller = shrink(program, alike(says, setting, pools))
            found.append(Failure(seed, setting, program, says, smaller, fault(smaller, setting, pools)))
    return found


def alike(says: str, setting: Setting, pools: Pools) -> Callable[[Program], bool]:
    """Whether a program fails in the same way."""
    kind = says.split(":")[0]
    return lambda program: fault(program, setting, pools).split(":")[0] == kind


def fault(program: Program, setting: Setting, pools: Pools) -> str:
    """What is wrong with a program under a setting, "" where nothing is: kind, then details."""
    try:
        record = plan_of(program, setting)
        sharded = run_sharded(record, program, pools)
    except Exception as error:  # whatever it is, it is a finding, told with the program
        said = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {said[0]} … {said[-1]}"
    wide, module = TRAINING.with_precision("fp64"), Module(program).double()
    expected = train_eagerly(module, None, batch_in_float64(program), wide, 1)
    loss = loss_error(sharded, expected)
    gradient = gradient_error(sharded, expected, zero_gradients(expected))
    if loss.error <= BOUND and gradient.error <= BOUND:
        return ""
    return f"differs: loss by {loss.error:.1e}, gradient of {gradient.name} by {gradient.error:.1e}"


def batch_in_float64(program: Program) -> dict:
    return {name: x.double() if x.is_floating_point() else x for name, x in batch_of(program).items()}


def run_sharded(record: PlanRecord, program: Program, pools: Pools) -> Run:
    """Loss and gradients of the exported program on the plan's ranks."""
    pool = pools.of(record.chosen.mesh.devices)
    with tempfile.TemporaryDirectory(prefix="autoplan-programs-") as name:
        folder, weights = write_folder(record, Path(name) / "out", "a random program", {}), Path(name) / "weights"
        state = Module(program).double().state_dict()
        save_file({key: value.contiguous().clone() for key, value in state.items()}, weights)
        (found,) = run(pool, [FirstSteps(str(folder), str(weights), [batch_in_float64(program)], 1)])
    assert isinstance(found, Steps)
    return Run(found.losses, found.gradients[0], {})


