"""PowerSGD of a hand-written program on four ranks: equal to its rule, resumed, resharded, beside torch's own hook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from autoplan.errors import DivergedError
from autoplan.options import Training
from autoplan.runtime.parallel.compression.powersgd import LowRankSums, first_factor, orthonormal
from autoplan.runtime.parallel.own_box import whole
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.asynchronous import RATE, How, Simulated
from tests.support.compressed import Box, LowRank, Run, compressed
from tests.support.sampling import sampled
from tests.support.taken_up import Trained, assert_same, trained

STEPS, RANK, SEED = 6, 1, 3
ADAMW = Training(precision="fp64", learning_rate=RATE, compile=False, seed=SEED)
CLIPPED = replace(ADAMW, clip_grad_norm=0.05)
LATER = replace(ADAMW, compression_start=2)
TRAININGS = {"adamw": ADAMW, "clipped": CLIPPED, "later": LATER}
MESHES = {
    "dp4": dict(dp=4),
    "dp4, two microbatches": dict(dp=4, microbatches=2),
    "dp2 tp2": dict(dp=2, tp=2, microbatches=2),
    "dp2 pp2": dict(dp=2, pp=2, microbatches=2),
    "dp2 pp2 zero bubble": dict(dp=2, pp=2, microbatches=4, virtual_stages=2, pipeline_schedule="zero-bubble"),
}
HIDDEN, WIDTH, VOCAB = tiny.HIDDEN, tiny.WIDTH, tiny.VOCAB


def boxes(mesh: Mapping, seed: int = SEED) -> list[Box]:
    """What of the program goes as factors: of a layer each piece, unless tp splits it so that it is too small; the tied
    weight, unless two stages sum it."""
    found = []
    if mesh.get("tp", 1) == 1:
        for layer in range(tiny.LAYERS):
            fused = f"layers.{layer}.gate_up.weight"
            for first in (0, HIDDEN):
                begins = drawn(f"{fused}[{first}:{first + HIDDEN}]", (HIDDEN, WIDTH), seed)
                found.append(Box(fused, (slice(first, first + HIDDEN),), LowRank(begins)))
            name = f"layers.{layer}.down.weight"
            found.append(Box(name, (slice(None),), LowRank(drawn(name, (WIDTH, HIDDEN), seed))))
    if mesh.get("pp", 1) == 1:
        found.append(Box("embed.weight", (slice(None),), LowRank(drawn("embed.weight", (VOCAB, WIDTH), seed))))
    return found


def drawn(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    return first_factor(name, whole(shape), RANK, seed, torch.float64)


def made(mesh: Mapping, training: Training, rank: int = RANK) -> Program:
    spec = tiny.spec(**mesh, training=training)
    parallelism = replace(spec.parallelism, compression="powersgd", compression_rank=rank) if rank else spec.parallelism
    stages = mesh.get("pp", 1) * mesh.get("virtual_stages", 1)
    return Program(replace(spec, parallelism=parallelism), tiny.program(stages))


def train(
    rank: int, world: int, mesh: dict, training: Training, folder: str = "", at: int = 0, then: dict | None = None
) -> Trained:
    return trained(lambda: made(mesh, training), STEPS, folder, at, lambda: made(then or mesh, training))


def simulated(mesh: Mapping, training: Training = ADAMW, until: Mapping[str, int] | None = None) -> Simulated:
    how = How(
        lambda module, batch: module(**batch), lambda module: torch.optim.AdamW(module.parameters(), lr=RATE),
        training.clip_grad_norm,
    )  # fmt: skip
    batches = list(tiny.batches(STEPS))
    parts = [replace(box, until=(until or {}).get(box.name, STEPS)) for box in boxes(mesh)]
    return compressed(tiny.reference(), batches, parts, how, run=Run(training.compression_start or 0))


CASES = [(mesh, "adamw") for mesh in MESHES] + [("dp4", "clipped"), ("dp4", "later")]
QUICK = [("dp4, two microbatches", "adamw"), ("dp2 pp2 zero bubble", "adamw"), ("dp4", "later")]


@pytest.mark.parametrize(("mesh", "kind"), sampled(CASES, QUICK))
def test_equals_its_rule_in_one_process(pool: RankPool, mesh: str, kind: str) -> None:
    results = pool.run(train, MESHES[mesh], TRAININGS[kind])
    assert all(losses == results[0][0] for losses, _ in results)
    assert_same(results[0], simulated(MESHES[mesh], TRAININGS[kind]), 1e-10)


def test_the_rule_is_another_than_one_devices() -> None:
    exact = compressed(tiny.reference(), list(tiny.batches(STEPS)), (), How(lambda module, batch: module(**batch)))
    assert simulated(MESHES["dp4"]).losses[1] != pytest.approx(exact.losses[1], rel=1e-6)


def test_goes_on_from_a_checkpoint_on_another_mesh(pool: RankPool, tmp_path: Path) -> None:
    """What is left out is the sum of four ranks', of which two ranks then have a half each. The tied weight, which two
    stages sum, is whole from there."""
    then, at = MESHES["dp2 pp2"], 3
    found = pool.run(train, MESHES["dp4"], ADAMW, str(tmp_path / "saved"), at, then)[0]
    assert_same(found, simulated(MESHES["dp4"], until={"embed.weight": at}), 1e-10)


def taken_up(rank: int, world: int, folder: str) -> tuple[bool, bool, int]:
    """A checkpoint into a plan of another seed: whether errors are its own, and factors; and how many are
    left in a plan without compression."""
    first = made(MESHES["dp4"], ADAMW)
    first.load_weights(tiny.reference().state_dict())
    first.step(next(tiny.batches(1)))
    first.optimizer.step()
    first.save_checkpoint(folder)
    same = made(MESHES["dp4"], replace(ADAMW, seed=SEED + 1))
    same.load_checkpoint(folder)
    alike = [
        bool(mine) and all(torch.equal(value, theirs[key]) for key, value in mine.items())
        for mine, theirs in (
            (first.sums.errors(), same.sums.errors()), (first.sums.factors(), same.sums.factors()),
        )
    ]  # fmt: skip
    plain = made(MESHES["dp4"], ADAMW, 0)
    plain.load_checkpoint(folder)
    return alike[0], alike[1], len(plain.sums.errors())


def test_errors_and_factors_are_in_a_checkpoint(
    pool: RankPool, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    assert pool.run(taken_up, str(tmp_path / "saved")) == [(True, True, 0)] * 4


@dataclass(frozen=True)
class Bucket:
    """Of torch's DistributedDataParallel, as far as its hooks look at it: one matrix."""

    matrix: Tensor

    def buffer(self) -> Tensor:
        return self.matrix.view(-1)

    def gradients(self) -> list[Tensor]:
        return [self.matrix]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def hooked(rank: int, world: int) -> list[float]:
    """How far gradients of torch's hook and ours are apart, step by step, of a matrix that ranks have summands of."""
    shape, low_rank, generator = (24, 20), 2, torch.Generator().manual_seed(rank)
    parameter = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    held: Any = SimpleNamespace(name="w", part=whole(shape), parameter=parameter, values=parameter.detach())
    ours = LowRankSums([held], dist.group.WORLD, low_rank, SEED)  # type: ignore[arg-type]
    hook = powerSGD_hook.PowerSGDState(None, low_rank, min_compression_rate=2)
    hook.iter = hook.start_powerSGD_iter
    hook.p_memory_dict[0] = torch.empty(shape[0] * low_rank, dtype=torch.float64)
    hook.q_memory_dict[0] = first_factor("w", held.part, low_rank, SEED, torch.float64).view(-1)
    apart = []
    for _ in range(4):
        gradient = torch.randn(shape, generator=generator, dtype=torch.float64)
        parameter.grad = gradient.clone()
        ours.sum_up()
        bucket: Any = Bucket(gradient)
        theirs = world * powerSGD_hook.powerSGD_hook(hook, bucket).wait().view(shape)  # it takes the mean
        apart.append(float((parameter.grad - theirs).norm() / theirs.norm()))
    return apart


def test_equals_the_hook_of_torch(pool: RankPool) -> None:
    """Errors differ from rank to rank, for the hook leaves out of each what the mean lacks; their sum doesn't."""
    assert max(max(apart) for apart in pool.run(hooked)) < 1e-10


def missing(rank: int, world: int) -> tuple[bool, bool, bool]:
    """Of a parameter that no rank has a gradient of, and of one that only one has."""
    parameters = {name: nn.Parameter(torch.zeros((6, 5), dtype=torch.float64)) for name in ("none", "one")}
    held: Any = [
        SimpleNamespace(name=name, part=whole((6, 5)), parameter=p, values=p.detach())
        for name, p in parameters.items()
    ]  # fmt: skip
    sums = LowRankSums(held, dist.group.WORLD, RANK, SEED)  # type: ignore[arg-type]
    sums.errors[0].fill_(1.0)
    before = sums.rights[0].clone()
    parameters["one"].grad = torch.ones((6, 5), dtype=torch.float64) if rank == 0 else None
    sums.sum_up()
    kept = bool((sums.errors[0] == 1).all()) and torch.equal(sums.rights[0], before)
    given = parameters["one"].grad
    return parameters["none"].grad is None, kept, given is not None and torch.allclose(given, torch.ones_like(given))


def test_what_has_no_gradient_keeps_its_error(pool: RankPool) -> None:
    """A matrix of ones is of rank one, so that factors of rank one have all of it."""
    assert pool.run(missing) == [(True, True, True)] * 4


def diverges(rank: int, world: int, late: str = "") -> tuple[bool, bool]:
    """Whether there were errors after a step, and whether all are zero after one whose loss isn't finite was told: by
    the step, or, as on an accelerator, by the ``late`` call after it."""
    program, (batch,) = made(MESHES["dp4"], ADAMW), tiny.batches(1)
    program.load_weights(tiny.reference().state_dict())
    program.step(batch)
    program.optimizer.zero_grad()
    before = any(bool(error.any()) for error in program.sums.errors().values())
    with torch.no_grad():
        program.held[0].parameter.fill_(float("nan"))
    program.updates.late = bool(late)
    if late:
        program.step(batch)
        program.optimizer.zero_grad()
    with pytest.raises(DivergedError):
        if late == "save":
            program.save_checkpoint("never written")
        else:
            program.step(batch)
    return before, not any(bool(error.any()) for error in program.sums.errors().values())


@pytest.mark.parametrize("late", ["", "step", "save"])
def test_errors_of_a_loss_that_isnt_finite_are_dropped(pool: RankPool, late: str) -> None:
    found = pool.run(diverges, late)
    assert any(before for before, _ in found), "rows of the first rank have no valid labels"
    assert all(dropped for _, dropped in found)


def test_columns_are_orthonormal_even_where_they_arent_independent() -> None:
    """Among them those of few rows that aren't zero, as a table has whose batch has few ids, and of rows alike."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(8, 9, 4, generator=generator, dtype=torch.float64)
    columns[1, :, 2] = columns[1, :, 0] - 3 * columns[1, :, 1]
    columns[2] = 0
    for place, rows in enumerate(([1], [1, 2], [7, 2, 5], [0, 3]), start=3):
        columns[place, [row for row in range(9) if row not in rows]] = 0
    columns[7] = columns[7, :1]
    for dtype in (torch.float32, torch.float64):
        given = columns.to(dtype)
        found = orthonormal(given.clone())
        torch.testing.assert_close(found.mT @ found, torch.eye(4, dtype=dtype).expand(8, 4, 4), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found @ (found.mT @ given), given, rtol=1e-5, atol=1e-5)
