"""Exported folders under torchrun itself, as a user starts them: one start for all folders of a model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from autoplan.verify.compare import Run

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 400.0
SCRIPT = "tests/support/torchrun_script.py"


def gradients_of_folders(
    ranks: int, folders: Mapping[str, Path], weights: str, batch: Mapping[str, torch.Tensor]
) -> dict[str, Run] | str:
    """The first loss and gradients of each folder's program, or what torchrun said as it failed."""
    with tempfile.TemporaryDirectory(prefix="autoplan-torchrun-") as name:
        results = Path(name)
        save_file({key: value.contiguous() for key, value in batch.items()}, results / "batch.safetensors")
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), SCRIPT,
            str(results / "batch.safetensors"), weights, name, *map(str, folders.values()),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=ROOT)
        except subprocess.TimeoutExpired:
            return f"not done within {SECONDS:g} s"
        if done.returncode != 0:
            return last_error(done.stderr)
        return {key: result_of(results / f"{folder.name}.pt") for key, folder in folders.items()}


def last_error(text: str) -> str:
    """The first rank's error out of all that torchrun prints."""
    told = re.compile(r"autoplan: error:|Error(?<!ChildFailedError)")
    lines = [line for line in text.splitlines() if told.search(line)]
    return " ".join((lines or text.splitlines()[-1:])[0].split())


def result_of(file: Path) -> Run:
    found = torch.load(file)
    return Run((float(found["loss"]),), found["gradients"], found["state"])
