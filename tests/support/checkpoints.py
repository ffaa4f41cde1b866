"""Checkpoint folders written by hand, without a training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from autoplan.runtime.checkpoint import state_json
from autoplan.runtime.checkpoint.bytes import TensorFile
from autoplan.runtime.checkpoint.folders import Lineage
from autoplan.runtime.checkpoint.index import SavedChunk, SavedTensor, digest, index_text
from autoplan.runtime.checkpoint.state_json import CheckpointState

RUN = Lineage(run="a" * 32, root="a" * 32)
STATE = CheckpointState(step=2, world=1, optimizer="adamw", learning_rate=1e-3, run=RUN.run, root=RUN.root)


def fill(folder: Path, state: CheckpointState = STATE, value: float = 1.0) -> Path:
    """The files of a finished checkpoint of one tensor."""
    with TensorFile(folder / "rank-0.tensors") as file:
        start, crc = file.add(torch.full((4,), value))
    chunk = SavedChunk("rank-0.tensors", start, crc, (0,), (4,))
    text = index_text({"parameters/w": SavedTensor(torch.float32, (4,), (chunk,))})
    (folder / "tensors.json").write_text(text)
    sizes = {"rank-0.tensors": file.position, "tensors.json": len(text)}
    state = replace(state, tensors=digest(text.encode()), files=sizes)
    state_json.write_synced(folder / "state.json", state_json.state_text(state).encode())
    return folder


def make(folder: Path, state: CheckpointState = STATE, value: float = 1.0) -> Path:
    folder.mkdir(parents=True)
    return fill(folder, state, value)
