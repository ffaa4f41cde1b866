"""Buckets of gradients are in the order in which a backward completes them, so that none waits for a later one."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

import autoplan
from autoplan.options import Parallelism
from autoplan.runtime.data.sources import batch_source
from autoplan.verify.local_ranks import RankPool
from tests.support import zoo
from tests.support.planning import parallelize_unproved
from tests.support.sampling import sampled


def completed(rank: int, size: int, folder: str) -> tuple[list[str], list[str]]:
    """(names in the order in which a backward completes their gradients, names as buckets have them)."""
    seen: list[str] = []
    with autoplan.load(folder).program() as program:
        program.init_weights()
        buckets = program.sums.buckets
        for held in (each for bucket in buckets for each in bucket.held):
            held.parameter.register_post_accumulate_grad_hook(lambda _, name=held.name: seen.append(name))
        program.step(batch_source(program.spec, None, 0)(0))
        return seen, [held.name for bucket in buckets for held in bucket.held]


@pytest.mark.parametrize("model", sampled(("llama", "gpt2"), ("llama",)))
def test_buckets_are_in_the_order_of_the_backward(model: str, tmp_path: Path) -> None:
    module, batch, loss_fn = zoo.small(model)
    pinned = Parallelism(dp=2, tp=1, pp=1, zero=0)
    plan = parallelize_unproved(module, "1x2 cpu", batch, loss_fn=loss_fn, parallelism=pinned)
    with RankPool(2, timeout_s=240) as pool:
        for seen, held in pool.run(completed, str(plan.export(tmp_path / "out"))):
            assert len(modules(held)) > 4 and modules(seen) == modules(held)


def modules(names: list[str]) -> list[str]:
    """Those whose parameters come one after another: a product gives its weight's and its bias' at once."""
    found = [name.split(".weight")[0].split(".bias")[0] for name in names]
    return [name for name, _ in groupby(found)]
