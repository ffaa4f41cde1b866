"""Asynchronous systems and compressed gradients equal one process by their rule, in float64."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autoplan
from autoplan.export.folder import opened, write_folder
from autoplan.options import Parallelism, Training
from autoplan.runtime.program import Program
from autoplan.verify.compare import Run, parameter_error
from autoplan.verify.local_ranks import RankPool
from autoplan.verify.variants import in_float64
from tests.support import asynchronous, zoo
from tests.support import compressed as compression
from tests.support.asynchronous import Batch, Rule, Simulated
from tests.support.compressed import FrozenAdam, FrozenLamb, boxes_of, compressed, replicas_of
from tests.support.planning import parallelize_alone
from tests.support.sampling import sampled

STEPS, WARM_UP = 5, 2
WITHIN = 1e-9
ROUNDING = 1e-10  # a bias that softmax doesn't see begins at zero and stays there but for rounding
TRAINING = Training(optimizer="adamw", learning_rate=asynchronous.RATE, compile=False)
LOCAL = {
    "dp4": dict(dp=4, tp=1, pp=1, micro_batch=1),
    "dp2 tp2": dict(dp=2, tp=2, pp=1, micro_batch=2),
    "dp2 pp2": dict(dp=2, tp=1, pp=2, micro_batch=1),
}
FLOWING = {
    "pp4": dict(dp=1, tp=1, pp=4, micro_batch=2),
    "pp4, whole": dict(dp=1, tp=1, pp=4, micro_batch=8),
    "dp2 pp2": dict(dp=2, tp=1, pp=2, micro_batch=1),
    "tp2 pp2": dict(dp=1, tp=2, pp=2, micro_batch=2),
}


def train(rank: int, world: int, folder: str, weights: dict[str, Tensor], batches: Sequence[dict]) -> tuple:
    plan = opened(folder)
    program = Program(plan.spec(), plan.module())
    program.load_weights(weights)
    losses = []
    for batch in batches:
        losses.append(program.step(batch).item())
        program.optimizer.step()
    return losses, dict(program.full_state_dict())


def check(pool: RankPool, plan: autoplan.Plan, model: str, rule: Rule) -> None:
    module, batch, _ = zoo.small(model)
    module = module.double()
    assert isinstance(batch, dict)
    batches = list(asynchronous.shuffled(batch, STEPS))
    wanted = rule(module, batches)
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        write_folder(in_float64(plan.record), Path(folder) / "out", "test", {})
        losses, parameters = pool.run(train, str(Path(folder) / "out"), weights, batches)[0]
    assert losses == pytest.approx(wanted.losses, rel=WITHIN)
    zero = frozenset(name for name, value in wanted.parameters.items() if float(value.norm()) < ROUNDING)
    expected, found = Run((), {}, wanted.parameters), Run((), {}, parameters)
    assert parameter_error(found, expected, zero).error <= WITHIN


def planned(
    model: str, parallelism: Parallelism | str, cluster: str = "1x4 cpu", training: Training = TRAINING
) -> autoplan.Plan:
    module, batch, loss_fn = zoo.small(model)
    return parallelize_alone(module, cluster, batch, loss_fn=loss_fn, training=training, parallelism=parallelism)


REPLICAS = [("llama", "dp2 tp2"), ("gpt2", "dp4"), ("bert", "dp2 pp2")]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "mesh"), sampled(REPLICAS, REPLICAS[2:]))  # with stages
def test_replicas_that_step_by_themselves_equal_their_simulation(pool: RankPool, model: str, mesh: str) -> None:
    plan = planned(model, Parallelism(**LOCAL[mesh], zero=0, local_steps=2))
    assert plan.parallelism.local_steps == 2
    microbatches = plan.record.chosen.microbatches
    rule = partial(asynchronous.local_sgd, replicas=LOCAL[mesh]["dp"], microbatches=microbatches, every=2)
    check(pool, plan, model, rule)


OUTER = [("llama", "dp2 tp2"), ("bert", "dp2 pp2"), ("gpt2", "dp4")]


@pytest.mark.parametrize(("model", "mesh"), sampled(OUTER, OUTER[:1]))
def test_outer_updates_equal_their_simulation(pool: RankPool, model: str, mesh: str) -> None:
    """Two rounds of two steps, so that the outer momentum counts, and a step more."""
    pinned = Parallelism(**LOCAL[mesh], zero=0, local_steps=2, outer_optimizer="nesterov")
    plan = planned(model, pinned)
    assert plan.parallelism.outer_optimizer == "nesterov" and "outer steps (nesterov) every 2 steps" in plan.report()
    microbatches = plan.record.chosen.microbatches

    def rule(module: nn.Module, batches: Sequence[Batch]) -> Simulated:
        meet = asynchronous.Diloco(module)
        return asynchronous.local_sgd(module, batches, LOCAL[mesh]["dp"], microbatches, 2, meet=meet)

    check(pool, plan, model, rule)


NEIGHBOURS = [("gpt2", "dp4", "ring"), ("llama", "dp2 tp2", "exponential"), ("bert", "dp2 pp2", "ring")]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "mesh", "graph"), sampled(NEIGHBOURS, NEIGHBOURS[:1]))
def test_replicas_that_gossip_equal_their_simulation(pool: RankPool, model: str, mesh: str, graph: str) -> None:
    plan = planned(model, Parallelism(**LOCAL[mesh], zero=0, gossip=graph))
    assert plan.parallelism.gossip == graph
    replicas, microbatches = LOCAL[mesh]["dp"], plan.record.chosen.microbatches
    meet = asynchronous.Gossip(graph, replicas)
    rule = partial(asynchronous.local_sgd, replicas=replicas, microbatches=microbatches, every=1, meet=meet)
    check(pool, plan, model, rule)


SENT = [("llama", "dp2 tp2"), ("gpt2", "dp4"), ("bert", "dp2 pp2")]
WORDS = {"powersgd": "PowerSGD of rank 1", "int8": "int8 gradients", "topk": "top-k of 0.01", "1bit": "1-bit Adam"}
WORDS |= {"fp8": "fp8 gradients", "1bit-lamb": "1-bit LAMB"}
FROZEN = {"1bit": FrozenAdam, "1bit-lamb": FrozenLamb}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize(("model", "mesh"), sampled(SENT, SENT[:1]))  # whose shards are matrices by themselves
def test_compressed_gradients_equal_their_simulation(pool: RankPool, model: str, mesh: str, kind: str) -> None:
    rank, start = 1 if kind == "powersgd" else None, WARM_UP if kind in FROZEN else 0
    pinned = Parallelism(**LOCAL[mesh], zero=0, compression=kind, compression_rank=rank)
    optimizer = "lamb" if kind == "1bit-lamb" else TRAINING.optimizer
    plan = planned(model, pinned, training=replace(TRAINING, compression_start=start, optimizer=optimizer))
    assert WORDS[kind] in plan.report()
    boxes = boxes_of(plan)
    assert len(boxes) > len({box.name for box in boxes}) or mesh != "dp2 tp2"
    replicas, how = replicas_of(plan, shifted=model != "bert"), asynchronous.How()
    if kind in FROZEN:
        how = replace(how, optimizer=lambda module: FROZEN[kind](module, WARM_UP, asynchronous.RATE))
    run = compression.Run(start)
    check(pool, plan, model, lambda module, batches: compressed(module, batches, boxes, how, replicas, run))


ROUND = [(model, mesh, "pipedream-2bw") for model, mesh in (("llama", "tp2 pp2"), ("gpt2", "pp4"), ("bert", "dp2 pp2"))]
ROUND += [("llama", "pp4, whole", "pipedream"), ("gpt2", "pp4, whole", "pipedream"), ("bert", "dp2 pp2", "pipedream")]
ROUND += [("llama", "tp2 pp2", "pipedream-vertical-sync"), ("bert", "pp4, whole", "pipedream-vertical-sync")]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize(("model", "mesh", "schedule"), sampled(ROUND, ROUND[:1]))
def test_a_pipeline_without_a_flush_equals_its_rule(
    pool: RankPool, model: str, mesh: str, schedule: str, optimizer: str
) -> None:
    """On four stages each microbatch a batch of its own, tied weights among them: as late as the first stage."""
    training = replace(TRAINING, optimizer=optimizer)
    plan = planned(model, Parallelism(**FLOWING[mesh], zero=0, pipeline_schedule=schedule), training=training)
    assert plan.parallelism.pipeline_schedule == schedule and "isn't flushed between steps" in plan.report(verbose=True)
    ages = asynchronous.pipeline_ages(plan)
    made = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer]
    how = asynchronous.How(optimizer=lambda module: made(module.parameters(), lr=asynchronous.RATE))

    def rule(module: nn.Module, batches: Sequence[Batch]) -> Simulated:
        found = asynchronous.older_weights(module, batches, how, of=ages.__getitem__)
        return replace(found, losses=asynchronous.told(found.losses, max(ages.values())))

    check(pool, plan, model, rule)
