"""Pipelines and what stands beside them: uneven stages, values that skip stages, tied ends, with data and tensor axes,
ZeRO, recomputation, host memory and every schedule. Each equals one device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autoplan.options import Parallelism
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.variants import in_float64
from tests.bench import correctness
from tests.bench.systems.cells import errors
from tests.bench.systems.reference import References, references
from tests.support import zoo
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled

EXACT = 1e-10


def pipeline(**fields: object) -> Parallelism:
    """Two stages and microbatches of one row unless it says otherwise."""
    return Parallelism(**{"dp": 1, "tp": 1, "pp": 2, "micro_batch": 1, **fields})  # type: ignore[arg-type]


QUICK = {
    "tied, zero-bubble, tensor": ("gpt2", pipeline(tp=2, pipeline_schedule="zero-bubble", virtual_stages=1)),
    "uneven, interleaved, data, ZeRO-1, on the host": (
        "llama", pipeline(dp=2, pipeline_schedule="interleaved", virtual_stages=2, zero=1, offload="activations")
    ),
    "tied, ZeRO-3, selective": ("gpt2", pipeline(dp=2, pipeline_schedule="1f1b", zero=3, recompute="selective")),
}  # fmt: skip
SLOW = {
    "uneven, zero-bubble, data, ZeRO-2": (
        "llama", pipeline(dp=2, pipeline_schedule="zero-bubble", virtual_stages=2, zero=2)
    ),
    "uneven, zero-bubble, tensor, sequence": (
        "llama", pipeline(tp=2, pipeline_schedule="zero-bubble", virtual_stages=1, sequence_parallel=True)
    ),
    "skips, zero-bubble, tensor": ("t5", pipeline(tp=2, pipeline_schedule="zero-bubble", virtual_stages=1)),
    "skips, interleaved, tensor": ("t5", pipeline(tp=2, pipeline_schedule="interleaved", virtual_stages=2)),
    "skips, data, ZeRO-2": ("t5", pipeline(dp=2, pipeline_schedule="gpipe", zero=2)),
    "skips, data, full": ("t5", pipeline(dp=2, zero=0, pipeline_schedule="1f1b", recompute="full")),
    "tied, interleaved, tensor, full": (
        "gpt2", pipeline(tp=2, pipeline_schedule="interleaved", virtual_stages=2, recompute="full")
    ),
    "tied, four stages, selective": ("gpt2", pipeline(pp=4, pipeline_schedule="1f1b", recompute="selective")),
    "tied, four stages, zero-bubble": ("gpt2", pipeline(pp=4, pipeline_schedule="zero-bubble", virtual_stages=1)),
    "uneven, four stages, on the host": ("bert", pipeline(pp=4, pipeline_schedule="gpipe", offload="activations")),
    "tied, data, ZeRO-2, optimizer on the host": (
        "gpt2", pipeline(dp=2, pipeline_schedule="1f1b", zero=2, offload="optimizer")
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def known() -> Iterator[References]:
    with references(zoo.small, correctness.TRAINING) as found:
        yield found


def check(pool: RankPool, known: References, model: str, pins: Parallelism) -> None:
    module, batch, loss_fn = zoo.small(model)
    plan = parallelize_alone(
        module, "1x4 cpu", batch, loss_fn=loss_fn, training=correctness.TRAINING, parallelism=pins
    )
    (run,) = correctness.runs(pool, known, model, [in_float64(plan.record)])
    found = errors(run, known.trained(model, "fp64"))
    for worst in (found.loss, found.gradients, found.parameters):
        assert worst.error < EXACT, worst


@pytest.mark.parametrize("name", sampled(QUICK, list(QUICK)[:1]))
def test_it_equals_one_device(pool: RankPool, known: References, name: str) -> None:
    check(pool, known, *QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_so_does_the_rest_of_the_product(pool: RankPool, known: References, name: str) -> None:
    check(pool, known, *SLOW[name])
