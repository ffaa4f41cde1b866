"""State that no graph holds: how it is seen to change, and what of it is let through."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autoplan.errors import TraceError
from autoplan.trace.checks.hooks import hook_notes
from autoplan.trace.checks.python_state import changed, mutated, random_states, state_of
from autoplan.trace.pipeline import trace
from tests.support.traced import assert_traced

X = torch.randn(4, 8)


def holding(**attributes: Any) -> nn.Module:
    module = nn.Sequential(nn.Linear(8, 8))
    for name, value in attributes.items():
        setattr(module[0], name, value)
    return module


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (1, lambda m: setattr(m, "held", 2)),
        ([1, [2]], lambda m: m.held[1].append(3)),
        ({"a": {1}}, lambda m: m.held["a"].add(2)),
        (SimpleNamespace(inner=SimpleNamespace(n=0)), lambda m: setattr(m.held.inner, "n", 1)),
        (torch.ones(2), lambda m: m.held.add_(1)),
        (torch.ones(2), lambda m: setattr(m, "held", m.held + 1)),
        (random.Random(0), lambda m: m.held.random()),
        (np.random.default_rng(0), lambda m: m.held.random()),
        (np.random.RandomState(0), lambda m: m.held.rand()),
        (None, lambda m: setattr(m, "weight", nn.Parameter(m.weight.detach().clone()))),
        (None, lambda m: m.register_buffer("more", torch.ones(1))),
    ],
)
def test_a_change_is_seen_and_nothing_else(value: Any, change: Callable[[Any], object]) -> None:
    module = holding(held=value, function=len, other=nn.Linear(2, 2))
    before = state_of(module)
    module(X)
    assert changed(before, state_of(module)) == []
    change(module[0])
    (name,) = changed(before, state_of(module))
    assert name.startswith("0.")


def test_only_a_tensor_changed_in_place_is_mutated() -> None:
    module = holding(held=[torch.ones(2)], other=torch.ones(2))
    before = state_of(module)
    module[0].other = torch.zeros(2)
    assert mutated(before, state_of(module)) == []
    module[0].held[0].add_(1)
    assert mutated(before, state_of(module)) == ["0.held"]


def test_what_holds_itself_ends() -> None:
    held: list[object] = []
    held.append(held)
    before = state_of(module := holding(held=held))
    held.append(1)
    assert changed(before, state_of(module)) == ["0.held"]


def test_what_lies_deep_is_as_it_was_until_it_changes() -> None:
    held = SimpleNamespace(leaf=0)
    for _ in range(8):
        held = SimpleNamespace(inner=held, more=[SimpleNamespace(n=1), (SimpleNamespace(n=[2]),)])
    module = holding(held=held)
    before = state_of(module)
    assert all(state_of(module) == before for _ in range(20))
    held.inner.inner.more[0].n = 2
    assert changed(before, state_of(module)) == ["0.held"]


def test_draws_show_in_the_random_states() -> None:
    before = random_states()
    assert random_states() == before
    random.random()
    assert [name for name, state in random_states().items() if state != before[name]] == ["random"]
    np.random.rand()
    assert [name for name, state in random_states().items() if state != before[name]] == ["random", "numpy.random"]


class Caching(nn.Module):
    """A table that is made in the first forward and read in the following ones."""

    def __init__(self, make: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.table, self.make = nn.Linear(8, 8), None, make

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = self.make(self.layer, x)
        return self.layer(x) * self.table


class Kept(nn.Module):
    """The result of the step before, times zero."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.layer, self.before, self.factor = nn.Linear(8, 8), None, factor

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        found = y if self.before is None else y + self.factor * self.before
        self.before = y.detach()
        return found


class Named(nn.Module):
    """Notes what it was given, once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(8, 8), None

    def forward(self, x: Tensor) -> Tensor:
        self.kind = self.kind or f"{x.ndim} dims"
        return self.layer(x)


@pytest.mark.parametrize("module", [Named(), Kept(0.0), Caching(lambda layer, x: torch.arange(8.0))])
def test_state_that_is_of_no_consequence_is_let_through(module: nn.Module) -> None:
    assert_traced(module)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (Kept(0.5), "before"),
        (Caching(lambda layer, x: layer.weight.detach().sum(0)), "table"),
        (Caching(lambda layer, x: x.mean(0)), "table"),
    ],
)
def test_state_of_consequence_is_refused(module: nn.Module, name: str) -> None:
    with pytest.raises(TraceError, match=f"{name}: forward changes this attribute"):
        trace(module, (X, X), loss_fn=nn.functional.mse_loss, training=True)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_model_s_own_checkpointing_is_told(reentrant: bool) -> None:
    """What it saves is the plan's to decide; its values are those without."""

    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(lambda h: self[2](self[1](h)), self[0](x), use_reentrant=reentrant)

    model = Checkpointed(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    training = trace(model, (X, X), loss_fn=nn.functional.mse_loss, training=True)
    assert [note for note in training.notes if "torch.utils.checkpoint isn't followed" in note] == list(training.notes)
    assert len(training.notes) == 1 and "recompute='full'" in training.notes[0]
    assert not trace(model, (X,), training=False).notes


def test_a_model_s_own_offload_is_told() -> None:
    class Offloading(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autograd.graph.save_on_cpu():
                return super().forward(x)

    model = Offloading(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    training = trace(model, (X, X), loss_fn=nn.functional.mse_loss, training=True)
    assert len(training.notes) == 1 and "save_on_cpu isn't followed" in training.notes[0]
    assert not trace(model, (X,), training=False).notes


@pytest.mark.parametrize("seed", [lambda: torch.manual_seed(0), lambda: torch.set_rng_state(torch.get_rng_state())])
def test_a_seed_that_forward_sets_is_refused(seed: Callable[[], object]) -> None:
    """On one device each step would drop the same elements."""

    class Seeding(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            seed()
            return super().forward(x)

    with pytest.raises(TraceError, match="forward sets torch's random state"):
        trace(Seeding(nn.Linear(8, 8), nn.Dropout(0.5)), (X, X), loss_fn=nn.functional.mse_loss, training=True)


class Turned(nn.Linear):
    """Its files hold the weight the other way round."""

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: Any) -> None:
        state_dict[f"{prefix}weight"] = state_dict[f"{prefix}weight"].T
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Renamed(nn.Linear):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {f"model.{name}": value for name, value in super().state_dict(*args, **kwargs).items()}


def hooked() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.register_load_state_dict_pre_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Turned(8, 8), "load_state_dict() of 0 is its own, and isn't called: load_weights takes values"),
        (lambda: Renamed(8, 8), "state_dict() of 0 is its own, and isn't called: full_state_dict"),
        (hooked, "load_state_dict() of 0 is its own"),
    ],
)
def test_how_a_module_gives_and_takes_its_state_is_told(make: Callable[[], nn.Module], said: str) -> None:
    model = nn.Sequential(make(), nn.BatchNorm1d(8), nn.MultiheadAttention(8, 2))
    (note,) = hook_notes(model)
    assert note.startswith(said)
