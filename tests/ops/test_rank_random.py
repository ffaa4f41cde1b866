"""Dropout by rank: torch's own kernels, seeded so that what ranks hold alike is dropped alike."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.global_random import step_keys
from autoplan.runtime.ops.rank_random import attention_by_rank, dropout_by_rank
from autoplan.runtime.parallel.seeding import generators_kept, seed_of, seeded

KEY = step_keys(3, 5, 2)
P = 0.25


def axes(*ranks: int) -> tuple[MeshAxis, ...]:
    return tuple(MeshAxis(f"a{number}", 4, rank) for number, rank in enumerate(ranks))


def dropped(shape: tuple[int, ...] = (200, 300), **told: Any) -> Tensor:
    given = {"key": KEY[0], "call": 7, "axes": axes(1, 2), **told}
    return dropout_by_rank(torch.ones(shape), P, **given)


def compiled(**told: Any) -> Tensor:
    return torch.compile(dropped, backend="aot_eager", fullgraph=True, dynamic=False)(**told)


WAYS = {"eager": dropped, "compiled": compiled}
OTHERS: dict[str, dict[str, Any]] = {
    "place": {"axes": axes(2, 1)}, "one place": {"axes": axes(1, 3)}, "call": {"call": 8},
    "microbatch": {"key": KEY[1]}, "step": {"key": step_keys(3, 6, 1)[0]}, "seed": {"key": step_keys(4, 5, 1)[0]},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_the_same_part_is_dropped_alike_and_any_other_by_chance(way: str) -> None:
    run = WAYS[way]
    one = run()
    torch.manual_seed(99)
    assert torch.equal(run(), one)
    assert torch.equal(run(key=KEY[:1]), one), "a key is a row, too"
    chance, count = P * P + (1 - P) ** 2, one.numel()
    for name, told in OTHERS.items():
        agree = int((run(**told) == one).sum())
        assert abs(agree - chance * count) < 5 * math.sqrt(chance * (1 - chance) * count), name


@pytest.mark.parametrize("way", WAYS)
def test_what_all_microbatches_hold_is_dropped_alike(way: str) -> None:
    first, second = (WAYS[way](key=key, each_microbatch=False) for key in KEY)
    assert torch.equal(first, second) and not torch.equal(first, WAYS[way](key=KEY[1]))


@pytest.mark.parametrize("way", WAYS)
def test_as_much_is_dropped_as_should_be_in_rows_and_columns(way: str) -> None:
    found = WAYS[way](shape=(1000, 1000))
    kept = (found != 0).double()
    torch.testing.assert_close(found[found != 0], torch.full((int(kept.sum()),), 1 / (1 - P)))
    assert abs(kept.mean().item() - (1 - P)) < 4 * math.sqrt(P * (1 - P)) / 1000
    for counts in (kept.sum(0), kept.sum(1)):
        z = (counts - 1000 * (1 - P)) / math.sqrt(1000 * P * (1 - P))
        assert z.abs().max() < 5.5 and abs(z.var().item() - 1) < 5 * math.sqrt(2 / 1000)


def test_seeds_of_neighbours_differ() -> None:
    seeds = [
        seed_of(step_keys(seed, step, 3)[microbatch], call, axes(rank, other))
        for seed, step, microbatch, call, rank, other in itertools.product(range(2), range(2), *[range(3)] * 4)
    ]
    assert len(set(seeds)) == len(seeds)
    assert len({seed & 0xFFFFFFFF for seed in seeds}) == len(seeds), "a CPU's generator takes 32 bits"


def test_the_gradient_is_dropped_alike_and_a_byte_an_element_is_kept() -> None:
    x = torch.randn(50, 400, dtype=torch.float64, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = dropout_by_rank(x, P, key=KEY[0], call=4)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    assert torch.equal(x.grad != 0, y != 0)
    assert sum(t.nbytes for t in kept) == x.numel()


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[float] = []

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.dropped.append(args[4] if len(args) > 4 else (kwargs or {}).get("dropout_p", 0.0))
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.name()] += 1
        return func(*args, **(kwargs or {}))


def attended(q: Tensor, **told: Any) -> Tensor:
    return attention_by_rank(q, q, q, None, P, True, **{"key": KEY[0], "call": 2, "axes": axes(1), **told})


def test_attention_drops_by_its_own_argument() -> None:
    q = torch.randn(2, 3, 16, 8, dtype=torch.float64)
    with Functions() as functions, Operators() as operators:
        one = attended(q)
    assert functions.dropped == [P]
    assert operators.calls["aten::bernoulli_.float"] == 1 and "autoplan::hashed_dropout" not in operators.calls
    assert torch.equal(attended(q), one)
    for told in ({"axes": axes(2)}, {"call": 3}, {"key": KEY[1]}):
        assert not torch.allclose(attended(q, **told), one)
    mean = torch.stack([attended(q, call=call) for call in range(600)]).mean(0)
    exact = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert (mean - exact).abs().mean() < 0.05 * exact.abs().mean()


def test_an_operator_and_its_gradient_are_one_call_each() -> None:
    x, key = torch.randn(8, 8, requires_grad=True), KEY[:1]
    with Operators() as operators:
        y = dropout_by_rank(x, P, key=key, call=4, axes=axes(1))
        torch.autograd.grad(y, x, torch.ones_like(y))
    calls = {name: count for name, count in operators.calls.items() if name not in READ}
    assert calls == {"aten::native_dropout": 1, "aten::native_dropout_backward": 1, "aten::ones_like": 1}


READ = ("aten::view", "aten::detach")


def test_the_callers_generator_is_left_as_it_was() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with generators_kept(torch.device("cpu")):
        dropped()
    assert torch.equal(torch.get_rng_state(), before)


class Segment(nn.Module):
    """As an emitted block is: attention that drops, and a dropout that ranks hold alike."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.first_dropout = 3
        self.attention_drawn_over = axes(rank)

    def forward(self, x: Tensor, dropout_key: Tensor) -> tuple[Tensor, Tensor]:
        told = {"key": dropout_key, "call": self.first_dropout, "axes": self.attention_drawn_over}
        attention = attention_by_rank(x, x, x, None, P, True, **told)
        return attention, dropout_by_rank(x, P, key=dropout_key, call=self.first_dropout + 1)


def compiled_segment(rank: int, key: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    segment = Segment(rank)
    return seeded(segment, torch.compile(segment.forward, backend="aot_eager", fullgraph=True, dynamic=False))(x, key)


def test_a_compiled_segment_draws_from_one_seed() -> None:
    x = torch.randn(2, 3, 16, 8, dtype=torch.float64)
    attention, elements = compiled_segment(1, KEY[:1], x)
    torch.manual_seed(5)
    again, same = compiled_segment(1, KEY[:1], x)
    assert torch.equal(again, attention) and torch.equal(same, elements)
    other, alike = compiled_segment(2, KEY[:1], x)
    assert not torch.allclose(other, attention) and torch.equal(alike, elements), "one is split over the axis"
    later, anew = compiled_segment(1, KEY[1:], x)
    assert not torch.allclose(later, attention) and not torch.equal(anew, elements)
    plain = nn.Module()
    assert seeded(plain, plain.forward) == plain.forward
