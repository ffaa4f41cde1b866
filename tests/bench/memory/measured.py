"""One plan after the other, made, exported and run on processes of its own, and its ranks' peaks."""

from __future__ import annotations

import gc
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import autoplan
from autoplan import Plan
from autoplan.rehearsal.rehearse import rehearse
from autoplan.runtime.data.sources import batch_source
from autoplan.runtime.parallel.sharded_parameter import local
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.bench.memory.cases import RANKS, Case, batch, model_of
from tests.bench.memory.watch import ResidentPeak, Tensors

STEPS = 2  # that are measured, after a first one that makes the optimizer's state
LIMIT_S = 600.0
RESIDUAL = ("o_proj.weight", "experts.down_proj")
"""Of a Mixtral's parameters those of the last products of attention and of the experts."""


@dataclass(frozen=True)
class RankPeak:
    """One rank: bytes that the plan predicts, those that a rehearsal finds, bytes of its tensors, resident bytes."""

    predicted: int
    rehearsed: int
    tensors: int
    resident: int

    @property
    def off(self) -> float:
        """What the prediction is off by, as a share of what tensors take."""
        return self.predicted / self.tensors - 1

    @property
    def rehearsed_off(self) -> float:
        """What the rehearsal is off by, likewise."""
        return self.rehearsed / self.tensors - 1


@dataclass(frozen=True)
class Row:
    """One plan and its ranks."""

    name: str
    plan: Plan
    ranks: tuple[RankPeak, ...]

    @property
    def worst(self) -> float:
        return max((rank.off for rank in self.ranks), key=abs)

    @property
    def worst_rehearsed(self) -> float:
        return max((rank.rehearsed_off for rank in self.ranks), key=abs)


def planned(case: Case) -> Plan:
    """Its export proves nothing of evaluations and of other sizes, which takes four more traces."""
    how, model = case.parallelism, model_of(case.model)
    plan = autoplan.parallelize(model, "1x4 cpu", batch(case.rows), training=case.training, parallelism=how)
    return replace(plan, given=None)


def measure(name: str, case: Case) -> Row:
    """Plans, exports, rehearses and runs one case."""
    plan = planned(case)
    with tempfile.TemporaryDirectory() as folder, RankPool(RANKS, timeout_s=LIMIT_S) as pool:
        exported = plan.export(Path(folder) / "out")
        peaks = pool.run(peaks_of_rank, str(exported), case.even)
        classes = rehearse(exported).classes
    rehearsed = {rank: each.peak_bytes for each in classes for rank in each.ranks.ranks}
    predicted = [plan.predicted.peak_bytes[stage_of(plan, rank)].total for rank in range(RANKS)]
    return Row(name, plan, tuple(RankPeak(predicted[rank], rehearsed[rank], *peaks[rank]) for rank in range(RANKS)))


def stage_of(plan: Plan, rank: int) -> int:
    """The entry of ``peak_bytes`` that stands for a rank of the world."""
    return plan.record.chosen.mesh.coordinate(rank, "pp")


def peaks_of_rank(rank: int, size: int, folder: str, even: bool = False) -> tuple[int, int]:
    """(bytes of tensors, resident bytes) at most in a step and the update after it; ``even``: as of ``spread``."""
    resident, tensors = ResidentPeak(), Tensors()
    with tensors:
        program = autoplan.load(folder).program()
        program.init_weights()
        if even:
            spread(program)
        source = batch_source(program.spec, None, 0)
        for step in range(1 + STEPS):
            if step == 1:
                gc.collect()
                tensors.restart()
                resident.restart()
            program.step(source(step))
            program.optimizer.step()
    return tensors.peak_bytes, resident.peak_bytes


def spread(program: Program) -> None:
    """Has attention and experts add nothing at first. What reaches a mixture's router is then a token's embedding, so
    tokens choose evenly and each for itself, as a plan and its rehearsal take them to. What the layers of an untrained
    model make of tokens is alike, and so are these tokens' choices."""
    for held in program.held:
        if held.name.endswith(RESIDUAL):
            for values in (held.values, local(held.parameter.detach())):
                values.zero_()
