"""Programs whose pipeline ranks run several stages each, or split the backward, equal one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.variants import in_float64
from tests.bench import correctness
from tests.bench.systems.cells import errors
from tests.bench.systems.reference import References, references
from tests.support import zoo
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled, slow

EXACT = 1e-10
CASES = {
    "interleaved": (
        "gpt2", Parallelism(dp=1, tp=1, pp=2, pipeline_schedule="interleaved", virtual_stages=2, micro_batch=1)
    ),
    "interleaved, dp, full": (
        "llama",
        Parallelism(
            dp=2, tp=1, pp=2, pipeline_schedule="interleaved", virtual_stages=2, micro_batch=1, recompute="full", zero=1
        ),
    ),
    "zero-bubble": (
        "llama", Parallelism(dp=1, tp=1, pp=2, pipeline_schedule="zero-bubble", virtual_stages=2, micro_batch=1)
    ),
    "zero-bubble, dp, tied": (
        "gpt2", Parallelism(dp=2, tp=1, pp=2, pipeline_schedule="zero-bubble", virtual_stages=1, micro_batch=1, zero=1)
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def pools(shared_pools: Callable[[int], RankPool]) -> dict[int, RankPool]:
    return {2: shared_pools(2), 4: shared_pools(4)}


@pytest.fixture(scope="module")
def known() -> Iterator[References]:
    with references(zoo.small, correctness.TRAINING) as found:
        yield found


@pytest.mark.parametrize("name", sampled(CASES, ["zero-bubble, dp, tied"]))
def test_it_equals_one_device(pools: dict[int, RankPool], known: References, name: str) -> None:
    model, pins = CASES[name]
    devices = (pins.dp or 1) * (pins.pp or 1)
    module, batch, loss_fn = zoo.small(model)
    plan = parallelize_alone(
        module, f"1x{devices} cpu", batch, loss_fn=loss_fn, training=correctness.TRAINING, parallelism=pins
    )
    assert len(plan.record.chosen.stages) == 2 * (pins.virtual_stages or 1)
    assert len(plan.predicted.peak_bytes) == 2
    (run,) = correctness.runs(pools[devices], known, model, [in_float64(plan.record)])
    found = errors(run, known.trained(model, "fp64"))
    for worst in (found.loss, found.gradients, found.parameters):
        assert worst.error < EXACT, worst


SEVEN = {"tp": 1, "dp": 1, "micro_batch": 1, "pipeline_schedule": "interleaved"}
UNEVEN = [
    ("llama", 2, {"pp": 2, "virtual_stages": 3}),
    ("llama", 4, {"pp": 4, "virtual_stages": 2, "recompute": "selective"}),  # the embedding or the loss alone
    ("gpt2", 4, {"pp": 2, "dp": 2, "virtual_stages": 4, "zero": 1}),  # tied, and a stage for either end
    ("llama", 8, {"pp": 2, "dp": 2, "tp": 2, "virtual_stages": 3, "zero": 1, "micro_batch": 2}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "devices", "pins"), [UNEVEN[0], *map(slow, UNEVEN[1:])])
def test_seven_layers_on_stages_that_do_not_divide_them(model: str, devices: int, pins: dict) -> None:
    """Embedding and loss are parts of the balance: stages at the ends have fewer layers."""
    module, batch, _ = zoo.small(model, layers=7)
    plan = parallelize_alone(
        module, f"1x{devices} cpu", batch, training=correctness.TRAINING, parallelism=Parallelism(**SEVEN | pins)
    )
    stages = [stage.last - stage.first for stage in plan.record.chosen.stages]
    assert len(stages) == pins["pp"] * pins["virtual_stages"] and len({*stages}) > 1 and min(stages) > 0
    assert plan.predicted.bubble_fraction > 0
    result = plan.verify()
    assert result.passed, str(result)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_what_is_gathered_again_under_products_equals_one_device(model: str) -> None:
    module, batch, loss_fn = zoo.small(model)
    pins = Parallelism(dp=1, tp=2, pp=2, micro_batch=2, recompute="selective", sequence_parallel=True)
    training = correctness.TRAINING
    plan = parallelize_alone(module, "1x4 h100-sxm", batch, loss_fn=loss_fn, training=training, parallelism=pins)
    assert any(set(block.again) & {moved for moved, _ in block.hidden} for block in program_of(plan.record).blocks)
    result = plan.verify()
    assert result.passed, str(result)


@pytest.mark.slow
def test_a_plan_too_large_for_this_machine_is_verified_with_two_stages_on_two_ranks() -> None:
    module, _, loss_fn = zoo.small("llama")
    pins = Parallelism(pp=2, dp=8, tp=1, pipeline_schedule="interleaved", virtual_stages=2, micro_batch=1)
    plan = parallelize_alone(
        module, "2x8 cpu", zoo.batch_of("llama"), loss_fn=loss_fn, training=correctness.TRAINING, parallelism=pins
    )
    found = plan.verify()
    assert found.passed and "shrunk to" in found.note
