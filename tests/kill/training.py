"""One training under torchrun whose ranks are killed: how it is started, who is killed when, what is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoplan.errors import WeightsError
from autoplan.runtime.checkpoint.checkpoint import latest_checkpoint
from tests.bench.live.clusters import ENVIRONMENT, ROOT, torchrun
from tests.support import saved

RANKS = 4
LONG_S = 900.0  # without a sign of life, and the test has failed
LOOK_S = 0.002  # between two looks at files and processes
MOMENTS = ("start", "step", "save")
ONE_NODE = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))


class Stuck(Exception):
    """Training neither ended nor went on."""


@dataclass(frozen=True)
class Kill:
    """What one kill met.

    moment   what it was aimed at: anything after the processes' start, a step, or a save
    rank     who was killed
    saving   whether a checkpoint was being written, just before and still after
    steps    steps in the metrics file by then
    left     the checkpoint that a restart finds; None: none yet
    """

    moment: str
    rank: int
    saving: bool
    steps: int
    left: str | None


@dataclass
class Training:
    """train.py of an exported folder under torchrun.

    folder   the exported plan
    work     where checkpoints, metrics and what torchrun says go
    launcher the command that starts it, as far as torchrun's further options
    into     the checkpoints' folder, where it isn't its own
    """

    folder: Path
    work: Path
    steps: int
    save_every: int
    launcher: tuple[str, ...] = ONE_NODE
    into: Path | None = None
    process: subprocess.Popen | None = None
    seen: set[int] = field(default_factory=set)

    @property
    def checkpoints(self) -> Path:
        return self.into or self.work / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.work / "metrics.jsonl"

    @property
    def final(self) -> Path:
        return self.checkpoints / f"step-{self.steps:08d}"

    def start(self, restarts: int) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        command = [
            *self.launcher, "--max-restarts", str(restarts), str(self.folder / "train.py"), "--steps", str(self.steps),
            "--checkpoint-dir", str(self.checkpoints), "--save-every", str(self.save_every),
            "--metrics", str(self.metrics), "--timeout", str(LONG_S / 2),
        ]  # fmt: skip
        environment = {**os.environ, **ENVIRONMENT, "TORCHRUN": str(torchrun())}
        with (self.work / "said.txt").open("ab") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, cwd=ROOT)

    def end(self) -> int:
        """Waits for the end; the exit status."""
        assert self.process is not None
        return self.process.wait(LONG_S)

    def abandon(self) -> None:
        """Ends what is left of it."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def workers(self) -> dict[int, int]:
        """The process of each rank of the present attempt."""
        assert self.process is not None
        found = {}
        for process in descendants(self.process.pid):
            rank = environment_of(process).get("RANK")
            if rank is not None and process not in self.seen:
                found[int(rank)] = process
        return found

    def written(self) -> list[dict]:
        """The metrics' whole lines."""
        if not self.metrics.exists():
            return []
        return [json.loads(line) for line in self.metrics.read_text().split("\n")[:-1]]

    def saving(self, since_s: float) -> set[str]:
        """The folders of saves that have begun since then, and haven't ended."""
        found = set()
        for path in self.checkpoints.glob("*.tmp"):
            try:
                if path.stat().st_mtime > since_s:
                    found.add(path.name)
            except FileNotFoundError:
                continue
        return found

    def wait(self, for_what: Callable[[], bool]) -> bool:
        """Until something is so; False where the training ended before."""
        deadline = time.monotonic() + LONG_S
        while not for_what():
            if self.ended():
                return False
            if time.monotonic() > deadline:
                raise Stuck(f"nothing happened for {LONG_S:g} s; see {self.work / 'said.txt'}")
            time.sleep(LOOK_S)
        return True

    def kill_one(self, chance: random.Random, moment: str, start_s: float, step_s: float) -> Kill | None:
        """Kills one rank of the next attempt at the moment; None where the training ended before.

        start_s, step_s  what a start and a step take: how long to wait at most, at random
        """
        if not self.wait(lambda: len(self.workers()) == RANKS):
            return None
        workers, steps, since_s = self.workers(), len(self.written()), time.time()
        rank = chance.randrange(RANKS)
        if moment == "start":
            time.sleep(chance.uniform(0, start_s))
        elif moment == "step" and self.wait(lambda: len(self.written()) > steps or self.rewritten(since_s)):
            time.sleep(chance.uniform(0, 8 * step_s))
        elif moment == "save" and self.wait_for_save(chance.randint(1, 3), since_s):
            time.sleep(chance.choice((0.0, chance.uniform(0, 0.05))))
        if self.ended() or not alive(workers[rank]):
            return None
        return self.kill(workers, rank, moment, since_s)

    def kill(self, workers: Mapping[int, int], rank: int, moment: str, since_s: float) -> Kill:
        """Kills one of an attempt's ranks; ``since_s``: when that attempt began, or earlier."""
        before = self.saving(since_s)
        os.kill(workers[rank], signal.SIGKILL)
        inside = bool(before & self.saving(since_s))
        self.seen |= set(workers.values())
        left = whole_checkpoint(self.checkpoints)
        return Kill(moment, rank, inside, len(self.written()), None if left is None else left.name)

    def kill_held(self, chance: random.Random, until: Callable[[], bool]) -> Kill:
        """Stops all ranks wherever they are, and kills one of them once something is so. What waits for them to end
        can't come too late, however busy the machine is."""
        self.wait(lambda: len(self.workers()) == RANKS)
        workers = self.workers()
        signal_all(workers.values(), signal.SIGSTOP)
        try:
            if not self.wait(until):
                raise Stuck(f"it ended while it was held; see {self.work / 'said.txt'}")
            return self.kill(workers, chance.choice(sorted(workers)), "step", 0.0)
        finally:
            signal_all(workers.values(), signal.SIGCONT)

    def wait_for_save(self, number: int, since_s: float) -> bool:
        """Until that many saves of this attempt have begun."""
        seen: set[str] = set()

        def begun() -> bool:
            seen.update(self.saving(since_s))
            return len(seen) >= number

        return self.wait(begun)

    def rewritten(self, since_s: float) -> bool:
        return self.metrics.exists() and self.metrics.stat().st_mtime > since_s


def whole_checkpoint(folder: Path) -> Path | None:
    """What a restart finds, each byte as it was written; read again where a living job replaces it meanwhile."""
    for last in (False, False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of what is renamed just now
            left = latest_checkpoint(folder)
        try:
            if left is not None:
                saved.tensors(left)
            return left
        except WeightsError:
            if last:
                raise
    return None


def descendants(process: int) -> Iterator[int]:
    """The processes that a process has started, those that they have, and so on."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(process, ()))
    while found:
        yield found[0]
        found += children.get(found.pop(0), ())


def environment_of(process: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{process}/environ").read_bytes().decode()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


def signal_all(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended and isn't waited for yet doesn't."""
    try:
        return (Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
