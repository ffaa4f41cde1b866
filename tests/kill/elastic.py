"""An elastic training: torchrun's agents on this machine, one killed and one started again, beside one process.

    python -m tests.kill.elastic [--agents 4] [--per-agent 2] [--steps 60] [--batch keep]

Each agent is a node of its own for torchrun. The last is killed with its ranks after a third of the steps; the others
go on as fewer, by a plan for as many. After two thirds another agent comes. Every loss is compared with that of the
same steps in one process: a batch that was skipped or repeated would show. Under ``--batch scale`` that process is the
module alone, on as many samples in each step as that had, one after another, its learning rate in proportion. Status 1
where a loss is off by over 1e-6.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import nn

import autoplan
from autoplan.export.folder import program_spec
from autoplan.options import Training as Options
from autoplan.runtime.data.sources import batch_source
from autoplan.runtime.elastic.scaled_batch import BATCHES, SCALE
from autoplan.runtime.optim.optimizer import build_optimizer
from tests.bench.live.clusters import ENVIRONMENT, ROOT, torchrun
from tests.kill.case import gpt2_with_dropout
from tests.kill.training import LONG_S, Stuck, descendants
from tests.support import zoo
from tests.support.planning import parallelize_alone

WITHIN, SAVE_EVERY, LOOK_S = 1e-6, 2, 0.05
PAUSE_S = 0.5  # of each step
TRAINING = Options(learning_rate=1e-3, compile=False)
ROWS = 24  # which 8, 6, 4 and 3 ranks share evenly
RENDEZVOUS = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"  # a node is missed after 3 s
OWN_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Else nobody can join torchrun later: in torch 2.13 the node that keeps the store tells its address in the first round
alone, and who comes waits for it (``DynamicRendezvousHandler.next_rendezvous``)."""
PLANNED = re.compile(r"planned for (\d+) processes")


@dataclass(frozen=True)
class Told:
    """What a training left: losses by step, and for how many processes it was planned anew, in order.

    samples  that were taken by the end of each step
    """

    losses: dict[int, float]
    planned: tuple[int, ...]
    samples: tuple[int, ...] = ()


@dataclass
class Agents:
    """The agents of one training.

    per_agent  ranks of each
    batch      what becomes of it where their number changes
    """

    folder: Path
    work: Path
    steps: int
    most: int
    per_agent: int
    batch: str = "keep"

    def __post_init__(self) -> None:
        self.work.mkdir(parents=True)
        self.running: list[subprocess.Popen] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self) -> None:
        """One agent more."""
        rate = ("--elastic-rate", "linear") if self.batch == "scale" else ()
        conf = f"{RENDEZVOUS},is_host={int(not self.running)}"  # the first keeps the store, and is never killed
        least = max(1, self.most - 1)  # all but one: the first to come don't begin by themselves
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{least}:{self.most}", "--nproc-per-node",
            str(self.per_agent), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id",
            "elastic", "--rdzv-conf", conf, "--local-addr", "127.0.0.1", "--max-restarts", "20",
            str(self.folder / "train.py"), "--elastic", self.batch, *rate,
            "--steps", str(self.steps), "--save-every", str(SAVE_EVERY),
            "--checkpoint-dir", str(self.work / "checkpoints"), "--metrics", str(self.metrics),
            "--timeout", str(LONG_S / 2),
        ]  # fmt: skip
        environment = {**os.environ, **ENVIRONMENT, **OWN_STORES, "TORCHRUN": str(torchrun())}
        with self.said.open("ab") as said:
            started = subprocess.Popen(
                command, stdout=said, stderr=said, env=environment, cwd=ROOT, start_new_session=True
            )
        self.running.append(started)

    @property
    def metrics(self) -> Path:
        return self.work / "metrics.jsonl"

    @property
    def said(self) -> Path:
        return self.work / "said.txt"

    def kill_last(self) -> None:
        """The agent that came last, and its ranks, as if their machine were gone."""
        last = self.running.pop()
        for process in [*descendants(last.pid), last.pid]:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        last.wait()

    def taken(self) -> int:
        """Steps in the metrics."""
        return len(self.losses())

    def losses(self) -> dict[int, float]:
        return {line["step"]: line["loss"] for line in self.lines()}

    def lines(self) -> list[dict]:
        if not self.metrics.exists():
            return []
        return [json.loads(line) for line in self.metrics.read_text().split("\n")[:-1]]

    def wait(self, for_what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONG_S
        while not for_what():
            if time.monotonic() > deadline or all(agent.poll() is not None for agent in self.running):
                raise Stuck(f"after {self.taken()} steps of {self.steps}; see {self.said}")
            time.sleep(LOOK_S)

    def end(self) -> Told:
        """Waits for the end of all."""
        statuses = [agent.wait(LONG_S) for agent in self.running]
        if any(statuses):
            raise Stuck(f"exit statuses {statuses} after {self.taken()} steps; see {self.said}")
        planned = PLANNED.findall(self.said.read_text())
        return Told(self.losses(), tuple(map(int, planned)), tuple(line["samples"] for line in self.lines()))

    def abandon(self) -> None:
        while self.running:
            self.kill_last()


def exported(folder: Path, ranks: int, module: nn.Module) -> Path:
    """A small model, planned for so many ranks; its steps are slow, so that agents come within them."""
    batch = {name: torch.zeros(ROWS, zoo.SEQUENCE, dtype=torch.int64) for name in ("input_ids", "labels")}
    plan = parallelize_alone(module, f"1x{ranks} cpu", batch, training=TRAINING)
    written = plan.export(folder)
    script, update = written / "train.py", "            program.optimizer.step()\n"
    text = script.read_text()
    assert update in text
    script.write_text(text.replace(update, f"{update}            time.sleep({PAUSE_S})\n"))
    return written


def undisturbed(folder: Path, work: Path, steps: int) -> Told:
    """One process."""
    agents = Agents(folder, work, steps, 1, 1)
    try:
        agents.start()
        return agents.end()
    finally:
        agents.abandon()


def one_device(folder: Path, module: nn.Module, samples: Sequence[int]) -> Told:
    """The module itself in this process, on the samples one after another: so many by the end of each step."""
    plan = autoplan.load(folder)
    source = batch_source(program_spec(plan.record, folder, plan.lowered), None, 0)
    count = -(-samples[-1] // ROWS)
    parts = [source(number) for number in range(count)]
    data = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    optimizer, losses, begun = build_optimizer(module.parameters(), TRAINING), {}, 0
    for step, ended in enumerate(samples, 1):
        for group in optimizer.param_groups:
            group["lr"] = TRAINING.learning_rate * (ended - begun) / ROWS
        optimizer.zero_grad()
        loss = module(**{name: values[begun:ended] for name, values in data.items()}).loss
        loss.backward()
        optimizer.step()
        losses[step], begun = loss.item(), ended
    return Told(losses, (), tuple(samples))


def disturbed(folder: Path, work: Path, steps: int, most: int, per_agent: int, batch: str = "keep") -> Told:
    agents = Agents(folder, work, steps, most, per_agent, batch)
    try:
        for _ in range(most):
            agents.start()
        agents.wait(lambda: agents.taken() >= steps // 3)
        agents.kill_last()
        agents.wait(lambda: agents.taken() >= 2 * steps // 3)
        agents.start()
        return agents.end()
    finally:
        agents.abandon()


def rows_of(samples: Sequence[int]) -> list[int]:
    """Rows of the steps, each change once."""
    rows = [after - before for before, after in zip((0, *samples), samples, strict=False)]
    return [each for each, _ in groupby(rows)]


def worst(found: Told, wanted: Told) -> float:
    """The largest relative difference of a loss; infinite where steps lack."""
    if found.losses.keys() != wanted.losses.keys():
        return float("inf")
    return max(abs(found.losses[step] - loss) / abs(loss) for step, loss in wanted.losses.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--per-agent", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", choices=BATCHES, default="keep")
    given = parser.parse_args()
    ranks, scales = given.agents * given.per_agent, given.batch == SCALE
    with tempfile.TemporaryDirectory(prefix="autoplan-elastic-") as place:
        module = zoo.gpt2() if scales else gpt2_with_dropout()
        folder = exported(Path(place) / "out", ranks, module)
        start = time.perf_counter()
        found = disturbed(folder, Path(place) / "elastic", given.steps, given.agents, given.per_agent, given.batch)
        alone = one_device(folder, module, found.samples) if scales else None
        off = worst(found, alone or undisturbed(folder, Path(place) / "one", given.steps))
        print(
            f"planned for {ranks}, then for {', '.join(map(str, found.planned))}; {len(found.losses)} steps of "
            f"{', '.join(map(str, rows_of(found.samples)))} rows, "
            f"losses off by {off:.1e} at most from one process's, in {time.perf_counter() - start:.0f} s"
        )
    return int(off > WITHIN)


if __name__ == "__main__":
    sys.exit(main())
