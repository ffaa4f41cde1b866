"""Tensor parallel plans hold what Megatron-LM's hand-written layers hold, found by the search alone."""

from __future__ import annotations

import pytest

import autoplan
from autoplan.ir.typed_program import Compute, Lowered, LoweredBlock, Move
from tests.support import zoo
from tests.support.planning import parallelize_alone


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def lowered(request: pytest.FixtureRequest) -> Lowered:
    module, batch, _ = zoo.small(request.param)
    pinned = autoplan.Parallelism(dp=2, tp=2, pp=1)
    return parallelize_alone(module, "1x4 cpu", batch, parallelism=pinned).lowered


def layer(lowered: Lowered) -> LoweredBlock:
    counts = [sum(s.block == i for s in lowered.segments) for i in range(len(lowered.blocks))]
    return lowered.blocks[counts.index(max(counts))]


def crossing(block: LoweredBlock) -> list[str]:
    steps = [step for s in block.body if isinstance(s, Move) for step in s.collectives]
    return sorted(kind for step in steps for kind in (step.forward, step.backward) if kind)


def test_a_layer_has_megatrons_four_all_reduces(lowered):
    """Two forward (after attention and after the MLP), two backward."""
    assert crossing(layer(lowered)) == ["all-reduce"] * 4


def test_every_matmul_of_a_layer_is_split(lowered):
    block = layer(lowered)
    matrices = [p for p in block.parameters if len(p.type.shape) == 2]
    assert matrices and all(p.layout.state("tp").kind == "S" for p in matrices)


def test_projections_reach_attention_without_a_gather(lowered):
    """GPT-2's fused qkv included: its pieces are split by head."""
    block = layer(lowered)
    attention = next(s for s in block.body if isinstance(s, Compute) and "attention" in s.op)
    before = block.body[: block.body.index(attention)]
    assert not any("gather" in step.op for s in before if isinstance(s, Move) for step in s.collectives)
    assert attention.value.layout.state("tp").kind == "S"


def test_the_logits_are_split_by_vocabulary_and_never_gathered(lowered):
    head = lowered.blocks[lowered.segments[-1].block]
    loss = next(s for s in head.body if isinstance(s, Compute) and s.op == "autoplan.cross_entropy")
    assert loss.body == "vocab_parallel_cross_entropy"
    moved = {s.source for s in head.body if isinstance(s, Move)}
    logits = next(s for s in head.body if isinstance(s, Compute) and s.value.local_shape[-1:] == (96 // 2,))
    assert logits.value.name not in moved
