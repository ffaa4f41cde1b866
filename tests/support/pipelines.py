"""Small random pipelines, and the best of each by trying every cut and every recomputation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autoplan.cluster import ClusterSpec
from autoplan.ir.choice import StageChoice, StageMemory
from autoplan.ir.graph import Model, Segment
from autoplan.options import Training
from autoplan.search.block_cost.account import BlockCost
from autoplan.search.block_cost.selective import SelectiveSaves
from autoplan.search.evaluate import Evaluated, Evaluator, finish
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.intra_op.intra_op_plan import IntraOpPlan
from autoplan.search.intra_op.problem_inputs import Prepared
from autoplan.search.intra_op.solve import Solution
from autoplan.search.operator_problems import OperatorProblems
from autoplan.search.space.candidates import Candidate

NOTHING = Solution((), (), 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Pipeline:
    """A chain of priced segments under one candidate, and who searches for its cuts."""

    evaluator: Evaluator
    candidate: Candidate
    point: IntraOpPlan

    @property
    def stage_model(self) -> StageModel:
        return self.evaluator.costs.stage_model(self.candidate, self.point)

    def searched(self, wall: float) -> Evaluated | None:
        return self.evaluator.with_point(self.candidate, self.point, wall)


def random_pipeline(seed: int, message: float = 1.0) -> Pipeline:
    """Four to seven segments of two to four classes, of which some repeat; two to four stages; some parameters tied.

    message  times the bytes between segments: at 1 a message takes a small part of a stage's time
    """
    random = np.random.default_rng(seed)
    stages, microbatches = int(random.integers(2, 5)), int(random.integers(1, 9))
    count = int(random.integers(max(4, stages), 8))
    classes = sorted(random.integers(0, random.integers(2, 5), count)) if seed % 2 else random.integers(0, 3, count)
    order = [list(dict.fromkeys(map(int, classes))).index(c) for c in map(int, classes)]
    blocks = tuple(random_price(random, message) for _ in range(max(order) + 1))
    tied = order[0] == order[-1] and bool(random.integers(0, 2))
    segments = tuple(
        Segment(b, str(i), (f"{at}.w", f"{at}.frozen"), (), ())
        for i, b in enumerate(order)
        for at in (0 if tied and i == count - 1 else i,)
    )
    model = Model("Chain", (), (), (), (), (), (), segments)
    cluster = str(random.choice([f"1x{stages} h100-sxm", f"{stages}x1 h100-sxm", f"1x{stages} cpu"]))
    topology = ClusterSpec.parse(cluster).topology()
    operators = OperatorProblems(Prepared(model, (), {}, (), True), topology, True, 7.0, False)
    schedule = "gpipe" if microbatches < stages else str(random.choice(["1f1b", "gpipe"]))
    recompute = str(random.choice(["auto", "auto", "full", "selective", "none"]))
    candidate = Candidate(stages, 1, 1, 1, microbatches, 0, schedule, recompute)
    return Pipeline(Evaluator.of(operators, Training()), candidate, IntraOpPlan((), blocks, NOTHING))


def random_price(random: np.random.Generator, message: float = 1.0) -> BlockCost:
    """A block of up to some milliseconds and megabytes; what it keeps selectively is less than what it keeps whole."""
    forward_s = float(random.uniform(1e-3, 6e-3))
    kept, parameters = int(random.integers(2e6, 9e6)), int(random.integers(1e5, 2e6))
    part = int(kept * random.uniform(0.3, 0.8))
    boundary = int(message * random.integers(1e5, 1e6))
    return BlockCost(
        forward_s=forward_s,
        backward_s=forward_s * float(random.uniform(1.5, 2.5)),
        weights_s=0.4 * forward_s,
        flops=0.0,
        kept_bytes=kept,
        selective=SelectiveSaves(part, kept - part, forward_s * float(random.uniform(0.1, 0.4))),
        input_bytes=boundary,
        output_bytes=boundary,
        constant_bytes=int(random.integers(0, 1e5)),
        working_bytes=int(random.integers(1e5, 1e6)),
        parameter_bytes=(parameters, kept // 3),
        summed_axes=((), ()),
        trained=(True, False),
        moves=(),
        parameter_shapes=((parameters // 4,), (kept // 12,)),
    )


def by_trial(pipeline: Pipeline, wall: float) -> Evaluated | None:
    """The plan of the least step time over every cut and every recomputation, or None where none fits."""
    divided = cuts(len(pipeline.stage_model.chain), pipeline.candidate.stages)
    found = (plan for runs in divided for plan in plans(pipeline, runs, wall))
    return min(found, key=lambda plan: plan.step_s, default=None)


def cuts(segments: int, stages: int) -> Iterator[tuple[tuple[int, int], ...]]:
    for inner in itertools.combinations(range(1, segments), stages - 1):
        yield tuple(itertools.pairwise((0, *inner, segments)))


def plans(pipeline: Pipeline, runs: tuple[tuple[int, int], ...], wall: float) -> Iterator[Evaluated]:
    """Every plan of these cuts that fits, as ``finish`` prices it. Of a stage's recomputations that fit and take as
    long, one."""
    stage_model = pipeline.stage_model
    choices = [fitting(stage_model, stage, at, wall) for stage, at in enumerate(runs)]
    for stages in itertools.product(*choices):
        yield finish(pipeline.candidate, pipeline.point, stage_model, stages, 0.0)


def fitting(stage_model: StageModel, stage: int, at: tuple[int, int], wall: float) -> list[StageChoice]:
    """The recomputations of one stage under its wall, those dropped that another undercuts: a stage whose backward is
    longer never makes a step shorter."""
    count = int(stage_model.chain.repeated[slice(*at)].sum())
    mixes = {
        "none": [(0, 0)], "full": [(count, 0)], "selective": [(0, count)],
        "auto": [(c, e) for c in range(count + 1) for e in range(count + 1 - c)],
    }[stage_model.candidate.recompute]  # fmt: skip
    own = stage_model.at(stage)
    wall += own.headroom
    held = [(own.backward_s(at, *mix), mix) for mix in mixes if memory_of_stage(own, stage, at, *mix).total <= wall]
    return [StageChoice(*at, *min(held)[1])] if held else []


def memory_of_stage(
    found: StageModel, stage: int, at: tuple[int, int], recompute: int, selective: int = 0
) -> StageMemory:
    """What one device of a pipeline rank with this stage alone needs."""
    return found.memory_of((StageChoice(*at, recompute, selective),), (stage,))[0]


def walls(pipeline: Pipeline, count: int = 4) -> list[float]:
    """From one under which little fits to one under which all does."""
    stage_model, stages = pipeline.stage_model, pipeline.candidate.stages
    kinds = {
        max(
            memory_of_stage(stage_model, k, at, mix, 0).total
            for k, (at, mix) in enumerate(zip(runs, counts, strict=True))
        )
        for runs in cuts(len(stage_model.chain), stages)
        for counts in ([0] * stages, [int(stage_model.chain.repeated[slice(*at)].sum()) for at in runs])
    }
    low, high = min(kinds), max(kinds)
    return [low * (high / low) ** share * (1 + 1e-9) for share in (0.0, 0.25, 0.6, 1.0)[:count]]
