"""Sums of gradients: once a step, under the last backward, in one order; whatever ranks have gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.options import Training
from autoplan.runtime.parallel.gradient_buckets import reduce_dtype
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import slow

EXACT = Training(precision="fp64", learning_rate=1e-2, compile=False)
SMALL_BUCKETS = 96  # bytes: several buckets of the tiny model
MICROBATCHES = 4


class Sent(TorchDispatchMode):
    """The collectives of gradients that are dispatched, and the forwards between them, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = str(func)
        if name.startswith("c10d."):
            self.events.append(name.split(".")[1])
        return func(*args, **(kwargs or {}))


def events_of(program: Program, batch: Mapping[str, Tensor]) -> list[str]:
    """What one step's forwards, backwards and sums of gradients do, one after another."""
    sent = Sent()
    engine = program.engine
    stage, run = engine.stage, engine.run  # type: ignore[union-attr]
    stage.register_forward_pre_hook(lambda *_: sent.events.append("forward"))

    def told(*args: object) -> Tensor:
        sent.events.append("begin")
        with sent:
            loss = run(*args)  # type: ignore[arg-type]
        sent.events.append("end")
        return loss

    with patch.object(engine, "run", told):
        program.step(dict(batch))
    return sent.events[sent.events.index("begin") + 1 :]


def sums_of_a_step(rank: int, world: int, mesh: dict) -> list[str]:
    with patch("autoplan.ir.buckets.LEAST_BYTES", SMALL_BUCKETS), patch("autoplan.ir.buckets.SHARES", 10**9):
        program = Program(tiny.spec(**mesh, training=EXACT), tiny.program(1))
    program.load_weights(tiny.reference().state_dict())
    assert mesh.get("zero") or len(program.sums.buckets) > 3
    return events_of(program, next(tiny.batches(1)))


def test_sums_run_under_the_last_backward_alone(pool: RankPool) -> None:
    for events in pool.run(sums_of_a_step, dict(dp=4, microbatches=2)):
        under = events[: events.index("end")]
        last = len(under) - under[::-1].index("forward")
        assert under[:last] == ["forward"] * 2, "nothing is sent between microbatches"
        assert under[last:] and set(under[last:]) == {"allreduce_"}, "sums begin before the backward has ended"


@pytest.mark.parametrize(("zero", "scatters"), [(1, 1), slow((2, MICROBATCHES)), (3, MICROBATCHES)])
def test_zero_scatters_as_often_as_it_says(pool: RankPool, zero: int, scatters: int) -> None:
    """Once a step at level 1, in each microbatch above: one for each of the stage's four parts."""
    mesh = dict(dp=2, tp=2, microbatches=MICROBATCHES, zero=zero)
    for events in pool.run(sums_of_a_step, mesh):
        under = events[: events.index("end")]
        found = sum("reduce_scatter" in event for event in under)
        assert found and found % scatters == 0, under
        assert found // scatters <= 4


class Choosy(tiny.Stage):
    """The second layer runs on odd rows alone: on other batches, or for other ranks, its parameters get no gradient."""

    def forward(self, *x: Tensor, tokens: Tensor, labels: Tensor, valid: Tensor, **unused: Tensor) -> Tensor:
        h = x[0] if self.embed is None else self.embed(tokens)
        for layer in list(self.layers)[: layers_of(tokens)]:
            h = layer(h)
        return h if self.head is None else self.head(h, labels, valid)


def layers_of(tokens: Tensor) -> int:
    return 1 + int(tokens.sum()) % 2


class ChoosyReference(tiny.Reference):
    """The same on one device: rows that one rank sees together take the same way."""

    def summed(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens) + self.shift
        for layer in list(self.layers)[: layers_of(tokens)]:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), reduction="sum")


def choosy_step(rank: int, world: int, mesh: dict, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    module = tiny.program(1)
    module.STAGES = (lambda parameters, axes: Choosy(parameters, axes, 0, 4),)  # type: ignore[attr-defined]
    with patch("autoplan.ir.buckets.LEAST_BYTES", SMALL_BUCKETS), patch("autoplan.ir.buckets.SHARES", 10**9):
        program = Program(tiny.spec(**mesh, training=EXACT), module)
    program.load_weights(tiny.reference().state_dict())
    program.step(batch)
    lacking = [h.name for h in program.held if h.parameter.grad is None]
    return program.full_grads(), lacking


def choosy_batch(odd: Callable[[int], bool]) -> dict[str, Tensor]:
    """Rows whose sums are odd where ``odd`` says so, of a batch with unevenly many valid labels."""
    batch = next(tiny.batches(1))
    for row in range(tiny.BATCH):
        if int(batch["tokens"][row].sum()) % 2 != odd(row):
            batch["tokens"][row, 0] = (batch["tokens"][row, 0] + 1) % tiny.VOCAB
            assert int(batch["tokens"][row].sum()) % 2 == odd(row)
    return batch


def expected_gradients(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of rows one by one, as four ranks see them in two microbatches."""
    torch.manual_seed(0)
    model = ChoosyReference().double()
    model.load_state_dict(tiny.reference().state_dict())
    total = sum(
        (model.summed(batch["tokens"][r : r + 1], batch["labels"][r : r + 1]) for r in range(tiny.BATCH)),
        start=torch.zeros((), dtype=torch.float64),
    )
    (total / (batch["labels"] != -100).sum()).backward()
    return {n: p.grad for n, p in model.named_parameters(remove_duplicate=False) if p.grad is not None}


CASES: dict[str, Callable[[int], bool]] = {
    "on every rank": lambda row: True,
    "on one rank": lambda row: row == 5,
    "in one microbatch": lambda row: row < 4,
    "nowhere": lambda row: False,
}


@pytest.mark.parametrize("where", CASES)
def test_ranks_agree_on_who_has_a_gradient(pool: RankPool, where: str) -> None:
    batch = choosy_batch(CASES[where])
    wanted = expected_gradients(batch)
    results = pool.run(choosy_step, dict(dp=4, microbatches=2), batch)
    assert results[0][0].keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(results[0][0][name], gradient, rtol=1e-12, atol=1e-14)
    assert all(lacking == results[0][1] for _, lacking in results)
    assert bool(results[0][1]) == (where == "nowhere")


def gradients_in(rank: int, world: int, reduce_dtype: str) -> tuple[dict[str, Tensor], bool]:
    spec = tiny.spec(dp=4, training=Training(precision="fp64", compile=False, reduce_dtype=reduce_dtype))
    program = Program(spec, tiny.program(1))
    program.load_weights(tiny.reference().state_dict())
    program.step(next(tiny.batches(1)))
    views = all(h.parameter.grad is v for b in program.sums.buckets for h, v in zip(b.held, b.views, strict=True))
    return program.full_grads(), views


def test_gradients_are_summed_in_the_dtype_asked_for_and_lie_in_their_buckets(pool: RankPool) -> None:
    model = tiny.reference()
    model(**next(tiny.batches(1))).backward()
    wanted = {n: p.grad for n, p in model.named_parameters(remove_duplicate=False) if p.grad is not None}
    for dtype, error in (("fp32", 1e-6), ("bf16", 2e-2)):
        results = pool.run(gradients_in, dtype)
        assert all(views for _, views in results)
        off = [float((results[0][0][n] - g).norm() / g.norm()) for n, g in wanted.items()]
        assert error / 100 < max(off) < error


@pytest.mark.parametrize(
    ("axes", "asked"), [(("dp",), True), (("cp",), True), (("dp", "cp"), True), (("cp", "tp"), True), (("tp",), False)]
)
def test_every_axis_that_splits_rows_sums_in_the_dtype_asked_for(axes: tuple[str, ...], asked: bool) -> None:
    """As fully_shard does over them under ZeRO, and as a plan is priced; sums over tp alone stay as they are."""
    spec = tiny.spec(training=Training(precision="fp32", compile=False, reduce_dtype="bf16"))
    assert reduce_dtype(spec, axes) == (torch.bfloat16 if asked else None)


def order_of_starts(rank: int, world: int) -> list[int]:
    """Elements of the sums that a step begins, in order."""
    sizes: list[int] = []
    all_reduce = dist.all_reduce

    def told(tensor: Tensor, *args: object, **kwargs: object) -> object:
        if kwargs.get("async_op"):
            sizes.append(tensor.numel())
        return all_reduce(tensor, *args, **kwargs)  # type: ignore[arg-type]

    with patch("autoplan.ir.buckets.LEAST_BYTES", SMALL_BUCKETS), patch("autoplan.ir.buckets.SHARES", 10**9):
        program = Program(tiny.spec(dp=2, tp=2, microbatches=2, training=EXACT), tiny.program(1))
    program.load_weights(tiny.reference().state_dict())
    with patch("torch.distributed.all_reduce", told):
        program.step(next(tiny.batches(1)))
    return sizes


def test_every_rank_begins_the_same_sums_in_the_same_order(pool: RankPool) -> None:
    first, *others = pool.run(order_of_starts)
    assert len(first) > 3 and all(other == first for other in others)
