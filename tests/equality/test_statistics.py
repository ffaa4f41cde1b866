"""Each microbatch with its own statistics: equal to one device that accumulates the same microbatches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import autoplan
from autoplan import Parallelism, Training
from autoplan.errors import ParallelismError
from autoplan.plan import Plan
from autoplan.verify.compare import gradient_error, loss_error, parameter_error, zero_gradients
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import train_eagerly
from autoplan.verify.sharded import in_pool, train_on_rank
from autoplan.verify.variants import in_float64
from tests.support.mixtures import MODELS, tokens
from tests.support.planning import parallelize_alone

EQUAL, STEPS, APART = 1e-10, 2, Training(statistics="microbatch")
FOUR = [
    ("mixtral", {"dp": 2, "pp": 2, "ep": 2, "micro_batch": 1}),
    pytest.param(*("qwen3", {"dp": 2, "tp": 2, "micro_batch": 1}), marks=pytest.mark.slow),
    pytest.param(*("qwen2", {"dp": 4, "ep": 4, "micro_batch": 1}), marks=pytest.mark.slow),
]
SLOW = [
    ("qwen3", {"dp": 2, "pp": 2, "ep": 2, "micro_batch": 1}),
    ("qwen2", {"dp": 2, "pp": 2, "ep": 2, "micro_batch": 1, "zero": 1}),
    ("mixtral", {"dp": 2, "pp": 2, "micro_batch": 1, "recompute": "full"}),
    ("mixtral", {"dp": 4, "ep": 2, "micro_batch": 1, "zero": 3}),
]
EIGHT = [
    ("qwen2", {"dp": 4, "tp": 2, "ep": 8, "etp": 1, "micro_batch": 1}),
    ("qwen2", {"dp": 4, "pp": 2, "ep": 4, "micro_batch": 1}),
]


@pytest.fixture(scope="module")
def eight() -> Iterator[RankPool]:
    with RankPool(8, timeout_s=600) as ranks:
        yield ranks


def padded(microbatches: int) -> dict[str, Tensor]:
    """Some rows have fewer labels that count, or none, so that microbatches have denominators of their own."""
    ids = tokens()["input_ids"]
    labels = ids.clone()
    labels[1, 2 if microbatches == len(ids) else 0 :], labels[6, :9] = -100, -100
    return {"input_ids": ids, "labels": labels}


def check(pool: RankPool, name: str, devices: int, pinned: dict) -> None:
    torch.manual_seed(0)
    sizes = {"dp": 1, "tp": 1, "pp": 1} | pinned
    module, batch = MODELS[name]().train(), padded(8 // (sizes["dp"] * sizes["micro_batch"]))
    plan = parallelize_alone(
        module, f"1x{devices} cpu", batch, parallelism=Parallelism(**sizes), training=APART, effort="fast"
    )
    record, count = in_float64(plan.record), plan.record.chosen.microbatches
    assert isinstance(record.training, Training) and count >= 2
    written = trainers_loss(module, batch, count)
    module = module.double()
    found = in_pool(pool, record, batch, module.state_dict(), train_on_rank, STEPS)
    expected = train_eagerly(module, None, batch, record.training, STEPS, microbatches=count)
    assert abs(expected.losses[0] - written) < 1e-5 * written
    assert loss_error(found, expected).error < EQUAL
    assert gradient_error(found, expected, zero_gradients(expected)).error < EQUAL
    assert parameter_error(found, expected, zero_gradients(expected)).error < 1e-9


def trainers_loss(module: nn.Module, batch: dict[str, Tensor], count: int) -> float:
    """What the loop that a trainer writes gives, which isn't the loss of the whole batch."""
    rows = len(batch["labels"]) // count
    with torch.no_grad():
        parts = [{k: v[j * rows : (j + 1) * rows] for k, v in batch.items()} for j in range(count)]
        found = sum(float(module(**part).loss) for part in parts) / count
        assert abs(float(module(**batch).loss) - found) > 1e-4 * found
    return found


@pytest.mark.parametrize(("name", "pinned"), FOUR)
def test_mixtures_accumulate_with_their_load_balancing(pool: RankPool, name: str, pinned: dict) -> None:
    check(pool, name, 4, pinned)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pinned"), SLOW)
def test_under_other_plans(pool: RankPool, name: str, pinned: dict) -> None:
    check(pool, name, 4, pinned)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pinned"), EIGHT)
def test_on_eight_ranks(eight: RankPool, name: str, pinned: dict) -> None:
    check(eight, name, 8, pinned)


class Normed(nn.Module):
    """Batch norm, and running statistics that each microbatch moves."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.norm(self.inner(x)).relu())


def pair(rows: int = 8) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(rows, 8, generator=draw), torch.randn(rows, 4, generator=draw)


def planned(module: nn.Module, loss_fn: object = nn.functional.mse_loss, **pinned: object) -> Plan:
    asked = Parallelism(**({"dp": 2, "tp": 1, "pp": 1, "micro_batch": 2} | pinned))  # type: ignore[arg-type]
    return parallelize_alone(module, "1x2 cpu", pair(), loss_fn=loss_fn, parallelism=asked, training=APART)


def test_batch_norm_is_over_a_microbatch_of_all_ranks() -> None:
    plan = planned(Normed())
    assert plan.record.chosen.microbatches == 2
    result = plan.verify()
    assert result.passed, str(result)


def test_a_loaded_plan_is_verified_by_its_own_graph(tmp_path) -> None:
    planned(Normed()).export(tmp_path / "plan")
    plan = autoplan.load(tmp_path / "plan")
    assert plan.record.training.microbatch_statistics
    result = plan.verify()
    assert result.passed and "same program on one rank" in result.note, str(result)


def by_hand(out: Tensor, target: Tensor) -> Tensor:
    """Products of sums that are divided by a number of rows."""
    return ((out.sum(0) / out.shape[0]) * (target.sum(0) / out.shape[0])).sum()


def test_a_number_that_follows_from_the_rows_is_refused() -> None:
    with pytest.raises(ParallelismError, match=r"for that of 16 rows differs: aten\.div\.Tensor"):
        planned(nn.Linear(8, 4), by_hand)


def test_what_gathers_rows_keeps_one_microbatch() -> None:
    def contrast(out: Tensor, target: Tensor) -> Tensor:
        return (out @ target.T).logsumexp(1).mean()

    with pytest.raises(ParallelismError, match="mb must be 1"):
        planned(nn.Linear(8, 4), contrast)


def test_what_would_help_is_said() -> None:
    asked = Parallelism(dp=2, tp=1, pp=1, micro_batch=2)
    with pytest.raises(ParallelismError, match=r"with Training\(statistics='microbatch'\) each microbatch has its own"):
        parallelize_alone(Normed(), "1x2 cpu", pair(), loss_fn=nn.functional.mse_loss, parallelism=asked)


def test_another_word_is_refused() -> None:
    with pytest.raises(ParallelismError, match="statistics='batches': no such choice"):
        Training(statistics="batches")
