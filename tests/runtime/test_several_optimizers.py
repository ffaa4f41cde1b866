"""Groups of parameters with optimizers of their own: each equals that optimizer alone over the whole parameters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autoplan
from autoplan import Parallelism, Training
from autoplan.cost.step import in_one_pass, states_beyond
from autoplan.errors import ParallelismError, WeightsError
from autoplan.runtime.optim.optimizer import build_optimizer
from autoplan.runtime.optim.optimizer_options import check_optimizer
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.optimizer_runs import part_of_a_run

RATE = 1e-2
TABLES = {"match": "embed*|*gate_up*", "optimizer": "rowwise-adagrad", "learning_rate": 2e-2, "eps": 1e-6}
MOVED = {"match": "*bias", "optimizer": "sgd", "momentum": 0.9}
HOW = Training(
    precision="fp64", learning_rate=RATE, weight_decay=0.1, compile=False, groups=(TABLES, MOVED),  # type: ignore[arg-type]
    lr_schedule={"name": "linear", "warmup": 2, "steps": 10},  # type: ignore[arg-type]
)  # fmt: skip
PLANS = {
    "zero3": dict(dp=4, zero=3, microbatches=2),
    "tp2 dp2 zero3": dict(tp=2, dp=2, zero=3),
    "pp2 tp2, tied": dict(pp=2, tp=2, microbatches=2, pipeline_schedule="1f1b"),
}


def by_hand() -> Mapping[str, Tensor]:
    """Three optimizers of a loop, each over its own parameters."""
    model = tiny.reference()
    named = dict(model.named_parameters())
    tables = [p for name, p in named.items() if "embed" in name or "gate_up" in name]
    moved = [p for name, p in named.items() if name.endswith("bias")]
    rest = [p for p in named.values() if not any(p is each for each in (*tables, *moved))]
    sums = [torch.zeros(len(p), dtype=torch.float64) for p in tables]
    others: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(rest, lr=RATE, weight_decay=0.1), torch.optim.SGD(moved, lr=RATE, momentum=0.9),
    ]  # fmt: skip
    for step, batch in enumerate(tiny.batches(4)):
        share = build_share(step)
        model.zero_grad()
        model(**batch).backward()
        for optimizer in others:
            optimizer.param_groups[0]["lr"] = RATE * share
            optimizer.step()
        with torch.no_grad():
            for a, w in zip(sums, tables, strict=True):
                assert w.grad is not None
                a += (w.grad**2).mean(1)
                w -= 2e-2 * share * w.grad / (a.sqrt() + 1e-6)[:, None]
    return model.state_dict()


def build_share(step: int) -> float:
    """Of the rates after so many updates, as torch's schedule has it over a parameter of its own."""
    how = Training(learning_rate=1.0, lr_schedule=HOW.lr_schedule)
    optimizer = build_optimizer([nn.Parameter(torch.zeros(1))], how)
    for _ in range(step):
        optimizer.param_groups[0]["params"][0].grad = torch.zeros(1)
        optimizer.step()
    return float(optimizer.param_groups[0]["lr"])


def differences(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    assert found.keys() == wanted.keys()
    return max(float((found[key] - wanted[key]).norm() / wanted[key].norm()) for key in wanted)


@pytest.mark.parametrize("plan", PLANS)
def test_each_group_is_updated_as_by_its_optimizer_alone(pool: RankPool, tmp_path: Path, plan: str) -> None:
    found = pool.run(part_of_a_run, PLANS[plan], HOW, str(tmp_path / "c"), 0, 4)[0]
    assert differences(found, by_hand()) < 1e-9


def test_groups_stand_in_their_order_under_their_names() -> None:
    groups = build_optimizer(tiny.reference().named_parameters(), HOW).param_groups
    assert [group["name"] for group in groups] == ["default", TABLES["match"], MOVED["match"]]


def test_another_plan_goes_on_with_what_each_kept(pool: RankPool, tmp_path: Path) -> None:
    folder = str(tmp_path / "c")
    pool.run(part_of_a_run, PLANS["tp2 dp2 zero3"], HOW, folder, 0, 2)
    found = pool.run(part_of_a_run, PLANS["pp2 tp2, tied"], HOW, folder, 2, 4)[0]
    assert differences(found, by_hand()) < 1e-9
    turned = replace(HOW, groups=HOW.groups[::-1])  # the same of each parameter
    found = pool.run(part_of_a_run, PLANS["zero3"], turned, folder, 2, 4)[0]
    assert differences(found, by_hand()) < 1e-9
    one = Training(precision="fp64", learning_rate=RATE, compile=False)
    with pytest.raises(Exception, match="optimizer is 'adamw and rowwise-adagrad and sgd', the plan's 'adamw'") as told:
        pool.run(part_of_a_run, PLANS["zero3"], one, folder, 2, 4)
    assert WeightsError.__name__ in str(told.getrepr())


def noted_at_load(rank: int, world: int, how: Training, folder: str) -> str:
    with Program(tiny.spec(dp=4, zero=3, training=how), tiny.program(1)) as program, redirect_stderr(StringIO()) as out:
        program.load_checkpoint(folder)
    return out.getvalue()


def test_a_parameter_whose_optimizer_kept_nothing_there_is_told(pool: RankPool, tmp_path: Path) -> None:
    one = Training(precision="fp64", compile=False, groups=({"match": "*bias", "optimizer": "sgd"},))  # type: ignore[arg-type]
    here, there = (
        replace(one, optimizer=a, groups=(replace(one.groups[0], optimizer=b),))
        for a, b in (("adamw", "sgd"), ("sgd", "adamw"))
    )
    pool.run(part_of_a_run, PLANS["zero3"], there, str(tmp_path / "c"), 0, 2)
    told = pool.run(noted_at_load, here, str(tmp_path / "c"))
    assert "it has no optimizer state of embed.weight and " in told[0] and "more, which begins anew" in told[0]
    assert not any("begins anew" in each for each in told[1:])
    assert "begins anew" not in pool.run(noted_at_load, there, str(tmp_path / "c"))[0]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        (dict(groups=[{"match": "*", "optimizer": "lamb"}]), "lamb can't stand beside another"),
        (dict(optimizer="muon", groups=[{"match": "*", "optimizer": "sgd"}]), "muon can't stand beside another"),
        (dict(groups=[{"match": "*", "optimizer": "sgd", "betas": (0.9, 0.9)}]), "SGD has no betas"),
        (dict(groups=[{"match": "*", "optimizer": "sgd", "momentum": -1.0}]), "Invalid momentum"),
        (dict(groups=[{"match": "*", "optimizer": "adm"}]), "it isn't an optimizer of torch.optim"),
        (dict(groups=[{"match": "*", "optimizer": "sgd"}], lr_schedule="OneCycleLR"), "max_lr|sets momentum or betas"),
    ],
)
def test_what_cannot_stand_beside_another_is_refused(how: dict, error: str) -> None:
    with pytest.raises(ParallelismError, match=error):
        check_optimizer(Training(**how))


class Recommender(nn.Module):
    """Two tables and a tower."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, 16, mode="sum") for rows in (4096, 2048))
        self.tower = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        found = torch.cat([table(column) for table, column in zip(self.tables, ids.unbind(1), strict=True)], dim=1)
        return F.binary_cross_entropy_with_logits(self.tower(found)[:, 0], labels)


ROWS = {"match": "tables.*", "optimizer": "rowwise-adagrad", "learning_rate": 0.02}


def recommended(parallelism: object, **fields: object) -> autoplan.Plan:
    how = Training(**{"compile": False, "groups": [ROWS], **fields})  # type: ignore[arg-type]
    batch = {"ids": torch.zeros(8, 2, 3, dtype=torch.int64), "labels": torch.zeros(8)}
    return autoplan.parallelize(Recommender, "1x2 cpu", batch, training=how, parallelism=parallelism)  # type: ignore[arg-type]


@pytest.mark.parametrize("parallelism", ["dp", "zero3", "table-parallel"])
def test_tables_with_their_own_optimizer_beside_a_dense_tower(parallelism: str) -> None:
    plan = recommended(parallelism)
    assert plan.verify().passed
    report = plan.report(verbose=True)
    assert "tables.*: 2 parameters with rowwise-adagrad, lr=0.02" in report
    memory = plan.record.chosen.predicted.peak_bytes[0]
    dense, rows, tables = 4 * (32 * 64 + 64 + 64 + 1), 4 * (4096 + 2048), 4 * 16 * (4096 + 2048)
    ways = 1 if parallelism == "dp" else 2
    if parallelism != "table-parallel":  # which replicates what it may
        assert memory.optimizer == pytest.approx((2 * dense + rows) / ways, abs=64)
        assert memory.parameters == pytest.approx((dense + tables) / ways, abs=64)


def test_what_options_of_a_group_have_its_optimizer_keep_is_in_the_account() -> None:
    tables, tower = 4 * 16 * (4096 + 2048), 4 * (32 * 64 + 64 + 64 + 1)
    for kind, options, copies in (("sgd", {}, 0), ("sgd", {"momentum": 0.9}, 1), ("adam", {"amsgrad": True}, 3)):
        plan = recommended("dp", groups=[{"match": "tables.*", "optimizer": kind, **options}])
        found = plan.record.chosen.predicted.peak_bytes[0].optimizer
        assert found == pytest.approx(2 * tower + copies * tables, abs=64)


def test_a_predicate_s_group_keeps_its_optimizer() -> None:
    tables = {"match": lambda name, parameter: name.startswith("tables"), "optimizer": "sgd"}
    (group,) = recommended("dp", groups=[tables]).record.training.groups  # type: ignore[union-attr]
    assert group.optimizer == "sgd" and group.names == ("tables.0.weight", "tables.1.weight")


@pytest.mark.parametrize(("groups", "fused"), [
    ([{"match": "0.weight", "optimizer": "sgd", "foreach": True}], [True, False]),
    ([{"match": "0.weight", "optimizer": "sgd"}, {"match": "0.bias", "foreach": True}], [True, True, False]),
])  # fmt: skip
def test_a_group_that_asks_for_another_kernel_has_no_fused_one(groups: list, fused: list[bool]) -> None:
    how, model = Training(groups=groups), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = build_optimizer(model.named_parameters(), how)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert [bool(group["fused"]) for group in optimizer.param_groups] == fused and not in_one_pass(how)


def test_states_beyond_those_that_all_have_are_told_by_parameter() -> None:
    model = recommended("dp").record.model
    found = states_beyond(Training(groups=[ROWS]), model)  # type: ignore[arg-type]
    assert {name.split(".")[0] for name in found} == {"tower"} and set(found.values()) == {2 - 1 / 16}
    assert states_beyond(Training(), model) == {}


@pytest.mark.parametrize(
    ("parallelism", "said"),
    [
        (Parallelism(servers=1), "servers=1 with the optimizers adamw and rowwise-adagrad"),
        ("local-sgd", "local_steps=4 with the optimizers"),
        ("powersgd", "compression='powersgd' with the optimizers"),
        ("zero-offload", "offload='optimizer' with the optimizers"),
    ],
)
def test_what_several_optimizers_cannot_go_with_is_refused(parallelism: object, said: str) -> None:
    with pytest.raises(ParallelismError, match=said):
        recommended(parallelism)


def test_a_plan_with_several_optimizers_is_read_back(tmp_path: Path) -> None:
    plan = recommended("dp")
    folder = plan.export(tmp_path / "out")
    assert autoplan.load(folder).record.training == plan.record.training
