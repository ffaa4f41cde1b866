"""What users do with a trained program's state: torch.save it, and load it into the model itself on one device."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autoplan import Training
from autoplan.errors import WeightsError
from autoplan.verify.local_ranks import RankPool
from tests.support import zoo
from tests.support.forwards import Batch, loaded, planned
from tests.support.sampling import slow

WAYS = [
    slow(("llama", {"dp": 2, "tp": 2, "pp": 1})),
    ("gpt2", {"dp": 2, "tp": 1, "pp": 2, "zero": 1}),  # fused projections, a tied table on two stages
    slow(("bert", {"dp": 2, "tp": 2, "pp": 1, "zero": 3})),
]


def trained(
    rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batch: Batch, file: str
) -> tuple[float, float]:
    """On one rank: the loss after a step, and once what was saved is loaded again."""
    program = loaded(folder, weights)
    program.step(batch)
    program.optimizer.step()
    program.optimizer.zero_grad()
    state = program.state_dict(full=True)
    torch.save(state, f"{file}.{rank}")
    after = float(program.evaluate(batch))
    program.step(batch)
    program.optimizer.step()
    program.load_state_dict(torch.load(f"{file}.{rank}"))
    return after, float(program.evaluate(batch))


@pytest.mark.parametrize(("name", "pinned"), WAYS, ids=str)
def test_a_saved_state_is_the_plain_model_s(
    pool: RankPool, tmp_path: Path, name: str, pinned: dict[str, object]
) -> None:
    model, batch, loss_fn = zoo.small(name, layers=2)
    plan = planned(tmp_path / "out", model, batch, loss_fn, Training(precision="fp64", learning_rate=0.01), **pinned)
    found = pool.run(trained, str(plan.folder), plan.weights, plan.batch, str(tmp_path / "state"))
    before = plan.loss(plan.batch)
    for rank, (after, again) in enumerate(found):
        plain = copy.deepcopy(plan.module)
        plain.load_state_dict(torch.load(tmp_path / f"state.{rank}"))
        loss = type(plan)(plain, plan.loss_fn, plan.batch, plan.folder, {}).loss(plan.batch)
        assert abs(loss - after) < 1e-10 * loss and abs(before - after) > 1e-4 * before
        assert again == after


def saved_apart(rank: int, world: int, folder: str, weights: Mapping[str, Tensor], file: str) -> str:
    """On one rank: what torch.save says of a rank's part."""
    program = loaded(folder, weights)
    with pytest.raises(WeightsError) as error:
        torch.save(copy.deepcopy(program.state_dict()), f"{file}.{rank}")
    return str(error.value)


def test_a_rank_s_part_is_not_saved_for_the_whole(pool: RankPool, tmp_path: Path) -> None:
    model, batch, loss_fn = zoo.small("mlp")
    plan = planned(tmp_path / "out", model, batch, loss_fn, dp=2, tp=2, pp=1)
    for said in pool.run(saved_apart, str(plan.folder), plan.weights, str(tmp_path / "state")):
        assert "it is one rank's part" in said and "save program.state_dict(full=True)" in said
