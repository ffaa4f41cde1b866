"""Programs that draw by rank: replicas drop alike and shards differently, a recomputed forward drops again what it
dropped, a run that stops and goes on repeats the one that doesn't."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import autoplan
from autoplan.options import Parallelism, Training
from autoplan.runtime import ops
from autoplan.verify.local_ranks import RankPool
from tests.support import zoo
from tests.support.exported_plans import exported_plans
from tests.support.planning import parallelize_alone
from tests.support.resumed import onwards, unbroken, until
from tests.support.sampling import sampled

P, LAYERS, MODEL = 0.25, 2, "gpt2"
TRAINING = Training(learning_rate=1e-3, seed=11, randomness="per-rank")
SAME = {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 2, "pipeline_schedule": "1f1b"}
PLANS = {
    "dp tp": Parallelism(dp=2, tp=2, pp=1, micro_batch=2, sequence_parallel=False),
    "sequence parallel": Parallelism(dp=1, tp=4, pp=1, micro_batch=4, sequence_parallel=True),
    "ZeRO-3": Parallelism(dp=4, tp=1, pp=1, zero=3, micro_batch=1),
    "none": Parallelism(recompute="none", **SAME),  # type: ignore[arg-type]
    "selective": Parallelism(recompute="selective", **SAME),  # type: ignore[arg-type]
    "full": Parallelism(recompute="full", **SAME),  # type: ignore[arg-type]
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    return exported_plans(tmp_path_factory, MODEL, LAYERS, P, TRAINING, PLANS)


@dataclass(frozen=True)
class Drawn:
    """A call on one rank in one microbatch: what split its operand, this rank's place there, and the mask."""

    call: int
    microbatch: int
    axes: tuple[tuple[str, int], ...]
    mask: Tensor


def draws(rank: int, world: int, folder: str) -> list[Drawn]:
    seen: list[Drawn] = []
    drop = ops.dropout_by_rank

    def watched(x: Tensor, p: float, *, key: Tensor, call: int, axes: tuple = (), **told: bool) -> Tensor:
        result = drop(x, p, key=key, call=call, axes=axes, **told)
        place = tuple((axis.name, axis.rank) for axis in axes)
        mask = drop(torch.ones_like(x), p, key=key, call=call, axes=axes, **told)
        assert torch.equal(result != 0, (mask != 0) & (x != 0))
        seen.append(Drawn(call, int(key.view(-1)[1]), place, (mask != 0).detach()))
        return result

    with patch.object(ops, "dropout_by_rank", watched):
        program = autoplan.load(folder).program()
        program.load_weights(f"{folder}/weights.safetensors")
        before = torch.get_rng_state()
        program.step(zoo.batch_of(MODEL))
        assert torch.equal(torch.get_rng_state(), before), "the caller's generator is left alone"
    return seen


@pytest.mark.parametrize("plan", sampled(["dp tp", "sequence parallel", "none"], ["dp tp", "sequence parallel"]))
def test_replicas_drop_alike_and_shards_differently(
    pool: RankPool, folder: Callable[[str], str], plan: str
) -> None:
    places: dict[tuple[int, int], dict[tuple, list[Tensor]]] = {}
    for seen in pool.run(draws, folder(plan)):
        for one in seen:
            places.setdefault((one.call, one.microbatch), {}).setdefault(one.axes, []).append(one.mask)
    assert len({call for call, _ in places}) == 1 + 2 * LAYERS
    replicas, shards = 0, 0
    for parts in places.values():
        for masks in parts.values():
            assert all(torch.equal(mask, masks[0]) for mask in masks)
            replicas += len(masks) > 1
        firsts = [masks[0] for masks in parts.values()]
        assert not any(torch.equal(a, b) for i, a in enumerate(firsts) for b in firsts[:i])
        shards += len(firsts) > 1
    assert shards and bool(replicas) == (plan == "dp tp")
    kept = torch.cat([mask.flatten() for parts in places.values() for masks in parts.values() for mask in masks[:1]])
    assert abs(kept.double().mean().item() - (1 - P)) < 5 * (P * (1 - P) / kept.numel()) ** 0.5


def gradients(rank: int, world: int, folder: str) -> tuple[float, dict[str, Tensor]]:
    torch.manual_seed(rank)
    program = autoplan.load(folder).program()
    program.load_weights(f"{folder}/weights.safetensors")
    return float(program.step(zoo.batch_of(MODEL))), program.full_grads()


def test_recomputation_draws_again_what_was_drawn(pool: RankPool, folder: Callable[[str], str]) -> None:
    """In a pipeline, where other microbatches draw in between."""
    found = {name: pool.run(gradients, folder(name))[0] for name in ("none", "selective", "full")}
    loss, wanted = found["none"]
    for name in ("selective", "full"):
        again, values = found[name]
        assert again == loss
        assert values.keys() == wanted.keys()
        for key, value in values.items():
            torch.testing.assert_close(value, wanted[key], rtol=1e-12, atol=1e-14, msg=f"{name}: {key}")


@pytest.mark.parametrize("plan", sampled(["dp tp", "ZeRO-3", "full"], ["full"]))
def test_a_resumed_run_repeats_the_unbroken_one(
    pool: RankPool, folder: Callable[[str], str], tmp_path: Path, plan: str
) -> None:
    whole = pool.run(unbroken, folder(plan))
    pool.run(until, folder(plan), str(tmp_path / "checkpoint"))
    again = pool.run(onwards, folder(plan), str(tmp_path / "checkpoint"))
    for found, wanted in zip(again, whole, strict=True):
        assert found.losses == wanted.losses[2:]
        assert all(torch.equal(value, wanted.state[name]) for name, value in found.state.items())
    assert len(set(whole[0].losses)) == len(whole[0].losses)


def evaluated(rank: int, world: int, folder: str, weights: str) -> tuple[float, float, float]:
    """Losses of a step, of the same step again, and without dropout."""
    program = autoplan.load(folder).program()
    program.load_weights(weights)
    batch = zoo.batch_of(MODEL)
    first = float(program.step(batch))
    program.optimizer.zero_grad()
    return first, float(program.step(batch)), float(program.evaluate(batch))


@pytest.mark.slow
def test_evaluation_drops_nothing(pool: RankPool, folder: Callable[[str], str], tmp_path: Path) -> None:
    module, batch, _ = zoo.small(MODEL, layers=LAYERS, dropout=P)
    plan = parallelize_alone(module, "1x4 cpu", batch, training=TRAINING, parallelism=PLANS["dp tp"])
    weights = f"{folder('dp tp')}/weights.safetensors"
    first, again, quiet = pool.run(evaluated, str(plan.export(tmp_path / "out")), weights)[0]
    assert first == again != quiet
    assert quiet == pytest.approx(module.eval()(**batch).loss.item(), rel=1e-5)
