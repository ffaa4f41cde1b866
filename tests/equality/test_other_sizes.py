"""``program.step`` of a shorter last batch and of shorter rows: loss, gradients and the parameters after are one
device's, and the planned batch goes on as before."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autoplan import Training
from autoplan.errors import InputsError
from autoplan.evaluation.proof import prove
from autoplan.runtime.data.loader import Batches
from autoplan.trace.passes.precision import widened
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.reference import loss_of, plain_experts
from tests.support import zoo
from tests.support.forwards import (
    BOUND,
    Batch,
    Planned,
    evaluate,
    features,
    loaded,
    planned,
    relative,
    sum_over_rows,
)
from tests.support.planning import parallelize_alone
from tests.support.sampling import slow

SLOW = pytest.mark.slow
RATE = 0.1


def cut(batch: Batch, rows: int, tokens: int | None = None) -> Batch:
    """The last rows, and the last tokens of them: of the first none counts."""
    last = {name: value[-rows:] for name, value in batch.items()}
    return {name: value[:, -tokens:].contiguous() for name, value in last.items()} if tokens else last


def step_through(
    rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batches: Sequence[Batch]
) -> tuple[list[float], list[dict[str, Tensor]], dict[str, Tensor]]:
    """On one rank: the losses and gradients of steps on batches that all ranks give whole, and the state after."""
    program, losses, gradients = loaded(folder, weights), [], []
    for batch in batches:
        losses.append(float(program.step(batch, rows="whole")))
        gradients.append(program.full_grads())
        program.optimizer.step()
        program.optimizer.zero_grad()
    return losses, gradients, dict(program.full_state_dict())


def on_one_device(plan: Planned, batches: Sequence[Batch]) -> tuple[list[float], list[dict[str, Tensor]]]:
    """The same with the module itself; it is left trained."""
    plan.module.train()
    optimizer = torch.optim.SGD(plan.module.parameters(), lr=RATE)
    losses, gradients = [], []
    for batch in batches:
        optimizer.zero_grad()
        with widened(), plain_experts(plan.module):
            loss = loss_of(plan.module, plan.loss_fn, batch)
        loss.backward()
        losses.append(float(loss.detach()))
        named = plan.module.named_parameters()
        gradients.append({n: p.grad.clone() for n, p in named if p.grad is not None})
        optimizer.step()
    return losses, gradients


def of_zoo(folder: Path, name: str, **pinned: object) -> Planned:
    depth = {} if name == "mlp" else {"layers": 2 * int(str(pinned.get("virtual_stages", 1)))}
    model, batch, loss_fn = zoo.small(name, **depth)
    training = Training(precision="fp64", optimizer="sgd", learning_rate=RATE)
    return planned(folder / "out", model, batch, loss_fn, training, **pinned)


CASES = [
    pytest.param(
        *("llama", {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 2}), [(8, 0), (4, 0), (8, 12), (2, 6), (2, 0)], marks=SLOW
    ),
    pytest.param(
        *("llama", {"dp": 1, "tp": 2, "pp": 2, "micro_batch": 2, "sequence_parallel": True}),
        [(8, 0), (3, 0), (4, 8), (1, 0)], marks=SLOW,
    ),
    ("llama", {"dp": 1, "cp": 2, "tp": 1, "pp": 2, "micro_batch": 1}, [(8, 0), (5, 8), (1, 0)]),
    pytest.param(
        *("gpt2", {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 1, "recompute": "full"}), [(8, 0), (6, 7), (2, 0)],
        marks=SLOW,
    ),
    pytest.param("gpt2", {"dp": 4, "tp": 1, "pp": 1, "zero": 3, "micro_batch": 1}, [(8, 0), (4, 5)], marks=SLOW),
    pytest.param("bert", {"dp": 2, "tp": 2, "pp": 1, "recompute": "selective"}, [(8, 0), (6, 0), (2, 9)], marks=SLOW),
    pytest.param("vit", {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 2}, [(8, 0), (6, 0), (2, 0)], marks=SLOW),
    pytest.param(
        *("mixtral", {"dp": 2, "tp": 1, "pp": 2, "ep": 2, "micro_batch": 2}), [(8, 0), (4, 0), (4, 8)], marks=SLOW
    ),
    ("mlp", {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 1}, [(8, 0), (2, 0), (6, 0)]),  # divides by the microbatches
    pytest.param(
        *("gpt2", {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 1, "pipeline_schedule": "interleaved",
                   "virtual_stages": 2}), [(8, 0), (4, 0), (8, 7)], marks=SLOW,
    ),
    pytest.param(
        *("gpt2", {"dp": 1, "tp": 2, "pp": 2, "micro_batch": 2, "pipeline_schedule": "zero-bubble"}),
        [(8, 0), (3, 0), (1, 0)], marks=SLOW,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pinned", "sizes"), CASES, ids=lambda x: x if isinstance(x, str) else None)
def test_steps_at_other_sizes_are_one_devices(
    pool: RankPool, tmp_path: Path, name: str, pinned: dict[str, object], sizes: Sequence[tuple[int, int]]
) -> None:
    plan = of_zoo(tmp_path, name, **pinned)
    batches = [cut(plan.batch, *size) for size in sizes]
    expected, gradients = on_one_device(plan, batches)
    for losses, found, state in pool.run(step_through, str(plan.folder), plan.weights, batches):
        assert max(map(relative, losses, expected)) < BOUND
        if not found[0]:
            continue
        for ours, theirs in zip(found, gradients, strict=True):
            assert all(apart(ours[key], theirs[key]) < 1e-8 for key in theirs)
        after = plan.module.state_dict()
        assert all(apart(value, after[key]) < 1e-8 for key, value in state.items() if value.is_floating_point())


def own_rows(
    rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batches: Sequence[Batch]
) -> list[float]:
    """On one rank: the losses of batches of which each data rank gives its rows, of one microbatch."""
    program, losses = loaded(folder, weights), []
    place, ways = program.axes["dp"].rank, program.axes["dp"].size
    for batch in batches:
        rows = {name: value.chunk(ways)[place] for name, value in batch.items()}
        losses.append(float(program.step(rows)))
        program.optimizer.zero_grad()
    return losses


def test_a_rank_gives_its_rows_of_a_short_batch_without_saying_so(pool: RankPool, tmp_path: Path) -> None:
    """As many as the plan has for no rank: that all differ tells that they are the ranks' own."""
    plan = of_zoo(tmp_path, "mlp", dp=4, tp=1, pp=1)
    batches = [cut(plan.batch, 4), cut(plan.batch, 8)]
    expected = [loss for batch in batches for loss in on_one_device_alone(plan, batch)]
    for losses in pool.run(own_rows, str(plan.folder), plan.weights, batches):
        assert max(map(relative, losses, expected)) < BOUND


def one_odd(rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batch: Batch) -> tuple[str, float]:
    """On one rank: what is said where one rank's targets are too many, and the planned batch's loss after."""
    program = loaded(folder, weights)
    rows = {name: value[: value.shape[0] // 2].chunk(world)[rank] for name, value in batch.items()}
    *_, targets = rows
    if rank == 1:
        rows[targets] = torch.cat([rows[targets]] * 2)
    with pytest.raises(InputsError) as error:
        program.step(rows)
    return str(error.value), float(program.step(batch))


def test_own_rows_of_a_short_batch_that_fit_on_all_ranks_but_one_are_refused_on_all(
    pool: RankPool, tmp_path: Path
) -> None:
    plan = of_zoo(tmp_path, "mlp", dp=4, tp=1, pp=1)
    for told, loss in pool.run(one_odd, str(plan.folder), plan.weights, plan.batch):
        assert "of shape (2,): the plan is for a batch of (4,), of which a rank's rows are (1,)" in told and loss > 0


def on_one_device_alone(plan: Planned, batch: Batch) -> list[float]:
    with torch.no_grad():
        return [float(loss_of(plan.module, plan.loss_fn, batch))]


def drop_through(
    rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batches: Sequence[Batch]
) -> list[float]:
    return step_through(rank, world, folder, weights, batches)[0]


def test_what_is_dropped_at_other_sizes_is_the_same_under_every_split(pool: RankPool, tmp_path: Path) -> None:
    losses = []
    microbatches = {"dp": 1, "tp": 2, "pp": 2, "micro_batch": 2}
    for number, pinned in enumerate(({"dp": 4, "tp": 1, "pp": 1}, microbatches)):
        model, batch, loss_fn = zoo.small("gpt2", layers=1, dropout=0.2)
        torch.manual_seed(0)
        plan = planned(tmp_path / str(number), model, batch, loss_fn, Training(precision="fp64"), **pinned)
        batches = [plan.batch, cut(plan.batch, 4, 8)]
        losses.append(pool.run(drop_through, str(plan.folder), plan.weights, batches)[0])
    assert max(map(relative, *losses)) < BOUND and relative(losses[0][0], losses[0][1]) > 1e-3


class Normed(nn.Module):
    """Batch norm: each microbatch's rows have statistics of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.norm(self.inner(x)).relu())


@pytest.mark.parametrize(
    ("pinned", "sizes", "refused"),
    [
        ({"dp": 2, "tp": 2, "pp": 1, "micro_batch": 2}, [(8, 2), (4, 1), (2, 1)], 6),
        ({"dp": 1, "tp": 2, "pp": 2, "micro_batch": 4}, [(8, 2), (6, 2), (3, 1)], 0),
    ],
    ids=str,
)
def test_a_short_batch_s_microbatches_are_those_of_one_device(
    pool: RankPool, tmp_path: Path, pinned: dict[str, object], sizes: Sequence[tuple[int, int]], refused: int
) -> None:
    """As few as keep each no larger than planned, whatever dp is: each size is (rows, microbatches)."""
    training = Training(precision="fp64", optimizer="sgd", learning_rate=RATE, statistics="microbatch")
    plan = planned(tmp_path / "out", Normed(), features(), functional.mse_loss, training, **pinned)
    batches = [cut(plan.batch, rows) for rows, _ in sizes]
    expected, optimizer = [], torch.optim.SGD(plan.module.train().parameters(), lr=RATE)
    for batch, (_, count) in zip(batches, sizes, strict=True):
        optimizer.zero_grad()
        chunks = zip(*(value.chunk(count) for value in batch.values()), strict=True)
        parts = [dict(zip(batch, rows, strict=True)) for rows in chunks]
        losses = [loss_of(plan.module, plan.loss_fn, part) / count for part in parts]
        torch.stack(losses).sum().backward()
        expected.append(sum(float(loss.detach()) for loss in losses))
        optimizer.step()
    for losses, _, state in pool.run(step_through, str(plan.folder), plan.weights, batches):
        assert max(map(relative, losses, expected)) < BOUND
        after = plan.module.state_dict()
        assert all(apart(value, after[key]) < 1e-8 for key, value in state.items() if value.is_floating_point())
    if refused:
        for told, _ in pool.run(refusals, str(plan.folder), plan.weights, [cut(plan.batch, refused), plan.batch]):
            assert told[0].startswith("a batch of 6 rows: one device has statistics over 2 microbatches of 3 rows")


def through_batches(
    rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batches: Sequence[Batch], own: bool
) -> tuple[list[float], str, str]:
    """On one rank: the losses of what ``Batches`` gives, why it ended, and what stderr was told."""
    program, losses = loaded(folder, weights), []
    place, ways = program.axes["dp"].rank, program.axes["dp"].size
    given = [{name: v.tensor_split(ways)[place] for name, v in b.items()} for b in batches] if own else batches
    with contextlib.redirect_stderr(io.StringIO()) as told:
        loader = Batches(program.spec, given)
        for batch in loader:
            losses.append(float(program.step(batch)))
            program.optimizer.step()
    return losses, loader.ended, told.getvalue()


@pytest.mark.parametrize(("rows", "own"), [(4, True), (2, False), slow((4, False)), slow((2, True))], ids=str)
def test_batches_train_on_a_short_last_batch(pool: RankPool, tmp_path: Path, rows: int, own: bool) -> None:
    """Also on one of as many rows as a data rank has of the planned one: those before it were whole."""
    plan = of_zoo(tmp_path, "mlp", dp=2, tp=2, pp=1)
    batches = [plan.batch, cut(plan.batch, rows)]
    expected, _ = on_one_device(plan, batches)
    for losses, ended, told in pool.run(through_batches, str(plan.folder), plan.weights, batches, own):
        assert max(map(relative, losses, expected)) < BOUND and len(losses) == 2
        assert (ended, told) == ("the data ended after 2 batches", "")


def test_a_short_last_batch_that_is_left_out_is_told(pool: RankPool, tmp_path: Path) -> None:
    plan = of_zoo(tmp_path, "mlp", dp=4, tp=1, pp=1)
    found = pool.run(through_batches, str(plan.folder), plan.weights, [plan.batch, cut(plan.batch, 3)], False)
    said = "batch 2 has 3 rows of 8, and was left out: the plan splits rows over 4 data ranks"
    assert all(len(losses) == 1 and ended.startswith(said) for losses, ended, _ in found)
    assert [told.count("\n") for *_, told in found] == [1, 0, 0, 0]
    assert said in found[0][2] and "give 4 rows; drop_last=True of the loader says that it is meant" in found[0][2]
    found = pool.run(through_batches, str(plan.folder), plan.weights, [plan.batch, cut(plan.batch, 6)], True)
    assert "ranks have 1 to 2 rows of it" in found[0][1] and [t.count("\n") for *_, t in found] == [1, 0, 0, 0]


def refusals(
    rank: int, world: int, folder: str, weights: Mapping[str, Tensor], batches: Sequence[Batch]
) -> tuple[list[str], float]:
    """On one rank: what is said of batches that aren't computed, and the loss of the last, which is."""
    program, told = loaded(folder, weights), []
    for batch in batches[:-1]:
        with pytest.raises(InputsError) as error:
            program.step(batch)
        told.append(str(error.value))
    return told, float(program.step(batches[-1]))


def test_what_the_plan_does_not_run_is_refused_by_size_cause_and_remedy(pool: RankPool, tmp_path: Path) -> None:
    plan = of_zoo(tmp_path, "llama", dp=2, cp=2, tp=1, pp=1)
    tokens = plan.batch["input_ids"].shape[1]
    twice = {name: torch.cat([value, value]) for name, value in plan.batch.items()}
    longer = {name: torch.cat([value, value], 1) for name, value in plan.batch.items()}
    batches = [cut(plan.batch, 5), cut(plan.batch, 8, tokens - 1), cut(plan.batch, 8, 1), twice, longer, plan.batch]
    expected = (
        "a batch of 5 rows: the plan splits rows over 2 data ranks, and a training step pads none. give 4 or 6 rows",
        f"a batch of 8 rows of {tokens - 1} tokens: dim 1 of embed_tokens, {tokens - 1}, doesn't divide over cp = 2",
        "a batch of 8 rows of 1 token: it is known for 2 tokens at least",
        f"a batch of 16 rows of {tokens} tokens: the plan's memory is for a batch of 8 rows of {tokens} tokens",
        f"a batch of 8 rows of {2 * tokens} tokens: the plan's memory is for a batch of 8 rows of {tokens} tokens",
    )
    for told, loss in pool.run(refusals, str(plan.folder), plan.weights, batches):
        assert [text[: len(part)] for part, text in zip(expected, told, strict=True)] == list(expected)
        assert loss > 0


def test_a_graph_that_depends_on_the_rows_keeps_the_planned_ones(pool: RankPool, tmp_path: Path) -> None:
    plan = planned(tmp_path / "out", zoo.mlp(), features(), sum_over_rows, Training(precision="fp64"), dp=2, tp=2, pp=1)
    assert "b rows of a microbatch" not in (plan.folder / "program.py").read_text()
    for told, _ in pool.run(refusals, str(plan.folder), plan.weights, [plan.rows(6), plan.batch]):
        assert "its graph in training with a batch of 7 rows differs: aten.div" in told[0]
        assert "give a batch of 8 rows, as planned, or plan again with that one" in told[0]


class Noisier(nn.Module):
    """Drops more of few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.linear(x), 0.1 if len(x) == 8 else 0.5, self.training)


class Steadier(nn.Module):
    """Takes a single row's statistics from what has run."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 12), nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> Tensor:
        norm, hidden = self.norm, self.linear(x)
        statistics = norm.running_mean, norm.running_var, norm.weight, norm.bias
        return functional.batch_norm(hidden, *statistics, training=self.training and len(x) > 1)


@pytest.mark.parametrize("module", [Noisier(), Steadier()], ids=lambda module: type(module).__name__)
def test_what_differs_in_training_alone_keeps_the_planned_rows(module: nn.Module) -> None:
    """In evaluation the graphs are alike at every number of rows."""
    plan = parallelize_alone(module, "1x1 cpu", features(), loss_fn=functional.mse_loss)
    assert plan.given is not None
    known = prove(plan.given)
    assert "its graph in training with a batch of " in known.training and not known.rows, known


def test_a_mixture_s_load_balance_is_that_of_the_rows_that_come(pool: RankPool, tmp_path: Path) -> None:
    """In training and in evaluation; its mask of ones follows the batch."""
    model, batch, _ = zoo.small("mixtral", layers=1)
    model.config.output_router_logits = True
    training = Training(precision="fp64", optimizer="sgd", learning_rate=RATE)
    plan = planned(tmp_path / "out", model, batch, None, training, dp=2, tp=2, pp=1, ep=1)
    batches = [plan.batch, cut(plan.batch, 6, 9)]
    evaluated = [plan.loss(batch) for batch in batches]
    for found in pool.run(evaluate, str(plan.folder), plan.weights, batches):
        assert max(map(relative, found, evaluated)) < BOUND
    expected, _ = on_one_device(plan, batches)
    for losses, *_ in pool.run(step_through, str(plan.folder), plan.weights, batches):
        assert max(map(relative, losses, expected)) < BOUND


@pytest.mark.slow
def test_shorter_rows_are_evaluated(pool: RankPool, tmp_path: Path) -> None:
    plan = of_zoo(tmp_path, "bert", dp=2, tp=2, pp=1)
    batches = [plan.batch, cut(plan.batch, 8, 7), cut(plan.batch, 3, 2), cut(plan.batch, 5, 12)]
    expected = [plan.loss(batch) for batch in batches]
    for found in pool.run(evaluate, str(plan.folder), plan.weights, batches):
        assert max(map(relative, found, expected)) < BOUND


def apart(one: Tensor, other: Tensor) -> float:
    """Relative to the larger of the other's norm and a rounding's scale."""
    return float((one - other).norm() / other.norm().clamp(min=1e-6))
