"""Plans whose tensor axis' collectives are cut into chunks beside products: equal to one device, also with pipelines,
sharded states and recomputation beside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from autoplan.emit.program_text import emit_program
from autoplan.options import Parallelism, Training
from autoplan.verify.compare import gradient_error, loss_error, parameter_error, zero_gradients
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import train_eagerly
from autoplan.verify.sharded import in_pool, train_on_rank
from autoplan.verify.variants import in_float64
from tests.support import zoo
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled

EQUAL, STEPS = 1e-10, 2
SIZES = {"dp": 1, "tp": 1, "pp": 1, "micro_batch": 4}


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4, timeout_s=240) as ranks:
        yield ranks


CASES = [
    ("llama", {"dp": 2, "tp": 2, "zero": 1, "sequence_parallel": True, "recompute": "selective", "tp_overlap": 2}),
    ("llama", {"tp": 2, "pp": 2, "sequence_parallel": True, "recompute": "full", "tp_overlap": 4}),
    ("llama", {"dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True, "tp_overlap": 2}),
    ("gpt2", {"dp": 2, "tp": 2, "sequence_parallel": False, "tp_overlap": 4}),
    ("gpt2", {"tp": 4, "sequence_parallel": True, "tp_overlap": 2}),
    ("mixtral", {"dp": 2, "tp": 2, "ep": 2, "tp_overlap": 2}),
]


@pytest.mark.parametrize(("name", "pinned"), sampled(CASES, CASES[:1]))
def test_a_plan_in_chunks_equals_one_device(pool: RankPool, name: str, pinned: dict) -> None:
    module, batch, _ = zoo.small(name, layers=2)
    asked = Parallelism(**{**SIZES, **pinned})
    plan = parallelize_alone(module, "1x4 cpu", batch, parallelism=asked, effort="fast")
    source = emit_program(plan.lowered, "a plan")
    assert "row_linear(" in source and ("chunked_linear(" in source) >= bool(pinned.get("sequence_parallel"))
    record, module = in_float64(plan.record), module.double()
    found = in_pool(pool, record, batch, module.state_dict(), train_on_rank, STEPS)
    expected = train_eagerly(module, None, batch, record.training, STEPS)
    assert loss_error(found, expected).error < EQUAL
    assert gradient_error(found, expected, zero_gradients(expected)).error < EQUAL
    assert parameter_error(found, expected, zero_gradients(expected)).error < 1e-9


HALVES = [(*CASES[at], precision) for at in (0, 3, 5) for precision in ("bf16-mixed", "fp16-mixed")]


@pytest.mark.parametrize(("name", "pinned", "precision"), sampled(HALVES, HALVES[:1]))
def test_halves_in_chunks_are_those_of_whole_collectives(
    pool: RankPool, name: str, pinned: dict, precision: str
) -> None:
    """To the bit: no sum over ranks or over a product's inner dim is cut."""
    module, batch, _ = zoo.small(name, layers=2)
    found = []
    for chunks in (pinned["tp_overlap"], 1):
        plan = parallelize_alone(
            module, "1x4 cpu", batch, parallelism=Parallelism(**{**SIZES, **pinned, "tp_overlap": chunks}),
            effort="fast", training=Training(precision=precision, compile=False),
        )  # fmt: skip
        assert ("row_linear(" in emit_program(plan.lowered, "a plan")) == (chunks > 1)
        found.append(in_pool(pool, plan.record, batch, module.state_dict(), train_on_rank, 1))
    cut, whole = found
    assert cut.losses == whole.losses and cut.gradients.keys() == whole.gradients.keys()
    assert all(torch.equal(gradient, whole.gradients[key]) for key, gradient in cut.gradients.items())
