"""The journey of fine-tuning, from a folder of save_pretrained's to one that from_pretrained reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_script_ends_with_logits_equal_to_one_device(tmp_path: Path) -> None:
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH")) if path)
    command = [sys.executable, str(ROOT / "examples" / "fine_tune.py"), str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert run.returncode == 0, run.stdout + run.stderr
    assert "equal to 1e-05" in run.stdout and "NOT" not in run.stdout
    assert sum(line.startswith("step") and "evaluation" in line for line in run.stdout.splitlines()) == 4
    written = set(os.listdir(tmp_path / "out" / "trained"))
    assert {"config.json", "generation_config.json", "model.safetensors"} <= written
