"""What test_faults.py starts under torchrun: train.py with the tiny program, in which ranks misbehave by plan.

    torchrun … faults_script.py TRAIN.py FAULTS.json [argument of train.py …]

FAULTS.json: {"<restart>": [rank, step, "hang" | "die" | "stop" | "mistake"]}
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch import Tensor

from autoplan.errors import InputsError
from autoplan.runtime.data.sources import batch_source
from autoplan.runtime.program import Program
from autoplan.runtime.program_spec import ProgramSpec
from tests.fixtures import tiny_program as tiny

PLAN = dict(dp=2, pp=2, microbatches=2, zero=1)


def misbehave(fault: str) -> None:
    if fault == "hang":
        time.sleep(3600)
    elif fault == "mistake":
        raise InputsError("the data", "it ends", "give more")
    os.kill(os.getpid(), {"die": signal.SIGKILL, "stop": signal.SIGSTOP}[fault])


def faulty(faults: dict[str, tuple[int, int, str]]) -> Callable[..., Callable[[int], dict[str, Tensor]]]:
    """A source of batches with which one rank comes to grief at one step of a start."""
    rank, at, fault = faults.get(os.environ["TORCHELASTIC_RESTART_COUNT"], (-1, -1, ""))

    def source(spec: ProgramSpec, *given: Any) -> Callable[[int], dict[str, Tensor]]:
        batch = batch_source(spec, *given)

        def batch_of(step: int) -> dict[str, Tensor]:
            if step == at and os.environ["RANK"] == str(rank):
                misbehave(fault)
            return batch(step)

        return batch_of

    return source


def tiny_plan(folder: Path) -> SimpleNamespace:
    return SimpleNamespace(
        record=SimpleNamespace(model=tiny.spec(**PLAN).lowered),
        program=lambda timeout_s: Program(tiny.spec(**PLAN), tiny.program(2), timeout_s),
        check_start=lambda *given: None,
        predicted=SimpleNamespace(step_time_s=0.5, mfu=0.25),
    )


def main(script: str, faults: str, arguments: list[str]) -> None:
    source = faulty(json.loads(Path(faults).read_text()))
    sys.argv = [script, *arguments]
    with patch("autoplan.load", tiny_plan, create=True), patch("autoplan.runtime.data.sources.batch_source", source):
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
