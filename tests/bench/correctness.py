"""The equality table: sharded programs on four ranks against one device, printed by ``make correctness``.

Each of six models under each of nine parallelisms is planned for ``1x4 cpu``, exported, and run on four processes from
the same weights as the user's module on one device: in float64 (loss, every gradient, parameters after three AdamW
steps) and in float32 (loss, every gradient). Labels hold -100 unevenly over rows, so that ranks and microbatches count
different numbers of valid ones. The named systems have a matrix of their own: ``tests.bench.systems``.

    python -m tests.bench.correctness [--write docs/appendix/correctness.md] [MODEL ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import autoplan
from autoplan.export.folder import write_folder
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.report.words import headline
from autoplan.verify import STEPS
from autoplan.verify.compare import (
    FLOAT64,
    Run,
    Tolerance,
    Worst,
    gradient_error,
    loss_error,
    zero_gradients,
)
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.variants import in_float64
from tests.bench.systems.cells import Errors, errors
from tests.bench.systems.ranks import Train, run
from tests.bench.systems.reference import References, references
from tests.support import zoo
from tests.support.planning import parallelize_alone
from tests.support.shared_plans import SharedPlans
from tests.support.tolerances import FLOAT32

MODELS = ("llama", "gpt2", "bert", "vit", "mlp", "convnet")
COUPLED = ("convnet", "resnet")  # batch norm couples the rows of a batch: one microbatch is all there can be
SYSTEMS: dict[str, Parallelism | str] = {
    "ddp": Parallelism(dp=4, tp=1, pp=1, zero=0, micro_batch=1),
    "zero3": Parallelism(dp=4, tp=1, pp=1, zero=3, micro_batch=1),
    "tp=2": Parallelism(tp=2),
    "tp=4": Parallelism(tp=4, micro_batch=4),
    "pp=2": Parallelism(pp=2),
    "dp=2 tp=2": Parallelism(dp=2, tp=2, pp=1, micro_batch=2),
    "dp=2 pp=2": Parallelism(dp=2, tp=1, pp=2, micro_batch=1),
    "tp=2 pp=2": Parallelism(dp=1, tp=2, pp=2, micro_batch=2),
    "auto": "auto",
}
DEEPER = {"pp=4": Parallelism(dp=1, tp=1, pp=4)}
"""Beyond the table: as many stages as ranks, so that values skip some."""
TRAINING = Training(optimizer="adamw", learning_rate=1e-3, clip_grad_norm=None)


@dataclass(frozen=True)
class Row:
    """One cell of the table: relative errors in both precisions."""

    model: str
    system: str
    plan: str
    exact: Errors
    loss32: Worst
    gradients32: Worst
    seconds: float

    @property
    def passed(self) -> bool:
        exact = within(FLOAT64, self.exact.loss, self.exact.gradients, self.exact.parameters)
        return exact and within(FLOAT32, self.loss32, self.gradients32, Worst(0.0, ""))


def within(bound: Tolerance, loss: Worst, gradients: Worst, parameters: Worst) -> bool:
    return loss.error <= bound.loss and gradients.error <= bound.gradients and parameters.error <= bound.parameters


def system_for(model: str, system: str) -> Parallelism | str:
    pinned = {**SYSTEMS, **DEEPER}[system]
    if isinstance(pinned, Parallelism) and model in COUPLED:
        fields = {**pinned.pinned()}
        fields.pop("micro_batch", None)
        return Parallelism(**fields)  # type: ignore[arg-type]
    return pinned


def plan_for(model: str, system: str) -> autoplan.Plan:
    module, batch, loss_fn = zoo.small(model)
    return parallelize_alone(
        module, "1x4 cpu", batch, loss_fn=loss_fn, training=TRAINING, parallelism=system_for(model, system)
    )


def record_for(model: str, system: str, shared: SharedPlans) -> PlanRecord:
    """The same plan, which is searched once where several tests ask for it."""
    return shared.record(f"{model}: {system}", lambda: plan_for(model, system))


def check(pool: RankPool, known: References, model: str, system: str, shared: SharedPlans) -> Row:
    """Plans, exports, runs and compares one cell."""
    start = time.perf_counter()
    record = record_for(model, system, shared)
    exact, single = runs(pool, known, model, [in_float64(record), record])
    expected, reference = known.trained(model, "fp64"), known.trained(model, "fp32")
    return Row(
        model,
        system,
        headline(record),
        errors(exact, expected),
        loss_error(single, reference),
        gradient_error(single, reference, zero_gradients(expected)),
        time.perf_counter() - start,
    )


def runs(pool: RankPool, known: References, model: str, records: Sequence[PlanRecord]) -> list[Run]:
    """What each plan makes of the model's weights and batch, exported and run on the ranks."""
    jobs = []
    with tempfile.TemporaryDirectory(prefix="autoplan-correctness-") as name:
        for number, record in enumerate(records):
            assert isinstance(record.training, Training)
            folder = write_folder(record, Path(name) / f"out{number}", "correctness", {})
            batch = known.batch(model, record.training.precision)
            jobs.append(Train(str(folder), known.weights(model), [batch] * STEPS))
        found = run(pool, jobs)
    return [one for one in found if isinstance(one, Run)]


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| model | system | plan | loss, fp64 | gradients, fp64 | parameters, fp64 | loss, fp32 | gradients, fp32 "
        "| equal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        found = [r.exact.loss, r.exact.gradients, r.exact.parameters, r.loss32, r.gradients32]
        cells = [r.model, r.system, r.plan, *(f"{e.error:.0e}" for e in found), "yes" if r.passed else "**no**"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--system", action="append", help="only this system (repeatable)")
    parser.add_argument("--write", type=Path, help="also write the table into this document")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    with (
        RankPool(4, timeout_s=240) as pool,
        references(zoo.small, TRAINING) as known,
        tempfile.TemporaryDirectory(prefix="autoplan-plans-") as plans,
    ):
        for model in options.models:
            for system in options.system or SYSTEMS:
                rows.append(check(pool, known, model, system, SharedPlans(Path(plans))))
                print(f"{rows[-1].seconds:5.1f} s  {'equal' if rows[-1].passed else 'NOT EQUAL'}  {model}  {system}: "
                      f"{rows[-1].plan}", file=sys.stderr, flush=True)  # fmt: skip
    text = table(rows)
    print(text)
    if options.write:
        options.write.write_text(document(text, rows))
    return 0 if all(row.passed for row in rows) else 1


def document(text: str, rows: Sequence[Row]) -> str:
    head = (
        "# Correctness\n\n"
        "Sharded programs on four ranks against the user's module on one device, as `make correctness` printed it "
        f"(torch {torch.__version__.split('+')[0]}, gloo on CPU). Named systems: [systems.md](systems.md).\n\n"
        "Relative errors in the 2-norm: of the loss, of the worst gradient, of the worst parameter after three AdamW "
        f"steps. Bounds: float64 {FLOAT64.loss:.0e}, {FLOAT64.gradients:.0e}, {FLOAT64.parameters:.0e}; float32 "
        f"{FLOAT32.loss:.0e}, {FLOAT32.gradients:.0e}. A gradient that is zero in float64 (a key projection's bias, "
        "which softmax doesn't see) is measured against the global norm, and so is that parameter. In "
        "float64 the casts to float32 inside the models are widened on both sides.\n\n"
    )
    return f"{head}{text}\n\n{sum(r.passed for r in rows)} of {len(rows)} equal.\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
