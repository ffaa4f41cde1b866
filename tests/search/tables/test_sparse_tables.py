"""Placed tables with gradients of looked-up rows alone: equal to one device, and nothing of a table's size is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import autoplan
from autoplan import Training
from autoplan.cluster import ClusterSpec
from autoplan.errors import DoesNotFitError, InputsError
from autoplan.export.folder import opened
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.support.recommenders import HOW, LIMIT, MIXED, ROWS, Large, Recommender, batch, planned, trained


def batches(count: int) -> list[tuple[Tensor, ...]]:
    """With few indices, so that they are looked up by several rows, on all ranks and in both microbatches; the padding
    ones among them."""
    torch.manual_seed(5)
    return [tuple(x.double() if x.is_floating_point() else x for x in batch()) for _ in range(count)]


def on_one_device(how: Training, weights: dict[str, Tensor], each: int) -> dict[str, Tensor]:
    """``each`` batches are added up for an update."""
    model = Recommender().double()
    model.load_state_dict(weights)
    optimizer = build_optimizer(model.named_parameters(), how)
    for number, given in enumerate(batches(4), 1):
        model(*given).backward()
        if number % each == 0:
            nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def on_ranks(rank: int, world: int, folder: str, weights: dict[str, Tensor], each: int) -> tuple[dict, bool, dict]:
    """(weights, whether the tables' gradients were of rows all along, the last gradients)."""
    plan = opened(folder)
    with Program(plan.spec(), plan.module()) as program:
        program.load_weights(weights)
        (tables,) = [h for h in program.held if h.stored.members]
        by_rows, grads = tables.rows is not None, {}
        for number, given in enumerate(batches(4), 1):
            program.step(given, accumulate=each > 1)
            by_rows &= tables.parameter.grad is None and tables.rows is not None and bool(tables.rows.boxes)
            grads = dict(program.full_grads())
            if number % each == 0:
                program.optimizer.step()
                program.optimizer.zero_grad()
                by_rows &= not (tables.rows and tables.rows.boxes)
        return dict(program.full_state_dict()), by_rows, grads


def exported(how: Training, to: Path, **pinned: Any) -> str:
    return str(planned(MIXED, how, tp=4, **pinned).export(to / "out"))


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize(("each", "microbatches"), [(1, 1), (1, 2), (2, 2)])
def test_looked_up_rows_alone_equal_one_device(
    pool: RankPool, tmp_path: Path, name: str, each: int, microbatches: int
) -> None:
    how = trained(HOW[name])
    folder = exported(how, tmp_path, micro_batch=ROWS // microbatches)
    assert "sparse=True" in (Path(folder) / "program.py").read_text()
    weights = {key: value.double() for key, value in Recommender().state_dict().items()}
    expected = on_one_device(how, weights, each)
    ranks = pool.run(on_ranks, folder, weights, each)
    assert all(by_rows for _, by_rows, _ in ranks)
    for key, value in expected.items():
        torch.testing.assert_close(ranks[0][0][key], value, rtol=1e-10, atol=1e-10)


def test_gradients_are_told_whole(pool: RankPool, tmp_path: Path) -> None:
    """Of every parameter and row, as one device has them."""
    how = trained(HOW["sgd"], learning_rate=0.0)
    folder = exported(how, tmp_path)
    weights = {key: value.double() for key, value in Recommender().state_dict().items()}
    model = Recommender().double()
    model.load_state_dict(weights)
    model(*batches(4)[-1]).backward()
    found = pool.run(on_ranks, folder, weights, 1)[0][2]
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(found[key], parameter.grad, rtol=1e-10, atol=1e-12)


def with_an_option(rank: int, world: int, folder: str, name: str) -> tuple[str, bool]:
    """What an update says whose group got an option later on; whether parameters are as they were."""
    plan = opened(folder)
    with Program(plan.spec(), plan.module()) as program:
        program.load_weights({key: value.double() for key, value in Recommender().state_dict().items()})
        before = {key: value.clone() for key, value in program.state_dict().items()}
        program.step(batches(4)[0])
        for group in program.optimizer.param_groups:
            group[name] = 0.5
        with pytest.raises(InputsError) as error:
            program.optimizer.step()
        return str(error.value), all(torch.equal(value, before[key]) for key, value in program.state_dict().items())


@pytest.mark.parametrize("name", ["weight_decay", "momentum"])
def test_an_option_set_later_that_moves_all_rows_is_refused(pool: RankPool, tmp_path: Path, name: str) -> None:
    """A schedule may do so: OneCycleLR sets a momentum."""
    folder = exported(trained(HOW["sgd"]), tmp_path)
    for said, same in pool.run(with_an_option, folder, name):
        assert f"{name}=0.5 in program.optimizer.param_groups" in said and "OneCycleLR" in said and same


@pytest.mark.parametrize(
    ("how", "pinned"),
    [
        (Training(optimizer="adam"), {"tp": 4}),
        (Training(optimizer="sgd", momentum=0.9), {"tp": 4}),
        (Training(optimizer="sgd"), {"tp": 2, "dp": 2}),
        (Training(optimizer="sgd", precision="bf16-mixed"), {"tp": 4}),
        (Training(optimizer="sgd"), {"tp": 4, "offload": "optimizer"}),
    ],
)
def test_where_a_whole_gradient_is_needed_it_is_made(how: Training, pinned: dict[str, Any]) -> None:
    chosen = tuple((kind, min(device, pinned["tp"] - 1)) for kind, device in MIXED)
    plan = planned(chosen, Training(**{**vars(how), "compile": False}), **pinned)
    nodes = [node for block in plan.record.model.blocks for node in block.nodes if node.op == "autoplan.lookups"]
    assert nodes and not any(node.kwargs for node in nodes)


class Largest(TorchDispatchMode):
    """The most elements that an operator gave in memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        made = (x for x in tree_leaves(result) if isinstance(x, Tensor))
        self.elements = max([self.elements, *(x.numel() for x in made if x.untyped_storage().data_ptr() not in given)])
        return result


def largest(rank: int, world: int, folder: str) -> tuple[int, int]:
    """Elements that a step makes at most, the second one; those of a rank's tables."""
    plan = opened(folder)
    with Program(plan.spec(), plan.module()) as program:
        program.load_weights(Large().state_dict())
        (tables,) = [h for h in program.held if h.stored.members]
        given = torch.randint(50_000, (ROWS, 3, 4)), torch.rand(ROWS).round()
        program.step(given)
        program.optimizer.step()
        with Largest() as seen:
            program.step(given)
            program.optimizer.step()
        return seen.elements, tables.values.numel()


def planned_large(how: Training, cluster: str | ClusterSpec = "1x4 cpu") -> autoplan.Plan:
    given = torch.randint(50_000, (ROWS, 3, 4)), torch.rand(ROWS).round()
    system = autoplan.Parallelism(tensor_system="table-parallel", tp=4)
    return autoplan.parallelize(Large(), cluster, given, parallelism=system, training=how)


@pytest.mark.parametrize("name", ["rowwise-adagrad", "sgd", "adagrad", "beside adamw"])
def test_a_step_makes_nothing_of_a_table_s_size(pool: RankPool, tmp_path: Path, name: str) -> None:
    plan = planned_large(Training(**{**vars(HOW[name]), "compile": False, "clip_grad_norm": 1.0}))
    plan.export(tmp_path / "out")
    for made, tables in pool.run(largest, str(tmp_path / "out")):
        assert tables > 250_000 and made <= ROWS * 4 * 8 * 3


def test_the_prices_and_the_report_are_of_looked_up_rows() -> None:
    """Beside a plan of the same with whole gradients, which may lay tables elsewhere."""
    how = Training(**{**vars(HOW["beside adamw"]), "compile": False})
    plan = planned_large(how)
    with patch("autoplan.search.tables.placed_search.whole_because", return_value="asked for"):
        whole = planned_large(how)
    rows, all_of_it = (each.predicted.peak_bytes[0] for each in (plan, whole))
    looked_up = ROWS * 4 * (8 * 4 + 8)  # indices on each table, their rows' elements and numbers
    assert min(rows.parameters, all_of_it.parameters) > 1_000_000
    assert rows.gradients <= 3 * looked_up + 1_000 and all_of_it.gradients >= all_of_it.parameters
    assert rows.total < 0.6 * all_of_it.total
    assert plan.predicted.step_time_s < whole.predicted.step_time_s
    assert "Gradients of placed tables: looked-up rows alone, at most" in plan.report(verbose=True)
    assert "adamw moves rows that have none" in planned_large(Training(compile=False)).report(verbose=True)
    placements = ("(table_wise)", "(row_wise)", "(column_wise)", "(data_parallel)")
    assert any(name in plan.report(verbose=True) for name in placements)


def test_tables_whose_whole_gradients_have_no_room_fit() -> None:
    how = Training(**{**vars(HOW["sgd"]), "compile": False})
    parameters = planned_large(how).predicted.peak_bytes[0].parameters
    few = replace(ClusterSpec.parse("1x4 cpu"), memory_bytes=round(1.5 * parameters))
    assert planned_large(how, few).predicted.peak_bytes[0].total < 1.5 * parameters
    with pytest.raises(DoesNotFitError):
        planned_large(Training(**{**vars(how), "momentum": 0.9}), few)
