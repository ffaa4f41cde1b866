"""Plans whose mixtures' tokens travel beside what is computed, a shared expert or other tokens: equal to one device,
also with a tensor axis, pipelines, sharded states and recomputation beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest
import torch
from torch import nn

from autoplan import forbid
from autoplan.emit.program_text import emit_program
from autoplan.options import Parallelism, Training
from autoplan.plan import Plan
from autoplan.verify.compare import gradient_error, loss_error, parameter_error, zero_gradients
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import train_eagerly
from autoplan.verify.sharded import in_pool, train_on_rank
from autoplan.verify.variants import in_float64
from tests.support.mixtures import deepseek_v3, mixtral, qwen2, qwen3, tokens
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled

EQUAL, STEPS = 1e-10, 2


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "deepseek": deepseek_v3, "qwen2": partial(qwen2, 2), "mixtral": partial(mixtral, 2), "qwen3": partial(qwen3, 2),
}  # fmt: skip
"""Of the second a gate of its own scales the shared expert: its product stands beside the router's."""


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4, timeout_s=240) as ranks:
        yield ranks


CASES = [
    ("deepseek", {"dp": 2, "ep": 2, "pp": 2, "recompute": "full", "ep_overlap": "shared"}),
    ("deepseek", {"dp": 4, "ep": 4, "zero": 1, "recompute": "selective", "ep_overlap": "shared"}),
    ("deepseek", {"dp": 2, "tp": 2, "ep": 4, "etp": 1, "zero": 3, "ep_overlap": "shared"}),
    ("qwen2", {"dp": 4, "ep": 2, "zero": 3, "recompute": "full", "ep_overlap": "shared"}),
    ("qwen2", {"dp": 2, "tp": 2, "ep": 2, "zero": 1, "ep_overlap": "shared"}),
    ("mixtral", {"dp": 4, "ep": 2, "zero": 3, "ep_overlap": 2}),
    ("mixtral", {"dp": 2, "ep": 2, "pp": 2, "recompute": "selective", "ep_overlap": 4}),
    ("qwen3", {"dp": 2, "tp": 2, "ep": 4, "etp": 1, "zero": 1, "recompute": "full", "ep_overlap": 2}),
    ("deepseek", {"dp": 4, "ep": 2, "ep_overlap": 3}),
]


def planned(name: str, pinned: dict) -> tuple[Plan, nn.Module]:
    torch.manual_seed(0)
    module = MODELS[name]().train()
    sizes = Parallelism(**{"tp": 1, "pp": 1, "micro_batch": 2, **pinned})
    plan = parallelize_alone(
        module, "1x4 cpu", tokens(), parallelism=sizes, effort="fast", training=Training(compile=False),
        constraints=[forbid("autoplan.experts", "P", axis=axis) for axis in ("ep", "tp")],
    )  # fmt: skip
    return plan, module


@pytest.mark.parametrize(("name", "pinned"), sampled(CASES, (CASES[0], CASES[5])))
def test_tokens_that_travel_beside_compute_equal_one_device(pool: RankPool, name: str, pinned: dict) -> None:
    plan, module = planned(name, pinned)
    source = emit_program(plan.lowered, "a plan")
    how = pinned["ep_overlap"]
    assert plan.parallelism.ep_overlap == how
    if how == "shared":
        assert source.count("return_tokens(") == source.count("send_tokens(") > 0 and "routed_experts(" not in source
    else:
        assert f"chunks={how}" in source
    record, module = in_float64(plan.record), module.double()
    found = in_pool(pool, record, tokens(), module.state_dict(), train_on_rank, STEPS)
    expected = train_eagerly(module, None, tokens(), record.training, STEPS)
    assert loss_error(found, expected).error < EQUAL
    assert gradient_error(found, expected, zero_gradients(expected)).error < EQUAL
    assert parameter_error(found, expected, zero_gradients(expected)).error < 1e-9
