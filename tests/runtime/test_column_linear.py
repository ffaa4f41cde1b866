"""Column-parallel products: equal to products of what the redistribution gives, and their sum runs under the weights'
gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, distributed
from torch.nn import functional

from autoplan.runtime.collectives import raw
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.collectives.typed import all_gather, to_replicate
from autoplan.runtime.ops import column_linear, gathered_linear, regathered_linear
from autoplan.runtime.ops.column_linear import joined_linear
from autoplan.verify.local_ranks import RankPool
from tests.support.launched import Launched
from tests.support.sampling import sampled

ROWS, WIDTH, COLUMNS = 6, 4, (3, 5)


@pytest.fixture(scope="module")
def pool(compiler: None) -> Iterator[RankPool]:
    with RankPool(2, timeout_s=240) as pool:
        yield pool


def operands(
    rank: int, gathers: bool, transposed: bool, width: int = WIDTH
) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """x, this rank's columns of two weights, and a bias of the second alone."""
    alike, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1 + rank)
    x = torch.randn(2, ROWS, width, generator=own if gathers else alike, dtype=torch.float64)
    weights = [torch.randn(n, WIDTH, generator=own, dtype=torch.float64) for n in COLUMNS]
    weights = [w.t().contiguous() if transposed else w for w in weights]
    bias = torch.randn(COLUMNS[1], generator=own, dtype=torch.float64)
    return x.requires_grad_(), [w.requires_grad_() for w in weights], [None, bias.requires_grad_()]


def multiplied(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    return functional.linear(x, weight.t() if transposed else weight, bias)


def both_ways(rank: int, size: int, way: str, transposed: bool, compiled: bool) -> list[list[Tensor]]:
    """Results and gradients, as one call and as a redistribution with products."""
    axis, gathers = MeshAxis("tp", size, rank, distributed.group.WORLD), way != "replicated"
    dim = 2 if way == "columns again" else 1
    torch._dynamo.reset()  # else what other cases compiled would count against this one

    def at_once(x: Tensor, weights: list[Tensor], biases: list[Tensor | None]) -> tuple[Tensor, ...]:
        if not gathers:
            return column_linear(x, weights, axis, biases=biases, transposed=transposed)
        if way != "gathered":
            keep = not way.endswith("again") or way == "not again"
            return regathered_linear(x, weights, dim, axis, keep, biases=biases, transposed=transposed)
        return gathered_linear(x, all_gather(x, 1, axis), weights, 1, axis, biases=biases, transposed=transposed)

    def apart(x: Tensor, weights: list[Tensor], biases: list[Tensor | None]) -> tuple[Tensor, ...]:
        whole = all_gather(x, dim, axis) if gathers else to_replicate(x, axis)
        return tuple(multiplied(whole, w, b, transposed) for w, b in zip(weights, biases, strict=True))

    found = []
    for function in (at_once, apart):
        x, weights, biases = operands(rank, gathers, transposed, WIDTH // size if dim == 2 else WIDTH)
        run = torch.compile(function, backend="aot_eager", fullgraph=True) if compiled else function
        results = run(x, weights, biases)
        sum((r * (1 + torch.arange(r.numel(), dtype=r.dtype).view(r.shape))).sum() for r in results).backward()
        leaves = [x, *weights, *(b for b in biases if b is not None)]
        assert all(leaf.grad is not None for leaf in leaves)
        found.append([*(r.detach() for r in results), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    return found


WAYS = ("replicated", "gathered", "again", "not again", "columns again")
CASES = list(itertools.product(WAYS, (False, True), (False, True)))
QUICK = [case for case in CASES if not case[2] or case[:2] == ("again", False)]


@pytest.mark.parametrize(("way", "transposed", "compiled"), sampled(CASES, QUICK))
def test_equal_to_a_redistribution_with_products(pool: RankPool, way: str, transposed: bool, compiled: bool) -> None:
    for at_once, apart in pool.run(both_ways, way, transposed, compiled):
        for here, there in zip(at_once, apart, strict=True):
            torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)


def backward_order(rank: int, size: int, gathers: bool, again: bool = False) -> list[str]:
    axis = MeshAxis("tp", size, rank, distributed.group.WORLD)
    x, weights, _ = operands(rank, gathers, False)
    if again:
        results = regathered_linear(x, weights, 1, axis, False)
    elif gathers:
        results = gathered_linear(x, all_gather(x, 1, axis), weights, 1, axis)
    else:
        results = column_linear(x, weights, axis)
    loss = sum(r.sum() for r in results)
    with Launched() as launched, pytest.MonkeyPatch.context() as patched:
        arrived = raw._arrived  # a wait for what was summed in place is no operator
        patched.setattr(raw, "_arrived", lambda *given: launched.names.append("wait_tensor") or arrived(*given))
        loss.backward()
    return launched.names


@pytest.mark.parametrize("gathers", [False, True], ids=["replicated", "gathered"])
def test_the_sum_is_under_way_while_weights_gradients_are_computed(pool: RankPool, gathers: bool) -> None:
    collective = "reduce_scatter_tensor" if gathers else "allreduce_"
    for names in pool.run(backward_order, gathers):
        assert names == ["mm", "addmm", collective, "mm", "mm", "wait_tensor"]


def test_what_is_gathered_again_comes_under_the_product_before_it(pool: RankPool) -> None:
    """The gather is under way while the input's gradient is computed, and that one's sum under the weights'."""
    for names in pool.run(backward_order, True, True):
        assert names == [
            "all_gather_into_tensor", "mm", "addmm", "reduce_scatter_tensor", "wait_tensor", "mm", "mm", "wait_tensor"
        ]  # fmt: skip


def kept(rank: int, size: int, again: bool, compiled: bool) -> int:
    """Elements of the largest tensor that the backward keeps of x or of what is gathered of it."""
    axis, sizes = MeshAxis("tp", size, rank, distributed.group.WORLD), []
    x, weights, _ = operands(rank, True, False)

    def rows(x: Tensor) -> Tensor:
        return sum(r.sum() for r in regathered_linear(x * 2, weights, 1, axis, not again))  # type: ignore[return-value]

    def packed(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel() if tensor.numel() % (ROWS * WIDTH) == 0 else 0)
        return tensor

    run = torch.compile(rows, backend="aot_eager_decomp_partition", fullgraph=True) if compiled else rows
    with torch.autograd.graph.saved_tensors_hooks(packed, lambda t: t):
        run(x)
    return max(sizes)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_what_is_gathered_again_is_not_kept(pool: RankPool, compiled: bool) -> None:
    part = 2 * ROWS * WIDTH
    assert pool.run(kept, True, compiled) == [part] * 2
    assert pool.run(kept, False, compiled) == [2 * part] * 2


def frozen(rank: int, size: int) -> tuple[bool, list[str]]:
    """Whether a frozen weight stays without a gradient, and what runs where nothing before it wants one."""
    axis = MeshAxis("tp", size, rank, distributed.group.WORLD)
    x, weights, _ = operands(rank, False, False)
    weights[0].requires_grad_(False)
    (loss,) = [sum(r.sum() for r in column_linear(x.detach(), weights, axis))]
    with Launched() as launched:
        loss.backward()
    return weights[0].grad is None and weights[1].grad is not None, launched.names


def test_what_is_frozen_costs_nothing(pool: RankPool) -> None:
    for alone, names in pool.run(frozen):
        assert alone and names == ["mm"]


@pytest.mark.parametrize("transposed", [False, True])
def test_products_with_frozen_weights_keep_nothing_but_these(transposed: bool) -> None:
    """The gradient of what is multiplied is that of plain products; a weight that is trained has its own."""
    for trained in ((False, False), (False, True)):
        x, weights, _ = operands(0, False, transposed)
        weights = [w.detach().requires_grad_(flag) for w, flag in zip(weights, trained, strict=True)]
        results = joined_linear(x, weights, (), transposed)
        kept = results[0].grad_fn.saved_tensors  # type: ignore[union-attr]
        assert any(t is not None and t.data_ptr() == x.data_ptr() for t in kept) == any(trained)
        loss = sum(r.pow(2).sum() for r in results)
        wanted = sum(multiplied(x, w, None, transposed).pow(2).sum() for w in weights)
        asked = [x, *(w for w in weights if w.requires_grad)]
        given, plain = torch.autograd.grad(loss, asked), torch.autograd.grad(wanted, asked)
        torch.testing.assert_close(given, plain)
