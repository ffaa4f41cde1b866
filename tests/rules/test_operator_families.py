"""Every family of operators, as torch.export writes what models call, planned and run on four ranks: equal to one
device. What has no rule of its own is spelled out in operators that have one."""

from __future__ import annotations

import pytest

from autoplan.options import Parallelism
from tests.support.operator_families import FAMILIES, Family, batch
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("verified_in_pool")


# of many operators, whose rules are each proved apart; activations are unary, too
SLOW = ("penalties", "spectra", "windows", "indexing", "space", "unary")


@pytest.mark.parametrize("name", sampled(FAMILIES, [name for name in FAMILIES if name not in SLOW]))
def test_a_family_on_four_ranks_equals_one_device(name: str) -> None:
    pins = Parallelism(dp=2, tp=2, pp=1, micro_batch=4)
    plan = parallelize_alone(Family(name), "1x4 cpu", batch(name), parallelism=pins)
    found = plan.verify()
    assert found.passed, str(found)
