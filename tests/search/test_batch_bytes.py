"""What segments read of the batch: all microbatches of it, also behind the constants that are made of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autoplan import Parallelism
from autoplan.ir.choice import tensor_mesh
from autoplan.ir.graph import Model
from autoplan.search.repriced import repriced
from autoplan.search.space.batch_bytes import batch_read
from tests.support.planning import parallelize_unproved

ROWS, WIDE, MICROBATCHES = 8, 16, 4


class Masked(nn.Module):
    """Layers of which each reads a mask that is made of one input; the first reads the other, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(3))

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        mask = lengths.reshape(-1, 1) > 2
        for layer in self.layers:
            rows = layer(rows).masked_fill(mask, 0.0).relu()
        return rows.sum()


@pytest.fixture(scope="module")
def stages() -> tuple[Model, object, object]:
    batch = {"rows": torch.zeros(ROWS, WIDE), "lengths": torch.zeros(ROWS, dtype=torch.int64)}
    pinned = Parallelism(dp=1, tp=1, pp=1, micro_batch=ROWS // MICROBATCHES)
    with torch.device("meta"):
        model = Masked()
    plan = parallelize_unproved(model, "1x1 cpu", batch, parallelism=pinned)
    return plan.record.model, *repriced(plan.record)


def test_a_segment_has_all_microbatches_of_what_it_reads(stages: tuple) -> None:
    model, state, found = stages
    held = batch_read(model, state.prepared.batch, tensor_mesh(found.candidate.mesh), MICROBATCHES)
    sizes = {"rows": ROWS * WIDE * 4, "lengths": ROWS * 8}
    read = [dict(segment) for segment in held]
    assert "rows" in read[0] and all("rows" not in segment for segment in read[1:])
    assert all(size == sizes[name] for segment in read for name, size in segment.items())
    assert any("lengths" in segment for segment in read)


def test_a_rank_has_an_input_once_however_many_of_its_segments_read_it(stages: tuple) -> None:
    _, _, found = stages
    (read,) = found.stage_model.chain.read(found.stages, 1)
    assert read == ROWS * WIDE * 4 + ROWS * 8
    (memory,) = found.stage_model.memory_of(found.stages)
    account, need = found.stage_model.memory_account, found.stage_model.needs(found.stages).by_rank(1)
    assert account.frozen_once(need).item() == read
    assert memory.activations >= read
