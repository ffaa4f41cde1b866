"""sequence_parallel=True and False, pinned: the collectives inside a layer are Megatron's of either kind."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch

from autoplan.ir.typed_program import Compute, LoweredBlock, Move
from autoplan.lower.after_search import program_of
from autoplan.options import Parallelism
from tests.support import zoo
from tests.support.planning import parallelize_alone
from tests.support.rehearsed_llama import LENGTH, ROWS, llama

MODELS = ("gpt2", "llama")


@cache
def layer(model: str, sequence: bool) -> LoweredBlock:
    """The repeated block of a plan over four ranks, whose heads divide by them."""
    module, batch, _ = zoo.small("gpt2")
    if model == "llama":
        module, batch = llama(), dict.fromkeys(("input_ids", "labels"), torch.zeros(ROWS, LENGTH, dtype=torch.int64))
    pinned = Parallelism(dp=1, tp=4, pp=1, sequence_parallel=sequence)
    plan = parallelize_alone(module, "1x4 h100-sxm", batch, parallelism=pinned)
    assert plan.parallelism.sequence_parallel is sequence
    uses = Counter(segment.block for segment in plan.record.model.segments)
    lowered = program_of(plan.record)
    return lowered.blocks[uses.most_common(1)[0][0]]


def moves(block: LoweredBlock) -> list[tuple[str, str, str]]:
    """(the operator, its forward's collective, its backward's) of each step of the activations, in order."""
    parameters = {p.name for p in block.parameters}
    found = [s for s in block.body if isinstance(s, Move) and s.source not in parameters]
    return [(c.op, c.forward, c.backward) for move in found for c in move.collectives]


def products(block: LoweredBlock) -> list[Compute]:
    return [s for s in block.body if isinstance(s, Compute) and s.op in ("aten.linear.default", "aten.matmul.default")]


@pytest.mark.parametrize("model", MODELS)
def test_without_it_sums_are_all_reduced(model: str) -> None:
    """Two row-parallel products, attention's and the feed-forward's: one all-reduce after each, and in the backward one
    before each of the column-parallel ones. Between them activations are whole."""
    found = layer(model, False)
    wanted = [("to_replicate", "", "all-reduce"), ("all_reduce", "all-reduce", "")]
    assert moves(found) == wanted * 2
    assert all("tp" not in split for value in (*found.inputs, *found.outputs) for split in value.layout.dims)
    partial = [p for p in products(found) if p.value.layout.state("tp").kind == "P"]
    assert len(partial) == 2


@pytest.mark.parametrize("model", MODELS)
def test_with_it_sums_are_scattered_and_inputs_gathered(model: str) -> None:
    """What norms, residuals and dropout read and write is split along the sequence."""
    found = layer(model, True)
    wanted = [("all_gather", "all-gather", "reduce-scatter"), ("reduce_scatter", "reduce-scatter", "all-gather")]
    assert moves(found) == wanted * 2
    assert all(value.layout.dims[1] == ("tp",) for value in (*found.inputs, *found.outputs))
    names = ("layer_norm", "rms_norm", "dropout")
    stream = [s for s in found.body if isinstance(s, Compute) and any(name in s.op for name in names)]
    assert stream and all(s.value.layout.dims[1] == ("tp",) for s in stream)
