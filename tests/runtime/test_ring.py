"""Keys and values round a ring: equal to one device in value and gradient, and never gathered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, distributed
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.runtime import ops
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.attention.blocks import Sight, attend, attend_back, join
from autoplan.runtime.ops.attention.ring import Ring
from autoplan.verify.local_ranks import RankPool

CLOSE = {"rtol": 1e-10, "atol": 1e-11}
ROWS = 24  # divides by two, three and four, into pieces that divide by two


@pytest.fixture(scope="module", params=[2, 3, 4])
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    with RankPool(request.param, timeout_s=240) as pool:
        yield pool


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


def operands(heads: int, kv: int, value: int = 8, rows: int = ROWS, keys: int = ROWS) -> tuple[Tensor, ...]:
    """q, k, v, and the gradient of the result."""
    result = drawn(2, heads, rows, value)
    return drawn(2, heads, rows, 8), drawn(2, kv, keys, 8) + 0.1, drawn(2, kv, keys, value), result


def test_the_kernel_of_a_block_compiles_whole() -> None:
    """First of all, so that the compiler is loaded before the ranks are forked."""
    q, k, v, _ = operands(4, 2)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v, Sight(0.3)), attend(q, k, v, Sight(0.3)), **CLOSE)


class Seen(TorchDispatchMode):
    """Counts what crosses the links, and finds the largest tensor that any operator gives."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if func.namespace == "_c10d_functional" and "wait" not in func.__name__:
            self.count[func.__name__.split(".")[0]] += 1
        given = result if isinstance(result, tuple) else (result,)
        self.largest = max([self.largest, *(x.untyped_storage().nbytes() for x in given if isinstance(x, Tensor))])
        return result


def on_rank(rank: int, size: int, whole: tuple[Tensor, ...], mask: Tensor | None, causal: bool) -> tuple:
    """This rank's rows of the result and of the gradients, what crossed the links, the bytes of the largest tensor."""
    axis = MeshAxis("tp", size, rank, distributed.group.WORLD)
    q, k, v, gradient = (x.chunk(size, 2)[rank].clone() for x in whole)
    mine = mask if mask is None or mask.shape[-2] == 1 else mask.chunk(size, -2)[rank]
    for x in (q, k, v):
        x.requires_grad_()
    with Seen() as seen:
        y = ops.ring_attention(q, k, v, mine, 0.0, causal, enable_gqa=q.shape[1] != k.shape[1], axes=(axis,))
        y.backward(gradient)
    return y.detach(), q.grad, k.grad, v.grad, dict(seen.count), seen.largest


def on_one(whole: tuple[Tensor, ...], mask: Tensor | None, causal: bool) -> list[Tensor]:
    q, k, v = (x.clone().requires_grad_() for x in whole[:3])
    y = functional.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, enable_gqa=q.shape[1] != k.shape[1])
    y.backward(whole[3])
    return [y.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]


CASES = {
    "causal": (operands(4, 4), None, True),
    "everything seen": (operands(4, 4), None, False),
    "causal, shared keys": (operands(6, 2), None, True),
    "shared keys": (operands(6, 2), None, False),
    "values of another size": (operands(4, 4, value=6), None, True),
    "fewer keys than rows": (operands(4, 4, keys=12), None, False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_ring_equals_one_device(pool: RankPool, name: str) -> None:
    whole, mask, causal = CASES[name]
    results = pool.run(on_rank, whole, mask, causal)
    for got, want in zip(list(zip(*results, strict=True))[:4], on_one(whole, mask, causal), strict=True):
        torch.testing.assert_close(torch.cat(got, 2), want, **CLOSE)


def laid_out(rank: int, size: int) -> bool:
    axis, (q, k, v, _) = MeshAxis("tp", size, rank, distributed.group.WORLD), operands(4, 2, rows=8, keys=8)
    y = ops.ring_attention(q, k, v, None, 0.0, True, enable_gqa=True, axes=(axis,))
    return y.transpose(1, 2).is_contiguous()


def test_its_result_lies_row_by_row(pool: RankPool) -> None:
    """As the fused kernels' does: joining its heads, which is what is next, copies nothing."""
    assert all(pool.run(laid_out))


@pytest.mark.parametrize("shape", [(2, 1, ROWS, ROWS), (1, 1, 1, ROWS), (ROWS, ROWS)])
def test_a_mask_is_cut_for_each_part(pool: RankPool, shape: tuple[int, ...]) -> None:
    """One row sees the last key alone, so that most parts have nothing that it sees."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[..., 0, :] = False
    mask[..., -1] = True
    results = pool.run(on_rank, operands(4, 4), mask, False)
    for got, want in zip(list(zip(*results, strict=True))[:4], on_one(operands(4, 4), mask, False), strict=True):
        torch.testing.assert_close(torch.cat(got, 2), want, **CLOSE)


def test_half_precision_is_summed_up_in_single(pool: RankPool) -> None:
    """The kernel rounds each block's result, and what they are joined into is rounded once more: two errors of one
    size, √2 of it together."""
    whole = tuple(x.bfloat16() for x in operands(4, 4))
    results = pool.run(on_rank, whole, None, True)
    exact = on_one(tuple(x.double() for x in whole), None, True)
    alone = on_one(whole, None, True)
    for got, want, other in zip(list(zip(*results, strict=True))[:4], exact, alone, strict=True):
        joined = torch.cat(got, 2)
        assert joined.dtype == torch.bfloat16
        assert (joined.double() - want).norm() <= 1.5 * (other.double() - want).norm()


def test_parts_go_round_once_and_their_gradients_come_home(pool: RankPool) -> None:
    """n - 1 messages forward; n + 1 backward. A causal ring exchanges once each way to either end and back."""
    n = pool.size
    for causal, exchanges in ((False, 0), (True, 4)):
        for *_, count, _ in pool.run(on_rank, operands(4, 4), None, causal):
            assert count == {"all_to_all_single": (n - 1) + (n + 1) + exchanges}


@pytest.mark.parametrize("causal", [False, True])
def test_no_rank_holds_all_keys_and_values(pool: RankPool, causal: bool) -> None:
    """The largest tensor is two of the parts' size at most: keys and values of one rank, side by side."""
    whole = operands(4, 4)
    part = whole[1].nbytes // pool.size
    for *_, largest in pool.run(on_rank, whole, None, causal):
        assert largest <= 4 * part < 2 * (whole[1].nbytes + whole[2].nbytes)


@pytest.mark.parametrize("ways", [2, 3, 4])
def test_a_rank_meets_every_part_once(ways: int) -> None:
    ranks = [Ring(MeshAxis("tp", ways, rank), False) for rank in range(ways)]
    for ring in ranks:
        assert ring.there(0) == ring.here
        assert sorted(ring.there(step) for step in range(ways)) == [(rank,) for rank in range(ways)]
    for step in range(ways):
        assert len({ring.there(step) for ring in ranks}) == ways


@pytest.mark.parametrize("ways", [2, 3, 4])
def test_under_causality_every_rank_has_the_same_work(ways: int) -> None:
    ring = Ring(MeshAxis("tp", ways, 0), True)
    pieces = [ring.pieces(rank) for rank in range(ways)]
    assert sorted(p for own in pieces for p in own) == list(range(2 * ways))
    assert len({sum(p + 0.5 for p in own) for own in pieces}) == 1


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_blocks_join_into_the_whole(masked: bool, dtype: torch.dtype) -> None:
    """By the fused kernel, and under a mask by the products."""
    q, k, v, gradient = (x.to(dtype) for x in operands(4, 2))
    mask = torch.ones(1, 1, ROWS, ROWS, dtype=torch.bool) if masked else None
    scale = 1 / math.sqrt(q.shape[-1])
    parts = [(k[:, :, at : at + 8], v[:, :, at : at + 8]) for at in (0, 8, 16)]
    sights = [Sight(scale, mask=None if mask is None else mask[..., at : at + 8]) for at in (0, 8, 16)]
    out, log = attend(q, *parts[0], sights[0])
    for part, sight in zip(parts[1:], sights[1:], strict=True):
        out, log = join((out, log), attend(q, *part, sight))
    found = [attend_back(gradient, q, *part, out, log, s) for part, s in zip(parts, sights, strict=True)]
    want = on_one((q, k, v, gradient), None, False)
    close = CLOSE if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(out, want[0], **close)
    torch.testing.assert_close(sum(dq for dq, _, _ in found), want[1], **close)
    torch.testing.assert_close(torch.cat([dk for _, dk, _ in found], 2), want[2], **close)
    torch.testing.assert_close(torch.cat([dv for _, _, dv in found], 2), want[3], **close)


def compiled_on_rank(rank: int, size: int, whole: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    axis = MeshAxis("tp", size, rank, distributed.group.WORLD)
    q, k, v, gradient = (x.chunk(size, 2)[rank].clone() for x in whole)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.ring_attention(q, k, v, None, 0.0, True, enable_gqa=True, axes=(axis,))

    y = torch.compile(run, backend="aot_eager", fullgraph=True)(q.requires_grad_(), k, v)
    y.backward(gradient)
    assert q.grad is not None
    return y.detach(), q.grad


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.usefixtures("compiler")
def test_a_ring_compiles_whole(size: int) -> None:
    """Each rank has other blocks, and on three several messages: a compiler must leave them their order."""
    with RankPool(size, timeout_s=240) as ranks:
        compiles_on(ranks)


def compiles_on(pool: RankPool) -> None:
    whole = operands(4, 2)[:3], operands(4, 2)[3]
    results = pool.run(compiled_on_rank, (*whole[0], whole[1]))
    want = on_one((*whole[0], whole[1]), None, True)
    torch.testing.assert_close(torch.cat([y for y, _ in results], 2), want[0], **CLOSE)
    torch.testing.assert_close(torch.cat([g for _, g in results], 2), want[1], **CLOSE)
