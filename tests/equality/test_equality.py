"""Every model of the table under every parallelism: the sharded program equals one device."""

from collections.abc import Iterator

import pytest

from autoplan.verify.local_ranks import RankPool
from tests.bench import correctness
from tests.bench.systems.reference import References, references
from tests.support import zoo
from tests.support.shared_plans import SharedPlans


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4, timeout_s=240) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def known() -> Iterator[References]:
    with references(zoo.small, correctness.TRAINING) as found:
        yield found


@pytest.mark.parametrize("system", correctness.SYSTEMS)
@pytest.mark.parametrize("model", correctness.MODELS)
def test_four_ranks_equal_one_device(
    pool: RankPool, known: References, shared_plans: SharedPlans, model: str, system: str
) -> None:
    row = correctness.check(pool, known, model, system, shared_plans)
    assert row.passed, f"{row}"
