"""One cell of the matrix: a system and a model, planned, exported, run, compared."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autoplan.cluster import ClusterSpec
from autoplan.errors import AutoplanError
from autoplan.plan import Plan
from autoplan.search.space.systems import resolve
from autoplan.verify import STEPS
from autoplan.verify.compare import (
    FLOAT64,
    Run,
    Worst,
    gradient_error,
    loss_error,
    parameter_error,
    zero_gradients,
)
from autoplan.verify.local_ranks import RankError, RankPool
from autoplan.verify.variants import in_float64
from tests.bench.systems import cases
from tests.bench.systems.mixed import FURTHER, SURE, Distance, Steps, distance, standard_error
from tests.bench.systems.ranks import STALE_STEPS, FirstSteps, Train, run
from tests.bench.systems.reference import GRADIENTS, References
from tests.support.planning import parallelize_unproved

WARM_UP = 2  # of 1-bit Adam


@dataclass(frozen=True)
class Errors:
    """Relative errors of a run in float64; of one that is compared with a simulation no gradients."""

    loss: Worst
    gradients: Worst
    parameters: Worst


@dataclass(frozen=True)
class Outcome:
    """What became of one cell.

    plan     in one line; "" where there is none
    exact    in float64, against one device
    sharded, single   in bf16-mixed: how far the program and how far one device is from float32
    stale    the plan's updates are stale on purpose: it is compared with one process that follows its rule
    problem  why it couldn't be planned, exported or run
    """

    system: str
    model: str
    ranks: int
    plan: str = ""
    exact: Errors | None = None
    sharded: Distance | None = None
    single: Distance | None = None
    stale: bool = False
    problem: str = ""
    seconds: float = 0.0

    @property
    def faults(self) -> tuple[str, ...]:
        """Which bounds don't hold, each with its figure; empty where the system does what it should."""
        if self.problem:
            return (self.problem,)
        assert self.exact is not None
        if self.stale:
            return exact_faults(self.exact)
        assert self.sharded is not None and self.single is not None
        return exact_faults(self.exact) + mixed_faults(self.sharded, self.single)

    @property
    def passed(self) -> bool:
        return not self.faults


def exact_faults(errors: Errors) -> tuple[str, ...]:
    bounds = (
        ("loss", errors.loss, FLOAT64.loss),
        ("gradient", errors.gradients, FLOAT64.gradients),
        ("parameter after the last step", errors.parameters, FLOAT64.parameters),
    )
    return tuple(
        f"float64 {what}: error {worst.error:.1e} of {worst.name}, the bound is {bound:.0e}"
        for what, worst, bound in bounds
        if not worst.error <= bound
    )


def mixed_faults(sharded: Distance, single: Distance) -> tuple[str, ...]:
    chance = math.exp(SURE * standard_error(sharded, single))
    pairs = (("loss", sharded.loss, single.loss, chance), ("gradients", sharded.gradients, single.gradients, 1.0))
    return tuple(
        f"bf16-mixed {what}: {ours:.2e} from float32, {ours / theirs:.2f} times one device's {theirs:.2e}, the bound "
        f"is {FURTHER} times{'' if width == 1 else f', {FURTHER * width:.2f} for so few batches'}"
        for what, ours, theirs, width in pairs
        if not (math.isfinite(theirs) and ours <= FURTHER * theirs * width)
    )


def check(pools: Mapping[int, RankPool], known: References, system: str, model: str) -> Outcome:
    """Plans, exports, runs and compares one cell; what goes wrong on the way is its outcome, too."""
    start = time.perf_counter()
    outcome = Outcome(system, model, cases.ranks_of(system))
    try:
        plan = planned(known, system, model)
        outcome = compared(pools[outcome.ranks], known, replace(outcome, plan=str(plan)), plan)
    except (AutoplanError, RankError) as error:
        outcome = replace(outcome, problem=f"{type(error).__name__}: {error}")
    return replace(outcome, seconds=time.perf_counter() - start)


def planned(known: References, system: str, model: str) -> Plan:
    """Of replicas that would meet after the steps here, one whose replicas meet twice in them; of 1-bit Adam one whose
    warm-up is a part of them."""
    module, batch, loss_fn = known.make(model)
    cluster = cases.cluster_of(system)
    asked = resolve(system, ClusterSpec.of(cluster))
    often = replace(asked, local_steps=STALE_STEPS // 3) if (asked.local_steps or 1) > STALE_STEPS else system
    one_bit = asked.compressed is not None and asked.compressed.one_bit
    training = replace(known.training, compression_start=WARM_UP if one_bit else None)
    training = replace(training, optimizer="lamb") if system.endswith("lamb") else training
    return parallelize_unproved(
        module, cluster, batch, loss_fn=loss_fn, training=training, parallelism=often
    )


def compared(pool: RankPool, known: References, outcome: Outcome, plan: Plan) -> Outcome:
    """The plan and the same plan in float64, each exported and run on the ranks."""
    if cases.asynchronous(plan.parallelism):
        return replace(outcome, stale=True, exact=simulated(pool, known, outcome.model, plan))
    model, weights = outcome.model, known.weights(outcome.model)
    with tempfile.TemporaryDirectory(prefix="autoplan-systems-") as name:
        mixed = plan.export(Path(name) / "mixed")
        exact = Plan(in_float64(plan.record)).export(Path(name) / "exact")
        trained, steps = run(
            pool,
            [
                Train(str(exact), weights, [known.batch(model)] * STEPS),
                FirstSteps(str(mixed), weights, known.batches(model), GRADIENTS),
            ],
        )
    assert isinstance(trained, Run) and isinstance(steps, Steps)
    single = known.mixed(model, plan.record.chosen.microbatches)
    return replace(
        outcome,
        exact=errors(trained, known.trained(model, "fp64")),
        sharded=distance(steps, known.wide(model)),
        single=distance(single, known.wide(model)),
    )


def simulated(pool: RankPool, known: References, model: str, plan: Plan) -> Errors:
    """An asynchronous plan in float64, on a batch of its own in each step, against its rule in one process."""
    batches = known.batches(model)[:STALE_STEPS]
    with tempfile.TemporaryDirectory(prefix="autoplan-systems-") as name:
        folder = Plan(in_float64(plan.record)).export(Path(name) / "exact")
        (found,) = run(pool, [Train(str(folder), known.weights(model), batches)])
    assert isinstance(found, Run)
    expected = known.by_rule(model, plan, batches)
    zero = zero_gradients(known.trained(model, "fp64"))
    losses = [abs(a - b) / abs(b) for a, b in zip(found.losses, expected.losses, strict=True)]
    reference = Run(tuple(expected.losses), {}, expected.parameters)
    return Errors(Worst(max(losses), "loss"), Worst(0.0, ""), parameter_error(found, reference, zero))


def errors(found: Run, expected: Run) -> Errors:
    zero = zero_gradients(expected)
    return Errors(
        loss_error(found, expected), gradient_error(found, expected, zero), parameter_error(found, expected, zero)
    )
