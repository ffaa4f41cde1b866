"""A batch of one row, whose sequence alone could be split over the batch's axis, which has one rank then."""

from __future__ import annotations

import pytest

from autoplan.options import Parallelism
from tests.support import zoo
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled

PINS = {
    "tp": Parallelism(dp=1, tp=2, pp=1),
    "pp": Parallelism(dp=1, tp=1, pp=2),
    "cp": Parallelism(dp=1, cp=2, tp=1, pp=1),
}
CASES = [(model, pins) for model in ("llama", "gpt2", "mixtral") for pins in PINS]


@pytest.mark.parametrize(("model", "pins"), sampled(CASES, [("llama", "tp")]))
@pytest.mark.usefixtures("verified_in_pool")
def test_one_row_equals_one_device(model: str, pins: str) -> None:
    module, batch, loss_fn = zoo.small(model)
    row = {name: value[:1].clone() for name, value in batch.items()}
    plan = parallelize_alone(module, "1x2 cpu", row, loss_fn=loss_fn, parallelism=PINS[pins])
    found = plan.verify()
    assert found.passed, str(found)
