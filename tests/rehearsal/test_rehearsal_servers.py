"""Parameter servers rehearsed: every push and pull meets, and is priced with its bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autoplan.errors import RehearsalError
from autoplan.options import Parallelism
from autoplan.rehearsal.rehearse import rehearse
from tests.support.planning import parallelize_unproved
from tests.support.rehearsed_llama import LENGTH, ROWS, TRAINING, llama


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "staleness"), [(1, 0), (2, 1)])
def test_pushes_and_pulls_meet_as_they_are_priced(tmp_path: Path, servers: int, staleness: int) -> None:
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    plan = parallelize_unproved(
        llama(2), "1x3 h100-sxm", {"input_ids": ids[:6], "labels": ids[:6]}, training=TRAINING, effort="fast",
        parallelism=Parallelism(servers=servers, staleness=staleness, micro_batch=2),
    )  # fmt: skip
    text = " ".join(str(rehearse(plan.export(tmp_path / "out"))).split())
    assert "The program would run: 3 ranks in 3 classes of ranks" in text
    assert "Every collective meets its members and every message its receiver" in text
    assert "are issued and priced, with their bytes" in text and "held beyond the step" not in text


def test_who_is_done_first_no_rehearsal_knows(tmp_path: Path) -> None:
    batch = torch.zeros(8, 4)
    plan = parallelize_unproved(
        torch.nn.Linear(4, 4), "1x4 cpu", (batch, batch), loss_fn=torch.nn.functional.mse_loss,
        parallelism="backup-workers",
    )  # fmt: skip
    with pytest.raises(RehearsalError, match="which workers are done first no rehearsal knows"):
        rehearse(plan.export(tmp_path / "out"))
