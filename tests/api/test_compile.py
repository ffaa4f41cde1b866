"""The pass list: run in the order that it states, and the same whoever calls it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autoplan
from autoplan import ClusterSpec, Parallelism, Plan, Training, compile
from autoplan.ir.start import Start
from tests.support.planning import alone, parallelize_alone

PASSES = (
    "trace", "in_precision", "check_rules", "with_batch_moves", "search_with_tables", "typed_program",
    "PlanRecord",
)  # fmt: skip
TRAINING = Training(precision="fp64")
PINNED = Parallelism(dp=2, tp=1, pp=1)
BATCH = (torch.zeros(8, 4), torch.zeros(8, 4))


def planned() -> Plan:
    return parallelize_alone(
        nn.Linear(4, 4), "1x2 cpu", BATCH, loss_fn=nn.functional.mse_loss, training=TRAINING, parallelism=PINNED
    )


def test_the_passes_run_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def noting(name: str) -> None:
        run = getattr(compile, name)
        monkeypatch.setattr(compile, name, lambda *given, **named: (ran.append(name), run(*given, **named))[1])

    for name in PASSES:
        noting(name)
    with alone():  # a trace of its own: a shared one is no pass
        autoplan.parallelize(
            nn.Linear(4, 4), "1x2 cpu", BATCH, loss_fn=nn.functional.mse_loss, training=TRAINING, parallelism=PINNED
        )
    assert tuple(ran) == PASSES


def test_a_traced_graph_gives_the_plan_of_its_module() -> None:
    traced = compile.traced_model(nn.Linear(4, 4), BATCH, nn.functional.mse_loss, TRAINING)
    assert {p.type.dtype for p in traced.parameters} == {"float64"}
    asked = compile.asked_of(PINNED, (), TRAINING, "full")
    with alone():
        record = compile.compile_model(traced, ClusterSpec.of("1x2 cpu"), TRAINING, asked, None, Start())
    assert record.chosen == planned().record.chosen and record.model == traced
