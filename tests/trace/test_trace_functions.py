"""What a graph can't hold: a backward that isn't the forward's derivative is written out or refused, sizes that values
tell are refused, assertions on values are left out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from autoplan.errors import TraceError
from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret
from tests.support.own_backwards import Straight


class Square(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Scaled(Function):
    """With the context set up apart, an operand that isn't a tensor, and an integer one."""

    @staticmethod
    def forward(x: Tensor, rows: Tensor, factor: float) -> Tensor:
        return x[rows] * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.shape, ctx.rows, ctx.factor = inputs[0].shape, inputs[1], inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.new_zeros(ctx.shape).index_add(0, ctx.rows, gradient * ctx.factor), None, None


class Root(Function):
    """Its derivative is bounded where the root's isn't finite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient / (4 * x).clamp(min=1e-30).sqrt()


class MaskedSoftmax(Function):
    """Changes in place what torch would need for the derivative, and itself keeps what comes of it, as sew-d's does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, hidden: Tensor) -> Tensor:
        result = torch.softmax(x.masked_fill(hidden.bool(), torch.finfo(x.dtype).min), -1)
        result.masked_fill_(hidden.bool(), 0)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return result * (gradient - (gradient * result).sum(-1, keepdim=True)), None


class Clipping(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-1e3, 1e3)


class Failing(Straight):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise ValueError("not of these numbers")
        return x * 1


class Applying(nn.Module):
    def __init__(self, function: type[Function], *more: object) -> None:
        super().__init__()
        self.layer, self.function, self.more = nn.Linear(8, 8), function, more

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(self.layer(x), *self.more).mean()


ROWS, HIDDEN = torch.tensor([1, 0]), torch.tensor([1, 0, 0, 0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    "made",
    [Applying(Square), Applying(Scaled, ROWS, 3.0), Applying(Root), Applying(MaskedSoftmax, HIDDEN)],
)
def test_one_whose_backward_is_the_derivative_is_traced(made: nn.Module) -> None:
    assert trace(made, (torch.randn(4, 8),), training=True).segments


class Reversed(Scaled):
    """A backward of the other sign, which gathers in place."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.new_zeros(ctx.shape).index_add_(0, ctx.rows, gradient * -ctx.factor), None, None


class Hard(Straight):
    """A choice of the largest score, of which some may be masked."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return nn.functional.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)


class Masked(Applying):
    def forward(self, x: Tensor) -> Tensor:
        scores = self.layer(x).masked_fill(torch.arange(8) < 2, -math.inf)
        return (Hard.apply(scores) * x).mean()


class Hashed(Function):
    """Its forward is defined for small numbers alone, where its backward is another one, as YOSO's is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.acos(x @ x.mT) @ x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (gradient @ x.mT) @ x


class Undefined(Hashed):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.acos(2 + x.square()).nan_to_num() * x.detach()


class Doubled(Function):
    """In place, with a backward of another factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 5


class InPlace(Applying):
    """What the function changed is read under the name of before."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        changed = self.function.apply(hidden)
        return (hidden * hidden + changed).mean()


class Small(Applying):
    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(0.1 * self.layer(x).tanh()).square().mean()


OTHERS = [Applying(Straight), Applying(Reversed, ROWS, 3.0), Masked(Hard), Applying(Doubled), InPlace(Doubled)]


@pytest.mark.parametrize("made", [*OTHERS, Small(Hashed)])
def test_one_of_another_backward_is_traced_with_it(made: nn.Module) -> None:
    x = torch.randn(4, 8)
    model = trace(made, (x,), training=True)
    parameters = {name: value.detach().clone().requires_grad_() for name, value in made.named_parameters()}
    loss, wanted = interpret(model, parameters, {"x": x}), made(x)
    torch.testing.assert_close(loss, wanted, rtol=0, atol=0)
    found = torch.autograd.grad(loss, [*parameters.values()])
    torch.testing.assert_close(found, torch.autograd.grad(wanted, [*made.parameters()]))
    assert all(value.abs().sum() > 0 for value in found)


def test_one_whose_backward_is_not_linear_is_refused_by_name() -> None:
    with pytest.raises(TraceError, match=r"Clipping.apply.*isn't the derivative of its forward, nor linear"):
        trace(Applying(Clipping), (torch.randn(4, 8),), training=True)
    assert trace(Applying(Clipping), (torch.randn(4, 8),), training=False).segments, "no gradient is wanted"


def test_one_that_cannot_be_tried_is_refused_with_what_it_says() -> None:
    with pytest.raises(TraceError, match="not of these numbers"):
        trace(Applying(Failing), (torch.randn(4, 8),), training=True)
    with pytest.raises(TraceError, match="no finite derivative at any numbers"):
        trace(Applying(Undefined), (torch.randn(4, 8),), training=True)


def test_large_operands_are_tried_small_and_torchs_own_function_is_as_it_was() -> None:
    before = Function.__dict__["apply"]
    assert trace(Applying(Square), (torch.zeros(1 << 18, 8, device="meta"),), training=True).segments
    assert trace(Applying(Straight), (torch.zeros(1 << 18, 8, device="meta"),), training=True).segments
    with pytest.raises(TraceError, match="isn't the derivative"):
        trace(Applying(Clipping), (torch.zeros(1 << 18, 8, device="meta"),), training=True)
    assert Function.__dict__["apply"] is before


class Counting(nn.Module):
    """Parts whose sizes are told by values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.layer(x).split((x[:, 0] > 0).long().bincount(minlength=2).tolist())
        return first.mean() + second.square().mean()


class Asserting(Counting):
    """Reads values, and makes tensors of none, but nothing comes of it."""

    def forward(self, x: Tensor) -> Tensor:
        torch._check((x > 9).sum().item() <= x.numel())
        return self.layer(torch.cat([x.new_tensor([]), x, x[:0]], -2)).mean()


def test_an_assertion_on_values_is_left_out() -> None:
    module, x = Asserting(), torch.randn(4, 8)
    model = trace(module, (x,), training=True)
    torch.testing.assert_close(interpret(model, dict(module.named_parameters()), {"x": x}), module(x))


def test_sizes_that_follow_from_values_are_refused() -> None:
    with pytest.raises(TraceError, match="depends on a tensor's values"):
        trace(Counting(), (torch.randn(4, 8),), training=True)
