"""Recommenders with their tables placed: planned by name, and equal to one device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import autoplan
from autoplan.errors import ParallelismError
from autoplan.export.folder import opened
from autoplan.ir.typed_program import Compute
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.program import Program
from autoplan.search.tables.place import Choice
from autoplan.verify.local_ranks import RankPool
from tests.support.planning import parallelize_alone
from tests.support.recommenders import MIXED, Recommender, batch, planned

pytestmark = pytest.mark.usefixtures("verified_in_pool")

def test_tables_by_each_way_equal_one_device() -> None:
    plan = planned(MIXED, tp=4)
    computed = [s for block in plan.lowered.blocks for s in block.body if isinstance(s, Compute)]
    (looked,) = [s for s in computed if s.op == "autoplan.lookups"]
    assert looked.body == "placed_lookups"
    (flat,) = [p for p in plan.lowered.parameters if p.members]
    assert flat.layout.state("tp").kind == "S" and flat.reduce_axes == ()  # owners alone have their gradients
    result = plan.verify()
    assert result.passed and result.ranks == 4


@pytest.mark.parametrize("zero", [0, 1])
def test_beside_a_data_axis(zero: int) -> None:
    """Two groups of two: each has all tables, whose gradients are summed over the groups."""
    mixed = tuple((kind, min(device, 1)) for kind, device in MIXED)
    assert planned(mixed, tp=2, dp=2, zero=zero).verify().passed


def test_the_cheapest_placement_equals_one_device() -> None:
    assert planned(tp=4).verify().passed


def test_models_without_tables_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    given = (torch.randn(8, 4), torch.randn(8, 4))
    with pytest.raises(ParallelismError, match="no tables that are looked up by rows of the batch"):
        parallelize_alone(model, "1x4 cpu", given, loss_fn=functional.mse_loss, parallelism="table-parallel")


def test_optimizers_of_whole_matrices_are_refused() -> None:
    with pytest.raises(ParallelismError, match="'adafactor': it looks at whole parameters"):
        parallelize_alone(
            Recommender(), "1x4 cpu", batch(), parallelism="table-parallel",
            training=autoplan.Training(optimizer="adafactor"),
        )  # fmt: skip


ROWWISE = autoplan.Training(optimizer="rowwise-adagrad", learning_rate=1e-2, compile=False)
TWO = tuple((kind, min(device, 1)) for kind, device in MIXED)


@pytest.mark.parametrize(("chosen", "sizes"), [(MIXED, {"tp": 4}), (TWO, {"tp": 2, "dp": 2, "zero": 1})])
def test_rows_of_tables_have_one_accumulator_each(chosen: tuple[Choice, ...], sizes: dict[str, int]) -> None:
    """By columns those who share a row add its squares up; ZeRO cuts rows anywhere."""
    plan = planned(chosen, ROWWISE, **sizes)
    assert plan.verify().passed and "TorchRec's EXACT_ROWWISE_ADAGRAD): " in plan.report(verbose=True)
    adagrad = planned(chosen, autoplan.Training(optimizer="adagrad", compile=False), **sizes)
    rows, elements = (each.predicted.peak_bytes[0].optimizer for each in (plan, adagrad))
    assert rows < 0.3 * elements, "tables of four and eight columns"


def kept(rank: int, world: int, folder: str, weights: dict[str, Tensor], to: str, at: str = "") -> tuple:
    """Two steps, from a checkpoint where there is one; bytes of state on this rank, and what is in a row's."""
    plan = opened(folder)
    program = Program(plan.spec(), plan.module())
    program.load_weights(weights)
    if at:
        program.load_checkpoint(at)
    torch.manual_seed(len(at))
    for _ in range(2):
        program.step(batch())
        program.optimizer.step()
    program.save_checkpoint(to)
    shapes = {h.name: tuple(program.optimizer.state[h.updated]["row_sum"].shape) for h in program.held}
    return dict(program.full_state_dict()), shapes, {h.name: h.values.numel() for h in program.held}


def test_accumulators_go_to_a_plan_that_cuts_tables_otherwise(pool: RankPool, tmp_path: Path) -> None:
    plans = {str(zero): planned(TWO, ROWWISE, tp=2, dp=2, zero=zero) for zero in (0, 1)}
    for name, plan in plans.items():
        plan.export(tmp_path / name)
    weights = {name: value.clone() for name, value in Recommender().state_dict().items()}
    folders = [str(tmp_path / name) for name in ("0", "1", "a", "b", "c")]
    pool.run(kept, folders[0], weights, folders[2])
    here = pool.run(kept, folders[0], weights, folders[3], folders[2])
    there = pool.run(kept, folders[1], weights, folders[4], folders[2])
    for name, value in here[0][0].items():
        torch.testing.assert_close(there[0][0][name], value, rtol=1e-5, atol=1e-7)
    tables = next(p.name for p in plans["0"].lowered.parameters if p.members)
    assert all(shapes[tables][0] < 0.3 * sizes[tables] for _, shapes, sizes in (*here, *there))


def test_a_row_that_nobody_looked_up_stays() -> None:
    """Bit for bit, whatever it was updated by before."""
    table = nn.Embedding(10, 4)
    optimizer = build_optimizer([table.weight], ROWWISE)
    for rows in ([1, 2, 3], [2]):
        before, sums = table.weight.detach().clone(), optimizer.state[table.weight].get("row_sum", torch.zeros(10))
        sums = sums.clone()
        optimizer.zero_grad()
        table(torch.tensor(rows)).square().sum().backward()
        optimizer.step()
        changed = (table.weight != before).any(1).nonzero()[:, 0].tolist()
        moved = (optimizer.state[table.weight]["row_sum"] != sums).nonzero()[:, 0].tolist()
        assert changed == moved == rows
