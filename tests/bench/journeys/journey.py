"""A journey: commands run one after another in a folder that holds the user's scripts and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 600  # of a whole journey: what a newcomer is promised


@dataclass(frozen=True)
class Step:
    """what       it is for: "planned", "trained" …
    command    words; "python", "autoplan" and "torchrun" are this environment's
    says       what has to stand in its output
    """

    what: str
    command: tuple[str, ...]
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Journey:
    """scripts  the folder here whose files the user has written
    models   (file of the repository, its name in the user's folder) of what others wrote
    """

    name: str
    scripts: str
    steps: tuple[Step, ...]
    models: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """wrong  "" or what a newcomer would be surprised by"""

    step: Step
    seconds: float
    wrong: str
    output: str


def outcomes(journey: Journey, folder: Path) -> Iterator[Outcome]:
    """Of each step, up to the first that goes wrong."""
    for script in (Path(__file__).parent / journey.scripts).glob("*.py"):
        shutil.copy(script, folder)
    for source, name in journey.models:
        shutil.copy(ROOT / source, folder / name)
    shutil.copy(ROOT / "README.md", folder / "input.txt")
    for step in journey.steps:
        start = time.monotonic()
        done = subprocess.run(
            spelled(step.command), cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        output = done.stdout + done.stderr
        wrong = surprise(step, done.returncode, output)
        yield Outcome(step, time.monotonic() - start, wrong, output)
        if wrong:
            return


def spelled(command: tuple[str, ...]) -> list[str]:
    first = {"python": [], "autoplan": ["-m", "autoplan"], "torchrun": ["-m", "torch.distributed.run"]}[command[0]]
    return [sys.executable, *first, *command[1:]]


def surprise(step: Step, status: int, output: str) -> str:
    if status:
        return f"ends with status {status}"
    if "Traceback" in output:
        return "shows a traceback"
    missing = [words for words in step.says if words not in output]
    return f"doesn't say {missing[0]!r}" if missing else ""
