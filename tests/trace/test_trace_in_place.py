"""What is changed in place while other names see it: every reader finds what eager execution gives it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn

from autoplan.trace.direct import out_of_place
from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret

WIDTH = 6


class Changing(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.function = nn.Linear(WIDTH, WIDTH), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.body(x)).square().mean()


class Exchanged(nn.Module):
    """Two buffers that change places, of which the second is the first to be put."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("before", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        self.before, self.average = self.average, 0.5 * self.before + h.detach().mean(0)
        return (h - self.average + self.before).square().mean()


def before_and_after(h: Tensor) -> Tensor:
    first = h[1:]
    h.add_(1)
    return first.sum() + h.sum()


def result_and_base(h: Tensor) -> Tensor:
    base = h * 2
    other = base.add_(1)
    base.mul_(3)
    return other + base


def slice_twice(h: Tensor) -> Tensor:
    h = h.clone()
    part = h[:, :2]
    part.mul_(2)
    part.add_(1)
    return h


def slice_of_a_changed(h: Tensor) -> Tensor:
    h = h.clone()
    row = h[0]
    h[0] += 5
    return h + row


def read_between(h: Tensor) -> Tensor:
    h = h.clone()
    kept = h[:, :1] * 2
    h[:, :1] += 1
    return h + kept


def turned(h: Tensor) -> Tensor:
    product = (h @ h.t()).t()
    product += h.sum()
    return product


def turned_and_seen(h: Tensor) -> Tensor:
    product = h @ h.t()
    other = product.t()
    other += h.sum()
    return product * torch.arange(len(h))


def assigned_from_itself(h: Tensor) -> Tensor:
    h = h.clone()
    h[1:] += h[:1]
    return h


def part_by_part(h: Tensor) -> Tensor:
    whole = h.new_empty(len(h), 4 * WIDTH)
    whole[:, : 2 * WIDTH] = torch.cat([h, 2 * h], dim=1)
    whole[:, 2 * WIDTH :] = torch.cat([3 * h, 4 * h], dim=1)
    whole[:, WIDTH : WIDTH + 2] += h[:, :2]
    whole[:, WIDTH - 1 : WIDTH + 1] *= 5
    return whole


def power(h: Tensor) -> Tensor:
    return h.square().add_(1).pow_(-0.5)


FUNCTIONS = (before_and_after, result_and_base, slice_twice, slice_of_a_changed, read_between, turned,
             turned_and_seen, assigned_from_itself, part_by_part, power)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_eager_execution(function: Callable[[Tensor], Tensor]) -> None:
    module, x = Changing(function), torch.randn(4, WIDTH)
    model = trace(module, (x,), training=True)
    torch.testing.assert_close(interpret(model, dict(module.named_parameters()), {"x": x}), module(x))


def test_what_is_assigned_part_by_part_is_joined_once() -> None:
    """As DeepSeek's queries and keys are: the empty tensor that they begin with is neither made nor joined."""

    def assigned(h: Tensor) -> Tensor:
        whole = h.new_empty(len(h), 3 * WIDTH)
        whole[:, :WIDTH], whole[:, WIDTH:] = h, torch.cat([2 * h, 3 * h], dim=1)
        return whole

    module, x = Changing(assigned), torch.randn(4, WIDTH)
    model = trace(module, (x,), training=True)
    ops = [node.op for node in (*model.constants, *(node for block in model.blocks for node in block.nodes))]
    assert "aten.full.default" not in ops and "aten.slice.Tensor" not in ops and ops.count("aten.cat.default") == 2
    torch.testing.assert_close(interpret(model, dict(module.named_parameters()), {"x": x}), module(x))


def rows_of_zeros(h: Tensor) -> Tensor:
    """As the gated delta rule of Qwen3-Next puts its chunks together."""
    found, state = torch.zeros_like(h), h[:, 0] * 0
    for at in range(WIDTH):
        state = torch.tanh(state + h[:, at])
        found[:, at] = state
    return found


def rows_from_behind(h: Tensor) -> Tensor:
    found, state = torch.ones_like(h), h[:, 0] * 0
    for at in reversed(range(1, WIDTH)):
        state = torch.tanh(state + h[:, at])
        found[:, at] = state
    return found


@pytest.mark.parametrize(("loop", "parts"), [(rows_of_zeros, WIDTH), (rows_from_behind, WIDTH)])
def test_what_a_loop_assigns_is_joined_once(loop: Callable[[Tensor], Tensor], parts: int) -> None:
    """Qwen3-Next's loop over 64 chunks joined 63 tensors of all chunks, and read 62 of zeros, counted as 2 GB in each
    layer and row."""
    module, x = Changing(loop), torch.randn(4, WIDTH)
    model = trace(module, (x,), training=True)
    nodes = (*model.constants, *(node for block in model.blocks for node in block.nodes))
    (joined,) = (node for node in nodes if node.op == "aten.cat.default")
    assert len(joined.operands) == parts
    torch.testing.assert_close(interpret(model, dict(module.named_parameters()), {"x": x}), module(x))


def test_what_is_read_between_is_kept() -> None:
    """A part that is read before the next is assigned is that of the tensor as it was then."""

    def loop(h: Tensor) -> Tensor:
        found = torch.zeros_like(h)
        for at in range(WIDTH):
            found[:, at] = h[:, at] + found[:, :at].sum(1)
        return found

    module, x = Changing(loop), torch.randn(4, WIDTH)
    model = trace(module, (x,), training=True)
    torch.testing.assert_close(interpret(model, dict(module.named_parameters()), {"x": x}), module(x))


def test_a_buffer_put_in_the_place_of_another() -> None:
    module, x = Exchanged(), torch.randn(4, WIDTH)
    model = trace(module, (x,), training=True)
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    for _ in range(2):
        torch.testing.assert_close(interpret(model, state, {"x": x}), module(x).detach())
    torch.testing.assert_close(state, dict(module.state_dict()))


def test_an_operator_in_place_is_the_one_that_takes_the_same() -> None:
    assert out_of_place("aten.pow_.Scalar") == "aten.pow.Tensor_Scalar"
    assert out_of_place("aten.relu_.default") == "aten.relu.default"
    assert out_of_place("aten.normal_.default") is None
    assert (out_of_place("aten.div.out"), out_of_place("aten.mv.out")) == ("aten.div.Tensor", "aten.mv.default")


@lru_cache(maxsize=4)
def remembered(size: int) -> Tensor:
    return torch.arange(size).float()


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) * remembered(WIDTH)).mean()


def test_what_functions_remember_is_forgotten_before_a_trace_and_after() -> None:
    module, x = Remembering(), torch.randn(4, WIDTH)
    expected = module(x)
    model = trace(module, (x,), training=True)
    torch.testing.assert_close(interpret(model, dict(module.named_parameters()), {"x": x}), expected)
    assert torch.equal(module(x), expected)
