"""A pair on its ranks: our plan's program and the way by hand, in one process group, step by step in turns."""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

import autoplan
from autoplan.runtime.parallel.compiled import compile_segments
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.bench.pairs.byhand.parts import LEARNING_RATE
from tests.bench.pairs.cases import CASES, PRECISIONS
from tests.bench.pairs.measured import Counted, Step, counted, cpu_seconds, saved_bytes
from tests.bench.pairs.models import Size, batch, made
from tests.support.planning import parallelize_unproved

CHECKED = 3  # steps whose losses are compared
LIMIT_S = 600.0
COMPILED_LAYERS = 2  # a compiler takes longer over more


@dataclass(frozen=True)
class Side:
    """One side of a rank: losses of the first steps (none where another rank has them), counts, CPU seconds a step."""

    losses: tuple[float, ...]
    counted: Counted
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """A pair: of each rank ours and theirs."""

    case: str
    model: str
    precision: str
    ours: tuple[Side, ...]
    theirs: tuple[Side, ...]

    @property
    def ratios(self) -> tuple[float, float, float]:
        """Of CPU seconds over all ranks, round by round: quartiles."""
        rounds = zip(
            zip(*(side.seconds for side in self.ours), strict=True),
            zip(*(side.seconds for side in self.theirs), strict=True),
            strict=True,
        )
        low, middle, high = statistics.quantiles([sum(a) / sum(b) for a, b in rounds], n=4)
        return low, middle, high

    @property
    def calls(self) -> tuple[int, int]:
        return sum(s.counted.total for s in self.ours), sum(s.counted.total for s in self.theirs)

    @property
    def saved(self) -> tuple[int, int]:
        """Of the rank that keeps most."""
        return max(s.counted.saved_bytes for s in self.ours), max(s.counted.saved_bytes for s in self.theirs)

    @property
    def collectives(self) -> tuple[int, int]:
        return messages(self.ours), messages(self.theirs)

    @property
    def wire_bytes(self) -> tuple[int, int]:
        return sum(s.counted.wire_bytes for s in self.ours), sum(s.counted.wire_bytes for s in self.theirs)

    @property
    def losses(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of both sides' first steps: the mean over the ranks that have one."""
        return mean_losses(self.ours), mean_losses(self.theirs)


def messages(sides: Sequence[Side]) -> int:
    return sum(sum(side.counted.collectives.values()) for side in sides)


def mean_losses(sides: Sequence[Side]) -> tuple[float, ...]:
    known = [side.losses for side in sides if side.losses]
    return tuple(map(statistics.fmean, zip(*known, strict=True)))


def contest(case: str, model: str, precision: str, size: Size, rounds: int, recompute: str | None = None) -> Row:
    """Plans, exports and runs one pair; ``rounds`` of seconds, none where counts are enough. ``recompute``: of our
    program, where it isn't the case's own."""
    given, ranks, pinned = batch(size), CASES[case].ranks, CASES[case].pinned(size.rows)
    pinned = pinned if recompute is None else replace(pinned, recompute=recompute)
    plan = parallelize_unproved(
        made(model, size), f"1x{ranks} cpu", given, parallelism=pinned,
        training=autoplan.Training(
            precision=precision, learning_rate=LEARNING_RATE, randomness=CASES[case].randomness
        ),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, RankPool(ranks, timeout_s=LIMIT_S) as pool:
        exported = plan.export(Path(folder) / "out")
        sides = pool.run(both_sides, str(exported), case, model, precision, size, rounds)
    ours, theirs = zip(*sides, strict=True)
    return Row(case, model, precision, ours, theirs)


def both_sides(
    rank: int, ranks: int, folder: str, case: str, model: str, precision: str, size: Size, rounds: int
) -> tuple[Side, Side]:
    given = batch(size)
    with autoplan.load(folder).program() as program:
        program.load_weights(made(model, size).state_dict())
        if CASES[case].compiled:
            compile_segments(program.stages.modules)
        ours = step_of(program, given)
        theirs = by_hand(program, case, model, precision, size)
        sides = ours, theirs
        losses = [[read(step.run()) for _ in range(CHECKED)] for step in sides]
        found = [of_step(step, CASES[case].compiled) for step in sides]
        seconds = alternating(sides, rounds)
        first, second = (
            Side(tuple(x for x in known if x is not None), each, tuple(taken))
            for known, each, taken in zip(losses, found, seconds, strict=True)
        )
        return first, second


def by_hand(program: Program, case: str, model: str, precision: str, size: Size) -> Step:
    given, count = batch(size), CASES[case].microbatches
    if "pp" not in CASES[case].parallelism:
        return CASES[case].by_hand(made(model, size), given, precision, count)
    return CASES[case].by_hand(made(model, size), given, precision, count, layers_of(program))


def layers_of(program: Program) -> list[int]:
    """How many of the model's layers each of our stages has: a block that repeats is one."""
    lowered = program.spec.lowered
    of = Counter(segment.block for segment in lowered.segments)
    repeated = of.most_common(1)[0][0]
    return [sum(s.block == repeated for s in lowered.segments[x.first : x.last]) for x in lowered.stages]


def step_of(program: Program, given: dict[str, Tensor]) -> Step:
    def run() -> Tensor:
        program.optimizer.zero_grad()
        loss = program.step(given)
        program.optimizer.step()
        return loss

    def held() -> list[Tensor]:
        own = [t for stage in program.stages.modules for t in (*stage.parameters(), *stage.buffers())]
        return [*own, *given.values()]

    return Step(run, held)


def read(loss: Tensor | None) -> float | None:
    return None if loss is None else loss.item()


def of_step(step: Step, compiled: bool) -> Counted:
    if compiled:
        return Counted(Counter(), Counter(), 0, saved_bytes(step))
    return counted(step)


def alternating(sides: Sequence[Step], rounds: int) -> list[list[float]]:
    """CPU seconds of each side's steps, in turns; the side that begins changes."""
    found: list[list[float]] = [[] for _ in sides]
    gc.collect()
    for j in range(rounds):
        for at in (0, 1) if j % 2 else (1, 0):
            dist.barrier()
            found[at].append(cpu_seconds(sides[at]))
    return found


def measured_pairs(size: Size, rounds: int, words: Sequence[str] = ()) -> list[Row]:
    """Every case with each of its models in each precision whose names hold all words."""
    asked = [(c, m, p) for c, given in CASES.items() for m in given.models for p in PRECISIONS]
    found = []
    for case, model, precision in asked:
        if all(word in f"{case}, {model}, {precision}" for word in words):
            few = replace(size, layers=COMPILED_LAYERS) if CASES[case].compiled else size
            found.append(contest(case, model, precision, few, rounds))
            print(pairs_line(found[-1]), file=sys.stderr, flush=True)
    return found


def pairs_line(row: Row) -> str:
    low, middle, high = row.ratios
    return f"{row.case}, {row.model}, {row.precision}: CPU {middle:.2f} ({low:.2f}-{high:.2f}), calls {row.calls}"
