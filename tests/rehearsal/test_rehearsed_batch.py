"""The batch on the device: a rank has what its stages read of it, in all microbatches, and the account counts that."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from autoplan import Parallelism, Plan, Training
from tests.support.planning import parallelize_unproved

WITHIN = 0.02
ROWS, WIDE, MICROBATCHES = 4096, 1024, 8


def wide_rows(pp: int) -> Plan:
    """Rows that are wider than all else: of a batch a stage reads the rows or the targets, or nothing."""
    sizes = (WIDE, 16, 16, 16, WIDE)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(sizes)))
    batch = torch.zeros(ROWS, WIDE), torch.zeros(ROWS, WIDE)
    micro_batch = ROWS // MICROBATCHES
    pinned = Parallelism(dp=1, tp=1, pp=pp, pipeline_schedule="1f1b", recompute="none", micro_batch=micro_batch)
    training = Training(optimizer="adamw")
    return parallelize_unproved(model, "1x4 cpu", batch, loss_fn=mse_loss, training=training, parallelism=pinned)


@pytest.fixture(scope="module")
def pipeline() -> Plan:
    return wide_rows(4)


def test_all_microbatches_of_what_a_stage_reads_are_predicted(pipeline: Plan) -> None:
    found = pipeline.rehearse()
    assert found.passed, found
    for each in found.classes:
        assert each.off == pytest.approx(0.0, abs=WITHIN), found


def test_stages_that_read_nothing_of_the_batch_have_none_of_it(pipeline: Plan) -> None:
    first, *inner, last = (rank.total for rank in pipeline.predicted.peak_bytes)
    batch = ROWS * WIDE * 4
    assert min(first, last) > batch
    assert max(inner) < batch / MICROBATCHES
