"""Traces that the processes of a test run share: read back equal, and only where a name stands for one class."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoplan.trace.pipeline import trace
from tests.support import shared_traces
from tests.support.common_folder import TRACES_FOLDER
from tests.support.shared_traces import SharedTraces

BATCH = (torch.zeros(4, 8), torch.zeros(4, 8))


class Small(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classes that were traced rather than read."""
    found: list[str] = []

    def told(model: nn.Module, *inputs: object, **options: object) -> object:
        found.append(type(model).__name__)
        return trace(model, *inputs, **options)  # type: ignore[arg-type]

    monkeypatch.setenv(TRACES_FOLDER, str(tmp_path))
    monkeypatch.setattr(shared_traces, "trace", told)
    return found


def test_another_process_reads_what_one_has_traced(traced: list[str]) -> None:
    one = SharedTraces().trace(Small(), BATCH, loss_fn=F.mse_loss, training=True)
    assert SharedTraces().trace(Small(), BATCH, loss_fn=F.mse_loss, training=True) == one
    assert one == trace(Small(), BATCH, loss_fn=F.mse_loss, training=True) and traced == ["Small"]


def test_what_a_trace_follows_from_is_told_apart(traced: list[str]) -> None:
    one = SharedTraces().trace(Small(), BATCH, loss_fn=F.mse_loss, training=True)
    for model, batch, options in (
        (Small(16), BATCH, {"loss_fn": F.mse_loss}),
        (Small(), tuple(torch.zeros(6, 8) for _ in BATCH), {"loss_fn": F.mse_loss}),
        (Small(), BATCH, {"loss_fn": F.l1_loss}),
        (Small(), BATCH, {"loss_fn": F.mse_loss, "dtype": "bfloat16"}),
    ):
        assert SharedTraces().trace(model, batch, training=True, **options) != one
    assert len(traced) == 5


def test_what_no_other_process_finds_by_name_is_traced_each_time(
    traced: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Own(Small):
        pass

    def forward(self: Small, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x))

    for _ in range(2):
        SharedTraces().trace(Own(), BATCH, loss_fn=F.mse_loss, training=True)
        SharedTraces().trace(Small(), BATCH, loss_fn=lambda y, t: F.mse_loss(y, t), training=True)
    monkeypatch.setattr(Small, "forward", forward)
    for _ in range(2):
        SharedTraces().trace(Small(), BATCH, loss_fn=F.mse_loss, training=True)
    assert traced == ["Own", "Small"] * 2 + ["Small"] * 2 and not list(tmp_path.iterdir())
