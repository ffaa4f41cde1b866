"""Large jobs planned, exported and rehearsed: ``python -m tests.bench.rehearsals [--write FILE] [JOB …]``.

Each job runs in a process of its own, so that its seconds and its memory are its own. What is written keeps the rows of
jobs that weren't run again, with their dates, and says which were never run. A named system that a job can't be planned
under has a row that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

import autoplan
from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.export.found import write_found
from autoplan.models.named import resolve_model
from examples.bench_search import RESNET, UNET, Case

DLRM = f"{Path(RESNET).parent / 'dlrm.py'}:make_model"
JOBS = {
    "llama-3-70b on 64": Case("", "hf:llama-3-70b", "8x8 h100-sxm", 512, 8192),
    "llama-3-70b on 512": Case("", "hf:llama-3-70b", "64x8 h100-sxm", 512, 8192),
    "llama-3.1-405b on 16,384": Case("", "hf:llama-3.1-405b", "2048x8 h100-sxm", 2048, 8192),
    "gpt3-175b on 1,024": Case("", "hf:gpt3-175b", "128x8 a100-sxm-80gb", 1536, 2048),
    "mixtral-8x22b on 256": Case("", "hf:mixtral-8x22b", "32x8 h100-sxm", 512, 4096),
    "deepseek-v3 on 2,048": Case("", "hf:deepseek-v3", "256x8 h100-sxm", 15360, 4096),
    "vit-22b on 256": Case("", "hf:vit-22b", "32x8 h100-sxm", 4096, None, ("num_labels=29593",)),
    "unet on 8": Case("", UNET, "1x8 a100-sxm-80gb", 128),
    "dlrm on 8": Case("", DLRM, "1x8 a100-sxm-80gb", None, settings=("batch=4096",)),
}
NOT_RUN = "not run"
SYSTEMS = ("auto", "ddp", "zero3", "megatron", "1f1b", "3d-hybrid")
GB = 1e9


@dataclass(frozen=True)
class Row:
    """One job, rehearsed.

    off        of the class whose predicted memory is furthest from what was rehearsed, as a share of it; None where
               all broke off
    unpriced   collectives and messages that the plan and the program don't have in common
    simulated  the step by the order of all calls, over the predicted; None where not all microbatches ran
    memory_gb  of the largest process
    """

    job: str
    plan: str
    passed: bool
    devices: int
    classes: int
    run: str
    off: float | None
    mismatches: int
    unpriced: int
    simulated: float | None
    seconds: float
    memory_gb: float

    def cells(self) -> list[str]:
        """Of the table, but for the date."""
        by_order = "" if self.simulated is None else f"{self.simulated:.3f}"
        off = "" if self.off is None else f"{self.off:+.1%}"
        return [
            self.job, f"`{self.plan}`", "yes" if self.passed else "NO", f"{self.devices:,}", str(self.classes),
            self.run, off, str(self.mismatches), str(self.unpriced), by_order, f"{self.seconds:.0f}",
            f"{self.memory_gb:.1f}",
        ]  # fmt: skip


TITLE = "# Rehearsals"
TEXT = (
    "Written by `make rehearsals`, on a machine without a GPU. Each row is one plan, run whole at full size "
    "([rehearsal](../rehearsal.md)). Memory is told of the class of ranks whose prediction is furthest off. Seconds "
    "are of the rehearsal alone, on two cores that did other work beside."
)
NAMED_TITLE = "## Under named systems"
NAMED_TEXT = (
    "The same jobs, each pinned to a named system ([parallelism](../parallelism.md)). Where no plan of it fits the "
    "devices or the batch, the row says what it would need; such a plan can't be exported."
)
HEADER = [
    "job", "plan", "would run", "ranks", "classes", "microbatches", "memory: predicted off by", "calls that don't meet",
    "calls unpriced", "step by order / predicted", "seconds", "GB here", "run on",
]  # fmt: skip


def named(job: str, system: str) -> str:
    """A row's first cell."""
    return job if system == "auto" else f"{job}, {system}"


def row(cells: Sequence[str], day: str) -> str:
    """A line of the table; cells that a job which wasn't done lacks are empty."""
    return f"| {' | '.join([*cells, *[''] * (len(HEADER) - 1 - len(cells)), day])} |"


def rows_of(text: str) -> dict[str, str]:
    """The lines of a document's table, by the jobs that were run."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    known = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    return {name: line for name, line in known.items() if name != HEADER[0] and NOT_RUN not in line}


def document(rows: Mapping[str, str]) -> str:
    """The page: each job's row, or that it was never run; then the same under named systems."""
    header = ["", f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    pinned = [named(job, system) for job in JOBS for system in SYSTEMS[1:]]
    chosen, others = ([rows.get(name, row([name, NOT_RUN], "")) for name in names] for names in (JOBS, pinned))
    beside = [line for name, line in rows.items() if name not in (*JOBS, *pinned)]
    named_too = ["", NAMED_TITLE, "", NAMED_TEXT, *header, *others, *beside]
    return "\n".join([TITLE, "", TEXT, *header, *chosen, *named_too, ""])


def refusal(error: DoesNotFitError | ParallelismError) -> str:
    """Why there is no such plan, in a table's cell: what is needed, without what it is made of."""
    what = error.cause if isinstance(error, DoesNotFitError) else f"refused: {error.value}: {error.cause}"
    return what.partition(", of which")[0].replace("|", "/").replace("\n", " ")


def measured(job: str, system: str, keep: Path | None) -> list[str]:
    """The cells of a job's row, in this process."""
    torch.set_num_threads(1)
    case = JOBS[job]
    request = resolve_model(case.model, case.settings, batch=case.batch, seq=case.seq)
    try:
        plan = autoplan.parallelize(
            request.model, case.cluster, request.example_inputs, loss_fn=request.loss_fn, parallelism=system
        )
    except (DoesNotFitError, ParallelismError) as error:
        if system == SYSTEMS[0]:
            raise  # auto has a plan of each of these jobs
        return [named(job, system), refusal(error)]
    with tempfile.TemporaryDirectory() as folder:
        exported = plan.export((keep or Path(folder)) / named(job, system))
        found = autoplan.load(exported).rehearse()
        write_found(exported, {"rehearsal": found.to_dict()})
    by_order = found.together.simulated_s
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return Row(
        named(job, system), found.name, found.passed, found.devices,
        len(found.classes) + len(found.failed), f"{found.run} of {found.microbatches}",
        max((one.off for one in found.classes), key=abs, default=None), len(found.together.mismatches or ()),
        sum(len(one.differences) for one in found.balances),
        None if by_order is None else by_order / found.predicted_s, found.seconds,
        max(children, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024 / GB,
    ).cells()  # fmt: skip


def within(command: list[str], limit_s: float | None) -> tuple[str, int | None]:
    """What a command prints, and its exit status: None where it was ended, with all that it started, at the limit."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            return process.communicate(timeout=limit_s)[0], process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "", None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rehearsals")
    parser.add_argument("--write", type=Path, help="the document to write")
    parser.add_argument("--systems", nargs="*", default=["auto"], help=", ".join(SYSTEMS))
    parser.add_argument("--keep", type=Path, help="a folder, in which exports and their rehearsal.json stay")
    parser.add_argument("--alone", action="store_true", help="one job, here: its cells as JSON")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="; ".join(JOBS))
    parser.add_argument("--limit-s", type=float, help="of each job; of one that isn't done then the row says so")
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measured(given.jobs[0], given.systems[0], given.keep)))
        return 0
    rows = rows_of(given.write.read_text()) if given.write and given.write.exists() else {}
    day = date.today().isoformat()
    for job in given.jobs or JOBS:
        for system in given.systems:
            command = [sys.executable, "-m", "tests.bench.rehearsals", "--alone", job, "--systems", system]
            command += ["--keep", str(given.keep)] if given.keep else []
            said, status = within(command, given.limit_s)
            name = named(job, system)
            if status is None:
                cells = [name, f"not done after {given.limit_s:.0f} s"]
            else:
                cells = [name, "failed"] if status else json.loads(said.splitlines()[-1])
            rows[name] = row(cells, day)
            print(rows[name], flush=True)
            if given.write:  # what was run stays, whatever comes after it
                given.write.write_text(document(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
