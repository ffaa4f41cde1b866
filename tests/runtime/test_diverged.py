"""train.py ends where the loss isn't finite: told once, without a traceback, the last checkpoint whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.export.folder import write_folder
from autoplan.options import Training
from autoplan.runtime.checkpoint.state_json import finished
from autoplan.verify.single import random_state
from tests.support.forked import run_ranks
from tests.support.hand_made import llama
from tests.support.launched_processes import torchrun
from tests.support.records import record_of
from tests.support.sampling import sampled


@pytest.mark.parametrize("launcher", sampled(["forks", "torchrun"], ["forks"]))
def test_training_that_diverges_is_told_with_where_to_go_back_to(tmp_path: Path, launcher: str) -> None:
    training = Training(optimizer="sgd", learning_rate=1e25, compile=False)
    model = llama(batch=4, seq=8, hidden=16, ffn=32, heads=2, kv=2, vocab=32, layers=1)
    record = record_of(model, "1x2 h100-sxm", training, dp=2, tp=1, pp=1, zero=1)
    save_file({name: value.float() for name, value in random_state(model, 0).items()}, tmp_path / "w.safetensors")
    train = write_folder(record, tmp_path / "out", "diverges", {}) / "train.py"
    kept, metrics = tmp_path / "kept", tmp_path / "metrics.jsonl"
    arguments = [
        "--weights", str(tmp_path / "w.safetensors"), "--checkpoint-dir", str(kept), "--save-every", "1",
        "--metrics", str(metrics), "--steps", "9",
    ]  # fmt: skip
    done = [torchrun(2, str(train), *arguments)] if launcher == "torchrun" else run_ranks(train, 2, arguments)
    assert all(each.returncode != 0 for each in done)
    stderr = "".join(each.stderr for each in done)
    said = [line for line in stderr.splitlines() if "autoplan: error: " in line]
    assert any("at step 2: the forward of this batch isn't finite" in line for line in said), stderr[-3000:]
    assert any(f"go back to {kept / 'step-00000001'}, with a lower learning rate and clip_grad_norm" in x for x in said)
    assert 'train.py", line' not in stderr
    assert finished(kept / "step-00000001") and not (kept / "step-00000002").exists()
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == [1]
