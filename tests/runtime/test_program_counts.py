"""A program's step makes about as many operator calls as the module's own, and keeps no more for the backward."""

from __future__ import annotations

import pytest

from tests.bench.program.counts import PRECISIONS, row
from tests.bench.program.models import MODELS
from tests.support.sampling import sampled

CALLS = 1.00  # what is done once a step, of two layers, is in it
COUNT_BYTES = 8  # of valid targets, by which the loss is divided: the module's own mean counts them inside
CELLS = sampled(
    [(model, precision) for model in MODELS for precision in PRECISIONS],
    [("Llama", "bf16-mixed")],
)


@pytest.mark.parametrize(("model", "precision"), CELLS)
def test_a_step_is_no_longer_than_the_modules(model: str, precision: str) -> None:
    found = row(model, precision)
    assert found.calls_ratio <= CALLS, found.program.calls
    assert found.program.saved_bytes <= found.module.saved_bytes + COUNT_BYTES
    assert found.program.total > 100 and found.module.saved_bytes > 1e5
