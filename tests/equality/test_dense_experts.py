"""Llama 4, whose experts are written as products of all tokens: split by experts, inside them and not at all, it equals
one device's module as its author wrote it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from autoplan import forbid
from autoplan.emit.program_text import emit_program
from autoplan.options import Parallelism, Training
from autoplan.verify.compare import gradient_error, loss_error, parameter_error, zero_gradients
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import train_eagerly
from autoplan.verify.sharded import in_pool, train_on_rank
from autoplan.verify.variants import in_float64
from tests.support.mixtures import llama4, tokens
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled

EQUAL, STEPS = 1e-10, 2
ROUTED, LOCAL = "routed_experts(", "local_experts("
CASES = [
    (1, {"dp": 4, "ep": 4}, ROUTED), (2, {"dp": 4, "ep": 2, "zero": 3}, ROUTED),
    (2, {"dp": 2, "tp": 2, "ep": 4, "etp": 1, "zero": 1}, ROUTED), (1, {"dp": 2, "ep": 2, "pp": 2}, ROUTED),
    (1, {"dp": 2, "tp": 2, "ep": 2}, LOCAL), (2, {"dp": 1, "tp": 4, "ep": 1}, LOCAL),
]  # fmt: skip


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, RankPool]]:
    with RankPool(1, timeout_s=240) as one, RankPool(4, timeout_s=240) as four:
        yield {1: one, 4: four}


def check(pools: dict[int, RankPool], ranks: int, choices: int, pinned: dict, call: str) -> None:
    torch.manual_seed(0)
    module = llama4(choices).train()
    kept = [] if call != ROUTED else [forbid("autoplan.experts", "P", axis=axis) for axis in ("ep", "tp")]
    plan = parallelize_alone(
        module, f"1x{ranks} cpu", tokens(), parallelism=Parallelism(**{"tp": 1, "pp": 1, "micro_batch": 2, **pinned}),
        effort="fast", training=Training(compile=False), constraints=kept,
    )  # fmt: skip
    assert call in emit_program(plan.lowered, "a plan")
    record, module = in_float64(plan.record), module.double()
    found = in_pool(pools[ranks], record, tokens(), module.state_dict(), train_on_rank, STEPS)
    expected = train_eagerly(module, None, tokens(), record.training, STEPS)
    assert loss_error(found, expected).error < EQUAL
    assert gradient_error(found, expected, zero_gradients(expected)).error < EQUAL
    assert parameter_error(found, expected, zero_gradients(expected)).error < 1e-9


@pytest.mark.parametrize("choices", [1, 2])
def test_one_rank_computes_what_the_module_does(pools: dict[int, RankPool], choices: int) -> None:
    check(pools, 1, choices, {"dp": 1}, " experts(")


@pytest.mark.parametrize(("choices", "pinned", "call"), sampled(CASES, CASES[:1]))
def test_splits_of_its_experts_equal_one_device(
    pools: dict[int, RankPool], choices: int, pinned: dict, call: str
) -> None:
    check(pools, 4, choices, pinned, call)
