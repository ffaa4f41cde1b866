"""Sums of partial results where they lie: equal to those that copy, of nobody else's memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, distributed

from autoplan.emit.calls.column_products import Lines
from autoplan.ir.typed_program import LoweredBlock, Move
from autoplan.lower.after_search import program_of
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.collectives.typed import all_reduce
from autoplan.verify.local_ranks import RankPool
from tests.support.hand_made import llama
from tests.support.records import record_of


@pytest.fixture(scope="module")
def pool(compiler: None) -> Iterator[RankPool]:
    with RankPool(2, timeout_s=240) as pool:
        yield pool


def summed(rank: int, size: int, compiled: bool, turned: bool) -> tuple[list[list[Tensor]], bool]:
    """Result and gradients of a product that is summed over the ranks, in place and not; whether the first took the
    product's memory."""
    axis, memory = MeshAxis("tp", size, rank, distributed.group.WORLD), False
    found = []
    for in_place in (True, False):
        numbers = torch.Generator().manual_seed(rank)
        x, w = (torch.randn(3, 4, generator=numbers, dtype=torch.float64).requires_grad_() for _ in range(2))

        def run(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            product = x @ w.t()
            product = product.t() if turned else product
            return product.detach(), all_reduce(product, axis, in_place=in_place)  # noqa: B023

        function = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
        before, result = function(x, w)
        memory |= in_place and before.data_ptr() == result.data_ptr()
        (result * (1 + rank) * torch.arange(9, dtype=torch.float64).view(3, 3)).sum().backward()
        assert x.grad is not None and w.grad is not None
        found.append([result.detach().clone(), x.grad, w.grad])
    return found, memory


@pytest.mark.parametrize(
    ("compiled", "turned", "takes"), [(False, False, True), (False, True, False), (True, False, False)],
    ids=["eager", "in strides", "compiled"],
)  # fmt: skip
def test_equal_to_a_sum_that_copies(pool: RankPool, compiled: bool, turned: bool, takes: bool) -> None:
    """A compiler decides itself what is written where, and a collective takes no strides: these copy."""
    for (here, there), memory in pool.run(summed, compiled, turned):
        assert memory == takes
        for one, other in zip(here, there, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def decoder() -> LoweredBlock:
    return program_of(record_of(llama(), "1x4 cpu", dp=1, tp=4, pp=1, sequence_parallel=False)).blocks[1]


def test_a_row_parallel_product_is_summed_where_it_lies() -> None:
    block = decoder()
    moves = {s.source: s.value.name for s in block.body if isinstance(s, Move)}
    assert Lines.of(block).in_place == {moves["o"], moves["down"]}


def test_a_product_that_something_else_reads_is_not_written_over() -> None:
    block = decoder()
    (product,) = (s.value for s in block.body if s.value.name == "down")
    leaving = replace(block, outputs=(*block.outputs, product))
    moves = {s.source: s.value.name for s in block.body if isinstance(s, Move)}
    assert Lines.of(leaving).in_place == {moves["o"]}
