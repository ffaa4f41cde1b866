"""Branches on values: those that a trace takes without reading them, and those that it refuses."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from autoplan.errors import TraceError
from autoplan.ir.graph import Model
from autoplan.trace.pipeline import trace
from tests.support import brought_parts as _parts  # noqa: F401  adds its models
from tests.support.brought import MODELS

X = torch.zeros(4, 8)
Forward = Callable[[nn.Module, Tensor], Tensor]


class Calls(nn.Module):
    """A linear layer within a forward that is given."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.fc, self.written, self.limit = nn.Linear(8, 8), forward, 3.0

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


def traced(forward: Forward) -> Model:
    return trace(Calls(forward), (X,), training=True)


def ops(model: Model) -> list[str]:
    return [node.op for block in model.blocks for node in block.nodes]


def raises(net: nn.Module, x: Tensor) -> Tensor:
    if x.max() > 5:
        raise ValueError("too large")
    return net.fc(x).sum()


def raises_otherwise(net: nn.Module, x: Tensor) -> Tensor:
    if x.ndim == 2 and not (x.min() < -5 or x.max() > 5):
        y = net.fc(x).sum()
    else:
        raise ValueError("too large")
    return y


def mends(net: nn.Module, x: Tensor) -> Tensor:
    y = net.fc(x)
    if torch.isnan(y).any() | ~torch.isfinite(y).all():
        y = y.clamp(-1, 1)
    return y.sum()


def drops_nothing(net: nn.Module, x: Tensor) -> Tensor:
    if torch.rand([]) < 0.0 or random.random() < 0 or not random.uniform(2, 3) >= 2:
        x = x.cos()
    if torch.rand(1) >= 1.0 or not torch.rand([]) <= 1 or torch.rand([]) > 1.5:
        x = x.sin()
    return net.fc(x).sum()


def drops_at_zero(net: nn.Module, x: Tensor) -> Tensor:
    """As peft's LoHa and LoKr write it, with no probability given."""
    return net.fc(x).sum() if torch.rand(1) > 0.0 else x.cos().sum()


def draws(net: nn.Module, x: Tensor) -> Tensor:
    """As autoencoders and policies write it: torch.distributions checks what it is given."""
    normal, given = Normal(net.fc(x), 0.5), Normal(torch.zeros_like(x), 1.0)
    return normal.log_prob(x).sum() + kl_divergence(normal, given).sum()


@pytest.fixture(autouse=True)
def checks_of_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.distributions checks values until torch.compile is first called in a process."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


@pytest.mark.parametrize("forward", [raises, raises_otherwise, mends, drops_nothing, drops_at_zero, draws])
def test_the_way_of_sound_values_is_taken(forward: Forward) -> None:
    model = traced(forward)
    assert "aten.linear.default" in ops(model)
    assert not {"aten.clamp.default", "aten.cos.default", "aten.sin.default"} & set(ops(model))
    told = " ".join(model.notes)
    assert ("test_trace_branches.py:" in told) == (forward is not drops_nothing)


@pytest.mark.parametrize(("forward", "note"), [(raises, "forward's check of values isn't made: "),
                                               (mends, "all numbers are taken to be finite"),
                                               (draws, "Normal(net.fc(x), 0.5), Normal(torch.zeros_like(x), 1.0)"),
                                               (drops_at_zero, "is taken to be above 0")])  # fmt: skip
def test_what_was_taken_is_noted(forward: Forward, note: str) -> None:
    assert any(note in one for one in traced(forward).notes)


def test_assertions_are_checks() -> None:
    """In a module of its own: pytest writes those of a test anew."""
    module, batch, _ = MODELS["checking"]()
    told = trace(module, batch, training=True).notes
    assert sum("assert not (labels < 0).any()" in one and "check of values" in one for one in told) == 1


def branches(net: nn.Module, x: Tensor) -> Tensor:
    return net.fc(x).sum() if x.max() > 5 else net.fc(x).mean()


def raises_both_ways(net: nn.Module, x: Tensor) -> Tensor:
    if x.max() > 5:
        raise ValueError("too large")
    else:
        raise TypeError("too small")


def finite_or_large(net: nn.Module, x: Tensor) -> Tensor:
    y = net.fc(x)
    if torch.isfinite(y).all() & (y.max() > 5):
        y = y.clamp(-1, 1)
    return y.sum()


def drops_some(net: nn.Module, x: Tensor) -> Tensor:
    return net.fc(x).sum() if torch.rand([]) < 0.5 else x.sum()


def in_a_list(net: nn.Module, x: Tensor) -> Tensor:
    if x.max() not in (0.0, 1.0):
        raise ValueError("neither")
    return net.fc(x).sum()


def named_first(net: nn.Module, x: Tensor) -> Tensor:
    bad = not x.max() < 5
    if bad:
        return net.fc(x).mean()
    return net.fc(x).sum()


def finite_and_then_large(net: nn.Module, x: Tensor) -> Tensor:
    y = net.fc(x)
    good = torch.isfinite(y).all()
    good &= (x > 5).any()
    return y.sum() if good else y.mean()


def nan_or_written(net: nn.Module, x: Tensor) -> Tensor:
    y = net.fc(x)
    bad = torch.isnan(y)
    bad[0] = x[0] > 5
    return y.mean() if bad.any() else y.sum()


def drawn_around_zero(net: nn.Module, x: Tensor) -> Tensor:
    drawn = torch.rand([])
    drawn.mul_(2).sub_(1)
    return net.fc(x).sum() if drawn < 0 else x.sum()


@pytest.mark.parametrize("forward", [branches, raises_both_ways, finite_or_large, drops_some, in_a_list, named_first,
                                     finite_and_then_large, nan_or_written, drawn_around_zero])  # fmt: skip
def test_what_only_values_tell_is_refused(forward: Forward) -> None:
    with pytest.raises(TraceError, match="depends on a tensor's values"):
        traced(forward)


def compares_a_half(net: nn.Module, x: Tensor) -> Tensor:
    return net.fc(x).sum() if random.random() < 0.5 else x.sum()


def scales(net: nn.Module, x: Tensor) -> Tensor:
    return net.fc(x).sum() * random.uniform(1, 2)


def chooses(net: nn.Module, x: Tensor) -> Tensor:
    return net.fc(x).sum() * random.choice([1, 2])


@pytest.mark.parametrize("forward", [compares_a_half, scales, chooses])
def test_a_draw_of_python_that_matters_is_refused(forward: Forward) -> None:
    with pytest.raises(TraceError, match="draws from random"):
        traced(forward)


def moves(net: nn.Module, x: Tensor) -> Tensor:
    net.fc = net.fc.to(torch.float32).to("cpu")
    return net.fc(x).sum()


def test_a_module_that_is_moved_to_where_it_is() -> None:
    assert "aten.linear.default" in ops(traced(moves))


def test_data_gives_no_gradient_and_can_t_be_written() -> None:
    def reads(net: nn.Module, x: Tensor) -> Tensor:
        return (x @ net.fc.weight.data + net.fc.bias).sum()

    def writes(net: nn.Module, x: Tensor) -> Tensor:
        net.fc.weight.data.clamp_(-1, 1)
        return net.fc(x).sum()

    weight = next(parameter for parameter in traced(reads).parameters if parameter.name == "fc.weight")
    assert not weight.trainable and "aten.detach.default" in ops(traced(reads))
    with pytest.raises(TraceError, match=r"fc\.weight.*changes it in place"):
        traced(writes)
