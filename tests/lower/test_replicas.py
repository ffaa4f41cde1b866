"""Replicas that step by themselves: each one's loss is a mean over its own rows, and what joins all rows is refused."""

from __future__ import annotations

import pytest

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.errors import ParallelismError
from autoplan.ir.typed_program import Compute, Lowered
from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism
from tests.support import zoo
from tests.support.hand_made import llama, mlp
from tests.support.planning import parallelize_alone
from tests.support.records import record_of


def divisors(program: Lowered) -> list[int]:
    return [s.divisor for block in program.blocks for s in block.body if isinstance(s, Compute) and s.divisor > 1]


def test_a_replica_s_mean_is_over_its_own_rows() -> None:
    pinned = dict(dp=2, tp=1, pp=1, zero=0, micro_batch=8)
    together = program_of(record_of(mlp(), "1x2 cpu", **pinned))
    alone = program_of(record_of(mlp(), "1x2 cpu", **pinned, local_steps=4))
    microbatches = together.mesh.size("mb")
    assert microbatches == 2
    assert divisors(together) == [2 * microbatches] and divisors(alone) == [microbatches]


def test_a_replica_s_loss_stays_its_own_summand() -> None:
    pinned = dict(dp=4, tp=1, pp=1, zero=0, micro_batch=2)
    together, alone = (program_of(record_of(llama(), "1x4 cpu", **pinned, local_steps=k)) for k in (1, 4))
    assert alone == together and alone.loss.layout.state("dp").kind == "P"


def test_what_joins_the_rows_of_all_replicas_is_refused() -> None:
    model, batch, loss_fn = zoo.small("convnet")
    with pytest.raises(ParallelismError, match=r"local_steps=4: .* joins the rows of all replicas in every step"):
        parallelize_alone(model, "1x4 cpu", batch, loss_fn=loss_fn, parallelism="local-sgd")


@pytest.mark.parametrize("steps", [None, 1])
def test_an_outer_optimizer_without_local_steps_is_refused(steps: int | None) -> None:
    model, batch, loss_fn = zoo.small("mlp")
    pinned = Parallelism(dp=4, tp=1, pp=1, outer_optimizer="nesterov", local_steps=steps)
    with pytest.raises(ParallelismError, match="outer_optimizer='nesterov' without local_steps"):
        parallelize_alone(model, "1x4 cpu", batch, loss_fn=loss_fn, parallelism=pinned)
