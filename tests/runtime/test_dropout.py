"""Dropout of sharded programs, seen at work: replicas drop alike, shards differently, all together what one device
drops, and as much as they should."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import autoplan
from autoplan.ir.record import PlanRecord
from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism, Training
from autoplan.plan import Plan
from autoplan.verify.compare import Run
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.single import on_one_device
from autoplan.verify.variants import in_float64
from tests.bench.systems.cells import errors, exact_faults
from tests.support import zoo
from tests.support.dropout_masks import KEPT, UNSEEN, Box, agree, by_place, calls_of, kind_of, watching, whole
from tests.support.planning import parallelize_alone, parallelize_unproved
from tests.support.sampling import sampled

P, LAYERS, STEPS = 0.25, 2, 3
TRAINING = Training(learning_rate=1e-3, seed=11)
PLANS = {
    "dp": Parallelism(dp=4, tp=1, pp=1, zero=0, micro_batch=1),
    "dp, recomputed, ZeRO-3": Parallelism(dp=4, tp=1, pp=1, zero=3, micro_batch=1, recompute="full"),
    "dp tp": Parallelism(dp=2, tp=2, pp=1, micro_batch=2),
    "tp": Parallelism(dp=1, tp=4, pp=1, micro_batch=4, sequence_parallel=False),
    "sequence parallel": Parallelism(dp=1, tp=4, pp=1, micro_batch=4, sequence_parallel=True),
    "pp tp": Parallelism(dp=1, tp=2, pp=2, micro_batch=2, pipeline_schedule="1f1b"),
    "pp dp, recomputed": Parallelism(dp=2, tp=1, pp=2, micro_batch=1, recompute="full"),
    "pp tp, selectively": Parallelism(dp=1, tp=2, pp=2, micro_batch=2, recompute="selective"),
}
MODELS = ("gpt2", "bert")
# tensor and pipeline axes, and masks that ranks split or compute again
QUICK = [("gpt2", "sequence parallel"), ("bert", "pp tp, selectively")]
CELLS = sampled(itertools.product(MODELS, PLANS), QUICK)
KINDS = {"gpt2": {"elements": 1 + 2 * LAYERS, "attention": LAYERS}}
KINDS["bert"] = KINDS["gpt2"]


@dataclass(frozen=True)
class Watched:
    """What one rank saw in its first step, and what rank 0 has of all."""

    boxes: dict[Box, list[Tensor]]
    run: Run


@dataclass(frozen=True)
class Single:
    """One device that uses the same function: each call's mask of its whole tensor, and its run."""

    masks: dict[int, Tensor]
    kinds: dict[int, str]
    run: Run


@pytest.fixture(scope="module")
def pools(shared_pools: Callable[[int], RankPool]) -> dict[int, RankPool]:
    return {1: shared_pools(1), 4: shared_pools(4)}


@pytest.fixture(scope="module")
def single(pools: dict[int, RankPool]) -> dict[str, Single]:
    found = {}
    for model in MODELS:
        record = on_one_device(planned(model, PLANS["dp"]))
        (watched,) = ran(pools[1], record, model)
        lowered = program_of(record)
        kinds = {call: kind_of(compute) for call, compute in calls_of(lowered).items()}
        found[model] = Single(whole([watched.boxes]), kinds, watched.run)
    return found


def made(model: str) -> zoo.Made:
    return zoo.small(model, layers=LAYERS, dropout=P)


def planned(model: str, pinned: Parallelism) -> PlanRecord:
    module, batch, _ = made(model)
    return in_float64(parallelize_alone(module, "1x4 cpu", batch, training=TRAINING, parallelism=pinned).record)


def ran(pool: RankPool, record: PlanRecord, model: str) -> list[Watched]:
    module, batch, _ = made(model)
    with tempfile.TemporaryDirectory() as name:
        folder, weights = Plan(record).export(Path(name) / "out"), Path(name) / "weights.safetensors"
        save_file({key: value.clone().contiguous() for key, value in module.state_dict().items()}, weights)
        return pool.run(watched_run, str(folder), str(weights), batch)


def watched_run(rank: int, world: int, folder: str, weights: str, batch: Mapping[str, Tensor]) -> Watched:
    with watching() as seen:
        program = autoplan.load(folder).program()
        program.load_weights(weights)
        losses = [float(program.step(dict(batch)))]
        boxes = by_place(program.spec.lowered, rank, seen)
        gradients = program.full_grads()
        program.optimizer.step()
        for _ in range(STEPS - 1):
            losses.append(float(program.step(dict(batch))))
            program.optimizer.step()
    return Watched(boxes, Run(tuple(losses), gradients, dict(program.full_state_dict())))


@pytest.mark.parametrize(("model", "plan"), CELLS)
def test_every_rank_drops_its_part_of_what_one_device_drops(
    pools: dict[int, RankPool], single: dict[str, Single], model: str, plan: str
) -> None:
    record = planned(model, PLANS[plan])
    found = ran(pools[4], record, model)
    boxes = [each.boxes for each in found]
    runs = [len(masks) for each in boxes for masks in each.values()]
    # selectively what the backward reads runs again, and it reads no result of these dropouts
    assert max(runs) == (2 if PLANS[plan].recompute == "full" else 1), "a recomputed forward is watched twice"
    for call in calls_of(program_of(record)):
        places: dict[object, list[Tensor]] = {}
        for each in boxes:
            for (other, part), masks in each.items():
                if other == call:
                    places.setdefault(part, []).extend(masks)
        assert all(agree(masks[0], mask) for masks in places.values() for mask in masks), "replicas, and reruns"
        assert_independent([masks[0] for masks in places.values()])
    together = whole(boxes)
    assert together.keys() == single[model].masks.keys()
    assert all(torch.equal(mask, single[model].masks[call]) for call, mask in together.items())
    for rank, each in enumerate(filter(None, boxes)):
        assert_rate((masks[0] for masks in each.values()), 4.5, f"{rank} of the ranks with dropout")
    assert exact_faults(errors(found[0].run, single[model].run)) == ()


def assert_independent(masks: list[Tensor]) -> None:
    """Of two shards as many elements agree as of two masks that know nothing of each other."""
    chance = P * P + (1 - P) * (1 - P)
    for one, other in itertools.combinations(masks, 2):
        assert one.shape == other.shape
        seen = (one != UNSEEN) & (other != UNSEEN)
        agree, count = int((one == other)[seen].sum()), int(seen.sum())
        assert abs(agree - chance * count) <= 5 * math.sqrt(chance * (1 - chance) * count)
        assert agree < count


def assert_rate(masks: Iterable[Tensor], sigmas: float, what: str) -> None:
    """Elements are kept with probability 1 - P."""
    seen = torch.cat([mask[mask != UNSEEN] for mask in masks])
    kept, count = int((seen == KEPT).sum()), seen.numel()
    assert abs(kept - (1 - P) * count) <= sigmas * math.sqrt(P * (1 - P) * count), f"{what}: {kept} of {count}"


@pytest.mark.parametrize("model", MODELS)
def test_embedding_residual_and_attention_keep_what_they_should(single: dict[str, Single], model: str) -> None:
    masks, kinds = single[model].masks, single[model].kinds
    assert {kind: list(kinds.values()).count(kind) for kind in KINDS[model]} == KINDS[model]
    for kind in ("elements", "attention"):
        assert_rate((masks[call] for call in masks if kinds[call] == kind), 3, kind)
    assert_rate([masks[min(masks)]], 3, "the embedding")
    assert_independent([masks[call] for call in masks if kinds[call] == "elements"])
    assert_independent([masks[call] for call in masks if kinds[call] == "attention"])


class Uneven(nn.Module):
    """Blocks with one dropout, with three, and with one again, on sequences first, then rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layers = nn.ModuleList(UnevenLayer() for _ in range(3))
        self.head = nn.Linear(16, 16)
        self.drop = nn.Dropout(P)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        h = self.drop(self.embed(x)).transpose(0, 1)
        for layer in self.layers:
            h = layer(h)
        return (self.drop(self.head(h)).transpose(0, 1) - target).square().mean()


class UnevenLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(P)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.drop(self.down(self.drop(torch.tanh(self.up(self.drop(h))))))


@pytest.mark.parametrize("plan", sampled(["dp", "dp tp", "pp dp, recomputed"], ["dp tp"]))
def test_no_two_dropouts_of_a_model_are_one(pools: dict[int, RankPool], plan: str) -> None:
    torch.manual_seed(0)
    batch = {"x": torch.randn(8, 12, 8), "target": torch.randn(8, 12, 16)}
    module = Uneven()
    given = parallelize_unproved(module, "1x4 cpu", batch, training=TRAINING, parallelism=PLANS[plan])
    assert given.verify().passed
    with tempfile.TemporaryDirectory() as name:
        folder, weights = given.export(Path(name) / "out"), Path(name) / "weights.safetensors"
        save_file(dict(module.state_dict()), weights)
        found = pools[4].run(watched_run, str(folder), str(weights), batch)
    masks = whole([each.boxes for each in found])
    assert len(masks) == 11
    same = [mask for mask in masks.values() if mask.shape == masks[max(masks)].shape]
    assert len(same) > 4
    assert_independent(same)
