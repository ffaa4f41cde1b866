"""Products in chunks beside the redistribution before or after them: equal to one after the other, and each chunk is
under way while another is multiplied."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, distributed
from torch.nn import functional

from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.collectives.typed import all_gather, all_reduce, reduce_scatter
from autoplan.runtime.ops import chunked_linear, row_linear
from autoplan.runtime.ops.chunked_linear import place
from autoplan.runtime.ops.column_linear import side_by_side
from autoplan.verify.local_ranks import RankPool
from tests.support.launched import Launched
from tests.support.sampling import sampled

RANKS, CHUNKS, ROWS, WIDTH, COLUMNS = 2, 3, 6, 4, (3, 5)


@pytest.fixture(scope="module")
def pool(compiler: None) -> Iterator[RankPool]:
    with RankPool(RANKS, timeout_s=240) as pool:
        yield pool


@pytest.mark.parametrize("dim", [0, 1])
def test_places_of_chunks_are_all_rows_once(dim: int) -> None:
    """Of three ranks' parts in two chunks: what each chunk of all ranks is, laid into its places, is the whole."""
    axis, chunks = MeshAxis("tp", 3, 0), 2
    parts = torch.arange(3 * 4 * 4 * 5.0).view(3, 4, 4, 5).unbind()
    joined, whole = torch.cat(parts, dim), torch.zeros(12 if dim == 0 else 4, 12 if dim == 1 else 4, 5)
    for number in range(chunks):
        stacked = torch.stack([part.chunk(chunks, dim)[number] for part in parts])
        assert torch.equal(place(joined, dim, axis, chunks, number), stacked)
        place(whole, dim, axis, chunks, number).copy_(stacked)
    assert torch.equal(whole, joined)


def axis_of(rank: int, size: int, turned: bool) -> MeshAxis:
    """The ranks as an axis; ``turned``: its members in the other order than the group's processes."""
    axis = MeshAxis("tp", size, rank, distributed.group.WORLD)
    return replace(axis, rank=size - 1 - rank, places=tuple(reversed(range(size)))) if turned else axis


def filled(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def gradients(function: Callable[..., tuple[Tensor, ...]], leaves: list[Tensor], compiled: bool) -> list[Tensor]:
    """Results, and the gradient of each leaf that wants one."""
    run = torch.compile(function, backend="aot_eager", fullgraph=True) if compiled else function
    results = run(*leaves)
    loss = sum((r * (1 + torch.arange(r.numel(), dtype=r.dtype).view(r.shape))).sum() for r in results)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return [*(r.detach() for r in results), *torch.autograd.grad(loss, wanted)]  # type: ignore[arg-type]


def of_gather(
    rank: int, size: int, dim: int, keep: bool, transposed: bool, biased: bool, turned: bool, compiled: bool
) -> list[list[Tensor]]:
    axis = axis_of(rank, size, turned)
    torch._dynamo.reset()
    shape = (ROWS, 2, WIDTH) if dim == 0 else (2, ROWS, WIDTH)
    weights = [filled((WIDTH, n) if transposed else (n, WIDTH), 10 * rank + n) for n in COLUMNS]
    leaves = [filled(shape, rank), *weights, filled((COLUMNS[1],), 5 + rank)]

    def at_once(x: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        biases = (None, bias) if biased else ()
        return chunked_linear(x, (first, second), dim, axis, CHUNKS, keep, biases, transposed)

    def apart(x: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        whole = all_gather(x, dim, axis)
        biases = (None, bias) if biased else (None, None)
        pairs = zip((first, second), biases, strict=True)
        return tuple(functional.linear(whole, w.t() if transposed else w, b) for w, b in pairs)

    if not biased:
        leaves[-1] = leaves[-1].detach()
    return [gradients(function, leaves, compiled) for function in (at_once, apart)]


GATHERS = list(itertools.product((0, 1), *[(False, True)] * 5))
FEW = [
    (1, True, False, False, False, False), (1, False, False, True, True, False), (0, True, True, True, False, False),
    (1, False, False, True, False, True),
]  # fmt: skip


@pytest.mark.parametrize(("dim", "keep", "transposed", "biased", "turned", "compiled"), sampled(GATHERS, FEW))
def test_a_gather_with_its_products_gives_what_they_give_one_after_another(
    pool: RankPool, dim: int, keep: bool, transposed: bool, biased: bool, turned: bool, compiled: bool
) -> None:
    for at_once, apart in pool.run(of_gather, dim, keep, transposed, biased, turned, compiled):
        for here, there in zip(at_once, apart, strict=True):
            torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)


def of_sum(
    rank: int, size: int, dim: int | None, transposed: bool, turned: bool, compiled: bool, trained: tuple[bool, bool]
) -> list[list[Tensor]]:
    axis = axis_of(rank, size, turned)
    torch._dynamo.reset()
    shape = (size * ROWS, 2, WIDTH) if dim == 0 else (2, size * ROWS, WIDTH)
    leaves = [filled(shape, rank), filled((WIDTH, 5) if transposed else (5, WIDTH), 10 + rank)]
    leaves = [leaf.requires_grad_(flag) for leaf, flag in zip(leaves, trained, strict=True)]

    def at_once(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (row_linear(x, weight, dim, axis, CHUNKS, transposed),)

    def apart(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        summand = functional.linear(x, weight.t() if transposed else weight)
        return (all_reduce(summand, axis) if dim is None else reduce_scatter(summand, dim, axis),)

    return [gradients(function, leaves, compiled) for function in (at_once, apart)]


BOTH, INPUT, WEIGHT = (True, True), (True, False), (False, True)
SUMS = list(itertools.product((None, 0, 1), *[(False, True)] * 3, (BOTH, INPUT, WEIGHT)))
SOME = [
    (None, False, False, False, BOTH), (1, False, True, False, BOTH), (0, True, False, False, BOTH),
    (1, False, False, True, BOTH), (1, False, False, False, INPUT),
    (1, True, False, False, WEIGHT),
]  # fmt: skip


@pytest.mark.parametrize(("dim", "transposed", "turned", "compiled", "trained"), sampled(SUMS, SOME))
def test_a_product_with_its_sum_gives_what_they_give_one_after_the_other(
    pool: RankPool, dim: int | None, transposed: bool, turned: bool, compiled: bool, trained: tuple[bool, bool]
) -> None:
    for at_once, apart in pool.run(of_sum, dim, transposed, turned, compiled, trained):
        for here, there in zip(at_once, apart, strict=True):
            torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)


def order(rank: int, size: int, way: str) -> tuple[list[str], list[str]]:
    """What runs in a forward and in a backward."""
    axis, found = MeshAxis("tp", size, rank, distributed.group.WORLD), []
    with pytest.MonkeyPatch.context() as patched:
        arrived = raw._arrived  # a wait for what was summed in place is no operator
        running: list[Launched] = []
        patched.setattr(raw, "_arrived", lambda *given: running[-1].names.append("wait_tensor") or arrived(*given))
        with Launched() as launched:
            running.append(launched)
            if way == "gather":
                (y,) = chunked_linear(filled((2, ROWS, WIDTH), rank), [filled((3, WIDTH), rank)], 1, axis, CHUNKS)
            else:
                dim = 1 if way == "scatter" else None
                y = row_linear(filled((2, 2 * ROWS, WIDTH), rank), filled((3, WIDTH), rank), dim, axis, CHUNKS)
        found.append(launched.names)
        with Launched() as launched:
            running.append(launched)
            y.sum().backward()
        found.append(launched.names)
    return found[0], found[1]


GATHERED = [
    "all_gather_into_tensor", "all_gather_into_tensor", "wait_tensor", "mm", "all_gather_into_tensor", "wait_tensor",
    "mm", "wait_tensor", "mm",
]  # fmt: skip
SCATTERED = [
    "mm", "reduce_scatter_tensor", "mm", "reduce_scatter_tensor", "wait_tensor", "mm", "reduce_scatter_tensor",
    "wait_tensor", "wait_tensor",
]  # fmt: skip
SUMMED = ["mm", "allreduce_", "mm", "allreduce_", "mm", "allreduce_", "wait_tensor", "wait_tensor", "wait_tensor"]


@pytest.mark.parametrize(
    ("way", "forward", "backward"),
    [
        ("gather", GATHERED, ["mm", "reduce_scatter_tensor", "mm", "wait_tensor"]),
        ("scatter", SCATTERED, [*GATHERED, "mm"]),
        ("sum", SUMMED, ["mm", "mm"]),
    ],
)
def test_a_chunk_is_under_way_while_another_is_multiplied(
    pool: RankPool, way: str, forward: list[str], backward: list[str]
) -> None:
    for found in pool.run(order, way):
        assert found == (forward, backward)


def saved(rank: int, size: int, keep: bool) -> int:
    """Elements that the backward keeps beside weights."""
    axis, sizes = MeshAxis("tp", size, rank, distributed.group.WORLD), []

    def packed(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda t: t):
        chunked_linear(filled((2, ROWS, WIDTH), rank), [filled((n, WIDTH), n) for n in COLUMNS], 1, axis, CHUNKS, keep)
    return sum(sizes) - WIDTH * sum(COLUMNS)


def test_what_was_gathered_is_kept_or_the_part_alone(pool: RankPool) -> None:
    part = 2 * ROWS * WIDTH
    assert pool.run(saved, True) == [RANKS * part] * RANKS
    assert pool.run(saved, False) == [part] * RANKS


def joined(rank: int, size: int) -> list[list[Tensor]]:
    """Of weights that lie side by side, and of the same apart."""
    axis, memory = MeshAxis("tp", size, rank, distributed.group.WORLD), filled((sum(COLUMNS), WIDTH), rank).detach()
    together = [part.requires_grad_() for part in memory.split(COLUMNS)]
    assert side_by_side(together) is not None
    apart = [part.detach().clone().requires_grad_() for part in together]
    x = filled((2, ROWS, WIDTH), rank)
    return [
        gradients(lambda x, *weights: chunked_linear(x, weights, 1, axis, CHUNKS), [x, *weights], False)
        for weights in (together, apart)
    ]


def other_rows(rank: int, size: int, rows: int) -> list[list[Tensor]]:
    """Of rows that three chunks don't divide."""
    axis = MeshAxis("tp", size, rank, distributed.group.WORLD)
    x, weight = filled((1, rows, WIDTH), rank), filled((WIDTH, WIDTH), rank)

    def at_once(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        (whole,) = chunked_linear(x, [weight], 1, axis, CHUNKS)
        return whole, row_linear(whole, weight, 1, axis, CHUNKS), row_linear(x, weight, None, axis, CHUNKS)

    def apart(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        whole = functional.linear(all_gather(x, 1, axis), weight)
        part = reduce_scatter(functional.linear(whole, weight), 1, axis)
        return whole, part, all_reduce(functional.linear(x, weight), axis)

    return [gradients(function, [x, weight], False) for function in (at_once, apart)]


@pytest.mark.parametrize("rows", [1, 4])
def test_rows_that_chunks_do_not_divide_are_cut_into_fewer(pool: RankPool, rows: int) -> None:
    for at_once, apart in pool.run(other_rows, rows):
        torch.testing.assert_close(at_once, apart, rtol=1e-12, atol=1e-12)


def test_weights_side_by_side_are_one_product(pool: RankPool) -> None:
    for together, apart in pool.run(joined):
        torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)
