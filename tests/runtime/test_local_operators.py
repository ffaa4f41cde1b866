"""Functions in place of an operator, beyond equality (which test_rules proves): exact, economical, they compile."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from autoplan.runtime import ops
from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.ops.attention import heads
from autoplan.runtime.ops.global_random import dropout, step_keys, uniform
from autoplan.verify.local_ranks import RankPool

COUNT = torch.tensor(5)


@pytest.fixture(scope="module")
def pool(compiler: None) -> Iterator[RankPool]:
    with RankPool(2, timeout_s=240) as pool:
        yield pool


def world(rank: int, size: int) -> tuple[MeshAxis, ...]:
    return (MeshAxis("tp", size, rank, distributed.group.WORLD),)


def logits_of(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 30 * torch.randn(6, 8, dtype=torch.float64, generator=generator)
    return logits.to(dtype), torch.tensor([0, 3, -100, 4, 7, 5])


def drop(x: Tensor, *, seed: int = 1, step: int = 1, call: int = 1, p: float = 0.3) -> Tensor:
    return dropout(x, p, key=step_keys(seed, step, 1)[0], call=call)


def test_dropout_compiles_whole() -> None:
    """First of all, so that the compiler is loaded before the ranks are forked."""
    compiled = torch.compile(drop, backend="aot_eager", fullgraph=True)
    x = torch.ones(16, 16)
    assert torch.equal(compiled(x), drop(x))


def split_loss(rank: int, size: int, dtype: torch.dtype, compiled: bool) -> tuple[Tensor, Tensor, int]:
    """The loss, this rank's gradient, and how many bytes of floats the backward kept."""
    logits, target = logits_of(dtype)
    local = logits.chunk(size, -1)[rank].clone().requires_grad_()
    kept: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.numel() * x.element_size() if x.is_floating_point() else 0
        return x

    def loss_of(x: Tensor) -> Tensor:
        return ops.vocab_parallel_cross_entropy(x, target, COUNT, axes=world(rank, size))

    run = torch.compile(loss_of, backend="aot_eager", fullgraph=True) if compiled else loss_of
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        loss = run(local)
    loss.backward()
    assert local.grad is not None
    return loss.detach(), local.grad, sum(kept.values())


@pytest.mark.parametrize("compiled", [False, True])
def test_split_loss_compiles_whole(pool: RankPool, compiled: bool) -> None:
    logits, target = logits_of()
    whole = logits.clone().requires_grad_()
    want = ops.cross_entropy(whole, target, COUNT)
    want.backward()
    results = pool.run(split_loss, torch.float64, compiled)
    for loss, _, _ in results:
        torch.testing.assert_close(loss, want.detach(), rtol=1e-13, atol=0)
    torch.testing.assert_close(torch.cat([g for _, g, _ in results], -1), whole.grad, rtol=1e-12, atol=1e-13)


def test_split_loss_keeps_the_logits_and_two_numbers_of_each_row(pool: RankPool) -> None:
    for _, gradient, kept in pool.run(split_loss, torch.float64, False):
        assert kept == gradient.numel() * 8 + 2 * len(gradient) * 8


def test_split_loss_of_half_precision_logits(pool: RankPool) -> None:
    logits, target = logits_of(torch.bfloat16)
    want = functional.cross_entropy(logits.double(), target, reduction="sum") / 5
    for loss, gradient, _ in pool.run(split_loss, torch.bfloat16, False):
        assert loss.dtype == gradient.dtype == torch.bfloat16
        torch.testing.assert_close(loss.double(), want, rtol=1e-2, atol=0)


def sync_norm(rank: int, size: int, state: dict, x: Tensor, gradient: Tensor, momentum: float | None) -> tuple:
    norm = nn.BatchNorm2d(3, momentum=momentum, dtype=torch.float64)
    norm.load_state_dict(state)
    local = x.chunk(size)[rank].clone().requires_grad_()
    buffers = norm.running_mean, norm.running_var, norm.num_batches_tracked
    axes = world(rank, size)
    for _ in range(2):
        y = ops.sync_batch_norm(local, norm.weight, norm.bias, *buffers, True, momentum, norm.eps, axes=axes)
    y.backward(gradient.chunk(size)[rank])
    return y.detach(), local.grad, norm.weight.grad, norm.bias.grad, *(b.clone() for b in buffers)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_split_batch_norm_equals_the_module(pool: RankPool, momentum: float | None) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, momentum=momentum, dtype=torch.float64)
    nn.init.normal_(norm.weight)
    x, gradient = torch.randn(4, 3, 2, 2, dtype=torch.float64) + 5, torch.randn(4, 3, 2, 2, dtype=torch.float64)
    results = list(zip(*pool.run(sync_norm, norm.state_dict(), x, gradient, momentum), strict=True))
    whole = x.clone().requires_grad_()
    for _ in range(2):
        y = norm(whole)
    y.backward(gradient)
    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(torch.cat(results[0]), y.detach(), **close)
    torch.testing.assert_close(torch.cat(results[1]), whole.grad, **close)
    torch.testing.assert_close(sum(results[2]), norm.weight.grad, **close)
    torch.testing.assert_close(sum(results[3]), norm.bias.grad, **close)
    for rank in range(2):
        torch.testing.assert_close(results[4][rank], norm.running_mean, **close)
        torch.testing.assert_close(results[5][rank], norm.running_var, **close)
        assert results[6][rank] == norm.num_batches_tracked == 2


def test_the_module_and_the_whole_body_agree_on_buffers() -> None:
    torch.manual_seed(0)
    norm, other = (nn.BatchNorm1d(3, momentum=None) for _ in range(2))
    for _ in range(3):
        x = torch.randn(8, 3)
        buffers = other.running_mean, other.running_var, other.num_batches_tracked
        y = ops.batch_norm(x, other.weight, other.bias, *buffers, True, None, other.eps)
        torch.testing.assert_close(y, norm(x))
    torch.testing.assert_close(other.state_dict(), norm.state_dict())


def test_index_over_several_axes() -> None:
    assert index_over(()) == (0, 1)
    assert index_over((MeshAxis("a", 2, 1), MeshAxis("b", 4, 3))) == (7, 8)


def test_dropout_keeps_the_expectation_and_has_the_rate() -> None:
    x = torch.ones(512, 512)
    y = drop(x)
    assert abs((y == 0).double().mean().item() - 0.3) < 5e-3
    assert abs(y.mean().item() - 1) < 1e-2
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / 0.7))


def test_dropout_differs_by_seed_step_and_call_and_repeats_itself() -> None:
    x = torch.ones(64, 64)
    kinds = [drop(x), drop(x, seed=2), drop(x, step=2), drop(x, call=2)]
    assert torch.equal(kinds[0], drop(x))
    for i, one in enumerate(kinds):
        for other in kinds[i + 1 :]:
            agree = ((one == 0) == (other == 0)).double().mean().item()
            assert abs(agree - (0.3**2 + 0.7**2)) < 0.05, "two masks are independent"


def test_neighbours_are_dropped_independently() -> None:
    y = drop(torch.ones(1 << 16)) == 0
    for lag in (1, 2, 64, 4096):
        both = (y[lag:] & y[:-lag]).double().mean().item()
        assert abs(both - 0.09) < 6e-3


def test_the_first_step_of_the_first_seed_is_as_good_as_any() -> None:
    """A key of 0 would make the first element's word 0: always dropped, and a number drawn there exactly 0."""
    count, p = 1 << 16, 0.3
    y = drop(torch.ones(256, 256), seed=0, step=0, call=0) == 0
    assert abs(y.double().mean().item() - p) < 4 * (p * (1 - p) / count) ** 0.5
    for other in (drop(torch.ones(256, 256), seed=0, step=0), drop(torch.ones(256, 256), seed=0, step=1, call=0)):
        assert abs(((other == 0) & y).double().mean().item() - p * p) < 4 * (p * p * (1 - p * p) / count) ** 0.5
    x = torch.ones(2)
    firsts = [
        uniform(x, 0, key=step_keys(seed, step, 1, batch=batch)[0], call=call)[0].item()
        for seed, step, call, batch in itertools.product(range(12), range(12), range(4), range(2))
    ]
    assert min(firsts) > 0 and len(set(firsts)) == len(firsts)
    assert abs(sum(firsts) / len(firsts) - 0.5) < 4 * (1 / 12 / len(firsts)) ** 0.5


def test_seeds_differ_beyond_32_bits() -> None:
    assert len({int(step_keys(seed, 5, 1)[0, 0]) for seed in (0, 1 << 32, 1 << 33, -1)}) == 4


def test_dropout_with_everything_dropped() -> None:
    assert torch.equal(drop(torch.ones(8), p=1.0), torch.zeros(8))


def test_microbatches_drop_what_the_whole_batch_drops() -> None:
    x = torch.ones(8, 6)
    keys = step_keys(3, 4, 2)
    whole = dropout(x, 0.5, key=keys[0], call=1, microbatch_dim=0)
    parts = []
    for microbatch in range(2):
        for rank in range(2):
            dims = ((MeshAxis("dp", 2, rank),), ())
            parts.append(dropout(x[:2], 0.5, key=keys[microbatch], call=1, dims=dims, microbatch_dim=0))
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(dropout(x, 0.5, key=keys[0], call=1), whole), "a batch of one microbatch is the batch"


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_attention_of_grouped_queries_is_the_same_with_repeated_keys(
    monkeypatch: pytest.MonkeyPatch, shared: int
) -> None:
    """As on an accelerator in float32, where the kernel is given as many heads of keys as of queries."""
    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, shared, 6, 8), torch.randn(2, shared, 6, 8)
    want = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(ops.grouped_query_attention(q, k, v, is_causal=True), want)
    seen = []

    def attend(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append((k.shape[1], v.shape[1], kwargs["enable_gqa"]))
        return kept(q, k, v, *args, **kwargs)

    kept = functional.scaled_dot_product_attention
    monkeypatch.setattr(heads, "takes_groups", lambda q, mask: False)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    torch.testing.assert_close(ops.grouped_query_attention(q, k, v, is_causal=True), want)
    assert seen == [(4, 4, False)]


def test_groups_are_left_to_the_kernel_that_takes_them() -> None:
    """An accelerator's: in half precision without a mask; there is none in float64."""
    mask = torch.empty(6, 6, dtype=torch.bool, device="meta")
    half, single, double = (
        torch.empty(2, 4, 6, 8, dtype=dtype, device="meta") for dtype in (torch.bfloat16, torch.float32, torch.float64)
    )
    assert heads.takes_groups(half) and not heads.takes_groups(half, mask)
    assert not heads.takes_groups(single) and heads.takes_groups(double, mask)
    assert heads.takes_groups(torch.empty(2, 4, 6, 8), torch.empty(6, 6, dtype=torch.bool))


def test_attention_with_dropout_is_attention_when_nothing_is_dropped() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    key = step_keys(0, 0, 1)[0]
    mask = torch.rand(2, 1, 6, 6) < 0.7
    mask[..., 0] = True
    for options in ({"is_causal": True}, {"mask": mask}, {"mask": mask.double().float()}, {"scale": 0.2}):
        got = ops.attention_with_dropout(q, k, v, **options, enable_gqa=True, key=key, call=1)
        names = {"attn_mask" if name == "mask" else name: value for name, value in options.items()}
        want = functional.scaled_dot_product_attention(q, k, v, **names, enable_gqa=True)
        torch.testing.assert_close(got, want)
    some = ops.attention_with_dropout(q, k, v, None, 0.5, enable_gqa=True, key=key, call=1)
    assert not torch.allclose(some, functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))
