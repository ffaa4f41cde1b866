"""All trainings of two nodes of one size, in three starts of torchrun; and one device's, in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from subprocess import CalledProcessError

import torch
from safetensors.torch import save_file
from torch import Tensor

import autoplan
from autoplan.errors import AutoplanError
from autoplan.export.folder import write_folder
from autoplan.options import Training
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.trace.batch_binding import bind
from autoplan.trace.passes.precision import widened
from autoplan.verify.compare import FLOAT64, Run, parameter_error, zero_gradients
from autoplan.verify.reference import loss_of, plain_experts
from autoplan.verify.variants import in_float64
from cost_models.pipeline.schedule import staleness
from tests.bench.live.clusters import Cluster
from tests.bench.systems import cases
from tests.bench.two_nodes.cases import Case
from tests.bench.two_nodes.worker import Job
from tests.support import saved
from tests.support.planning import parallelize_alone

WORKER = "tests/bench/two_nodes/worker.py"
LIMIT_S, RATE = 1200, "1gbit"
HALF, STEPS = 2, 4
TRAINING = Training(optimizer="adamw", learning_rate=1e-3)


@dataclass(frozen=True)
class Row:
    """What became of a case.

    different  keys of the two final checkpoints that differ between two nodes and one
    losses     whether all losses are the same bit for bit
    device     the largest relative difference of a parameter from one device's; None where updates are stale on purpose
    stale      how stale; "" of another rule that isn't one device's
    problem    why there is nothing to compare
    """

    case: Case
    plan: str = ""
    different: tuple[str, ...] = ()
    losses: bool = False
    device: float | None = None
    problem: str = ""
    stale: str = ""

    @property
    def passed(self) -> bool:
        close = self.device is None or self.device <= FLOAT64.parameters
        return not self.problem and not self.different and self.losses and close


class Trainings:
    """The cases of one size of node, and the files that they share.

    tool  makes two nodes of one machine
    """

    def __init__(self, processes: int, root: Path, tool: Path) -> None:
        self.processes, self.root, self.tool = processes, root / folder_of(processes), tool
        self.two = Cluster("two nodes", 2, processes, RATE)
        self.one = Cluster("one node", 1, 2 * processes)
        self.plans: dict[Case, str] = {}
        self.problems: dict[Case, str] = {}

    def export(self, case: Case) -> None:
        """Plans the case for two nodes; a problem is kept."""
        module, batch, loss_fn = cases.made(case.model)
        training = replace(TRAINING, compression_start=1) if "1bit" in case.system else TRAINING
        training = replace(training, optimizer="lamb") if case.system == "1bit-lamb" else training
        try:
            plan = parallelize_alone(
                module, f"2x{self.processes} cpu", batch, loss_fn=loss_fn, training=training, parallelism=case.pinned
            )
        except AutoplanError as error:
            self.problems[case] = f"{type(error).__name__}: {error}"
            return
        write_folder(in_float64(plan.record), self.folder(case), case.system, {})
        self.plans[case] = str(plan)

    def folder(self, case: Case) -> Path:
        return self.root / "plans" / f"{case.system}-{case.model}".replace(" ", "-")

    def work(self, case: Case, where: str) -> Path:
        return self.root / where / f"{case.system}-{case.model}".replace(" ", "-")

    def run(self) -> None:
        """The three starts."""
        self.start(self.two, "two", 0, HALF)
        self.start(self.two, "two", HALF, STEPS)
        self.start(self.one, "one", 0, STEPS)

    def start(self, cluster: Cluster, where: str, first: int, last: int) -> None:
        """All plans in one start; where one of them ends it, the rest in another."""
        todo = [case for case in self.plans if case not in self.problems]
        while todo:
            began = time.perf_counter()
            file = self.root / f"jobs-{where}-{last}.json"
            file.write_text(json.dumps([asdict(self.job(case, where, first, last)) for case in todo]))
            try:
                cluster.start([WORKER, str(file)], self.tool, LIMIT_S)
            except CalledProcessError as error:
                done = [case for case in todo if (self.work(case, where) / f"losses-{last}.json").exists()]
                if len(done) == len(todo):
                    raise  # every plan's result is there: what went wrong is none's
                failed = todo[len(done)]
                self.problems[failed] = f"steps {first + 1}-{last} on {cluster.name}: exit status {error.returncode}"
                say(f"{failed.system}: {self.problems[failed]}")
                todo = todo[len(done) + 1 :]
                continue
            say(f"{cluster.name}: steps {first + 1}-{last} of {len(todo)} plans, {time.perf_counter() - began:.0f} s")
            break

    def job(self, case: Case, where: str, first: int, last: int) -> Job:
        self.work(case, where).mkdir(parents=True, exist_ok=True)
        weights, batches = files_of(case.model, self.root)
        return Job(str(self.folder(case)), weights, batches, str(self.work(case, where)), first, last, (HALF, STEPS))

    def row(self, case: Case, references: Mapping[str, Run]) -> Row:
        if case in self.problems:
            return Row(case, problem=self.problems[case])
        two, one = self.work(case, "two"), self.work(case, "one")
        different = saved.differences(two / f"step-{STEPS}", one / f"step-{STEPS}")
        losses = losses_of(two, HALF) + losses_of(two, STEPS) == losses_of(one, STEPS)
        device, plan = None, autoplan.load(self.folder(case))
        if not cases.asynchronous(plan.parallelism):
            found = Run((), {}, torch.load(two / "state.pt"))
            reference = references[case.model]
            device = parameter_error(found, reference, zero_gradients(reference)).error
        return Row(case, self.plans[case], tuple(different), losses, device, stale=staleness_of(plan))


def folder_of(processes: int) -> str:
    """Where everything of the nodes of that size is kept."""
    return f"2x{processes}"


def staleness_of(plan: autoplan.Plan) -> str:
    """Of a pipeline without a flush, by how many updates each stage's gradients are late."""
    if not plan.parallelism.continuous:
        return ""
    stages = plan.parallelism.pp or 1
    late = staleness(str(plan.parallelism.pipeline_schedule), stages, plan.record.chosen.microbatches)
    return f"gradients {', '.join(map(str, late))} updates late, by stage"


def losses_of(work: Path, last: int) -> list[float]:
    return json.loads((work / f"losses-{last}.json").read_text())


def batches_of(model: str) -> list[dict[str, Tensor]]:
    """Each step's batch, under the names that a plan has for it, in float64."""
    found = []
    for step in range(STEPS):
        module, batch, loss_fn = cases.made(model, seed=step)
        names = bind(module, batch, loss_fn).names
        values = batch.values() if isinstance(batch, dict) else batch
        found.append({n: v.double() if v.is_floating_point() else v for n, v in zip(names, values, strict=True)})
    return found


def files_of(model: str, root: Path) -> tuple[str, str]:
    """Weights and batches, written when they are first asked for."""
    weights, batches = root / f"{model}.safetensors", root / f"{model}-batches.safetensors"
    if not weights.exists():
        state = cases.made(model)[0].double().state_dict()
        save_file({name: value.detach().clone().contiguous() for name, value in state.items()}, weights)
        steps = enumerate(batches_of(model))
        save_file({f"{i}/{n}": v.contiguous() for i, batch in steps for n, v in batch.items()}, batches)
    return str(weights), str(batches)


def one_device(model: str) -> Run:
    """The module itself, in float64, over the same batches."""
    module, _, loss_fn = cases.made(model)
    module, gradients = module.double().train(), {}
    optimizer = build_optimizer(module.parameters(), TRAINING.with_precision("fp64"))
    losses = []
    for step, batch in enumerate(batches_of(model)):
        optimizer.zero_grad()
        with widened(), plain_experts(module):
            loss = loss_of(module, loss_fn, batch)
            loss.backward()
        losses.append(float(loss.detach()))
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
        optimizer.step()
    return Run(tuple(losses), gradients, {name: value.detach() for name, value in module.state_dict().items()})


def say(text: str) -> None:
    print(text, flush=True)
