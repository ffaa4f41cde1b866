"""Every model of the table under every parallelism: the sharded program equals one device.

Always run: data, tensor and pipeline parallelism, two of them together, and ZeRO-3. Tied weights under stages, ZeRO's
gathers of a tied parameter and running statistics over the data axis are each among them.
"""

import itertools
from collections.abc import Iterator

import pytest

from autoplan.verify.local_ranks import RankPool
from tests.bench import correctness
from tests.bench.systems.reference import References, references
from tests.support import zoo
from tests.support.sampling import sampled
from tests.support.shared_plans import SharedPlans

CELLS = list(itertools.product(correctness.MODELS, correctness.SYSTEMS))
QUICK = [
    ("llama", "dp=2 tp=2"), ("gpt2", "zero3"), ("mlp", "dp=2 pp=2"), ("convnet", "ddp"),
]


@pytest.fixture(scope="module")
def known() -> Iterator[References]:
    with references(zoo.small, correctness.TRAINING) as found:
        yield found


@pytest.mark.parametrize(("model", "system"), sampled(CELLS, QUICK))
def test_four_ranks_equal_one_device(
    pool: RankPool, known: References, shared_plans: SharedPlans, model: str, system: str
) -> None:
    row = correctness.check(pool, known, model, system, shared_plans)
    assert row.passed, f"{row}"
