"""One plan under the kill test: the training that nobody disturbs, those that are, and what differs in the end."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from autoplan.export.folder import write_folder
from autoplan.options import Parallelism
from autoplan.options import Training as Options
from tests.kill.training import ONE_NODE, Kill, Training
from tests.support import saved, zoo
from tests.support.planning import parallelize_alone

PLANS: dict[str, Parallelism | str] = {
    "ddp": "ddp",
    "zero3": "zero3",
    "tp=2 pp=2": Parallelism(dp=1, tp=2, pp=2, micro_batch=2, pipeline_schedule="1f1b"),
}
STEPS, SAVE_EVERY = 24, 3
TOLD = ("another run saves there", "a checkpoint of another run")
RESTARTS = 60  # of each of two jobs: the one that is refused uses them up while the other trains
AIMED = ("start", "step", "save", "save")  # how often each moment is aimed at


@dataclass(frozen=True)
class Outcome:
    """One training that was disturbed, against the one that wasn't. ``different``: what isn't the same bit for bit."""

    plan: str
    kills: tuple[Kill, ...]
    different: tuple[str, ...]


def gpt2_with_dropout() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_embd": zoo.HIDDEN, "n_layer": zoo.LAYERS, "n_head": zoo.HEADS, "n_positions": 64}
    drop = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    special = {"vocab_size": zoo.VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, **drop, **special)).train()


def export(plan: str, folder: Path) -> Path:
    found = parallelize_alone(
        gpt2_with_dropout(), "1x4 cpu", zoo.batch_of("gpt2"), training=Options(learning_rate=1e-3),
        parallelism=PLANS[plan],
    )  # fmt: skip
    return write_folder(found.record, folder, plan, {}, found.module)


class Case:
    """One plan: its folder, and the training that nobody disturbs, which tells how long a start and a step take."""

    def __init__(self, plan: str, root: Path, steps: int = STEPS) -> None:
        self.plan, self.root, self.steps = plan, root, steps
        self.folder = export(plan, root / "plan")
        self.undisturbed = self.training("undisturbed")
        began = time.time()
        try:
            self.undisturbed.start(restarts=0)
            self.undisturbed.wait(lambda: bool(self.undisturbed.written()))
            self.start_s = time.time() - began
            status = self.undisturbed.end()
        finally:
            self.undisturbed.abandon()
        assert status == 0, f"{plan}: exit status {status}; see {self.undisturbed.work / 'said.txt'}"
        lines = self.undisturbed.written()
        self.step_s = sum(line["seconds"] for line in lines) / len(lines)

    def training(self, name: str, launcher: tuple[str, ...] = ONE_NODE) -> Training:
        return Training(self.folder, self.root / name, self.steps, SAVE_EVERY, launcher)

    def disturbed(
        self, name: str, times: int, chance: random.Random, launcher: tuple[str, ...] = ONE_NODE
    ) -> Iterator[Kill | Outcome]:
        """One training with at most so many kills: each as it happens, and what came of it."""
        training = self.training(name, launcher)
        training.start(restarts=times)
        kills: list[Kill] = []
        try:
            while len(kills) < times:
                kill = training.kill_one(chance, chance.choice(AIMED), self.start_s, self.step_s)
                if kill is None:
                    break
                kills.append(kill)
                yield kill
            status = training.end()
        finally:
            training.abandon()
        yield Outcome(self.plan, tuple(kills), tuple(self.differences(training, status)))

    def disturbed_together(self, name: str, times: int, chance: random.Random) -> Iterator[Kill | Outcome]:
        """Two trainings that save into one folder, with at most so many kills: each, and what came of it.

        The first to have saved is held until the other has been told of it, and loses a rank then: else it might have
        come to its end before the other has begun.
        """
        into = self.root / name / "checkpoints"
        jobs = [Training(self.folder, self.root / name / f"job-{i}", self.steps, SAVE_EVERY, into=into) for i in (0, 1)]
        kills: list[Kill] = []
        try:
            for job in jobs:
                job.start(restarts=RESTARTS)
            jobs[0].wait(lambda: any(len(job.written()) > SAVE_EVERY for job in jobs))
            first = max(jobs, key=lambda job: len(job.written()))
            kills.append(first.kill_held(chance, lambda: self.told(jobs)))
            yield kills[-1]
            while len(kills) < times and not all(job.ended() for job in jobs):
                job = chance.choice([job for job in jobs if not job.ended()])
                kill = job.kill_one(chance, chance.choice(AIMED), self.start_s, self.step_s)
                if kill is not None:
                    kills.append(kill)
                    yield kill
            statuses = [job.end() for job in jobs]
        finally:
            for job in jobs:
                job.abandon()
        yield Outcome(self.plan, tuple(kills), tuple(self.mixed(jobs, statuses)))

    @staticmethod
    def told(jobs: Sequence[Training]) -> bool:
        """Whether one of two jobs has been told of the other."""
        said = "".join((job.work / "said.txt").read_text() for job in jobs)
        return any(words in said for words in TOLD)

    def mixed(self, jobs: Sequence[Training], statuses: Sequence[int]) -> list[str]:
        """What isn't as it should be after two jobs: one has to have come to its end, and nothing may be mixed."""
        found = [] if 0 in statuses else [f"exit statuses {statuses}; see {jobs[0].work / 'said.txt'}"]
        if not self.told(jobs):
            found.append("nobody was told of two runs in one folder")
        final = jobs[0].final
        return found + (saved.differences(final, self.undisturbed.final) if final.exists() else [f"no {final}"])

    def differences(self, training: Training, status: int) -> list[str]:
        if status:
            return [f"exit status {status}; see {training.work / 'said.txt'}"]
        wanted = [(line["step"], line["loss"]) for line in self.undisturbed.written()]
        found = [(line["step"], line["loss"]) for line in training.written()]
        metrics = [] if found == wanted else ["the metrics"]
        return saved.differences(training.final, self.undisturbed.final) + metrics
