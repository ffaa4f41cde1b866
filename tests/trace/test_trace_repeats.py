"""What forward finds by a layer's place is that layer's, whichever layers are traced: the loss is the module's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autoplan.trace.pipeline import from_repeats
from autoplan.trace.repeats.finding import find_runs, kept_children
from autoplan.trace.repeats.per_child import at_both_places
from tests.support.traced import assert_traced

torch.set_num_threads(1)


class Layers(nn.Module):
    """Six layers of one kind as modules; ``forward`` does with some of them what their entries say."""

    def __init__(self, kinds: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in kinds)
        self.kinds = list(kinds)


class Indexed(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = {"t": torch.tanh, "r": torch.relu}[self.kinds[index]](layer(x))
        return x


class Zipped(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, kind in zip(self.layers, self.kinds, strict=False):
            x = layer(x).tanh() if kind == "t" else layer(x).relu()
        return x


class Numbered(Layers):
    """Each layer looks up what it is by its own number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = iter(range(99))
        for layer in self.layers:
            x = layer(x).tanh() if self.kinds[next(numbers)] == "t" else layer(x).relu()
        return x


class Elsewhere(Layers):
    """By an index into what says nothing before it is run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        functions = [torch.tanh if kind == "t" else torch.relu for kind in "".join(self.kinds)]
        for index, layer in enumerate(self.layers):
            x = functions[index](layer(x))
        return x


class Sisters(nn.Module):
    """A list beside another, whose children are of other kinds: one of their runs is no run of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.activations = nn.ModuleList(nn.Tanh() if index in (1, 5) else nn.ReLU() for index in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, activation in zip(self.layers, self.activations, strict=False):
            x = activation(layer(x))
        return x


class Handing(nn.Module):
    """T5's way: each layer hands on what the first one made, and nobody reads what the last one hands on."""

    class Layer(nn.Module):
        def __init__(self, *, makes: bool) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.bias = nn.Linear(8, 8) if makes else None

        def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
            bias = torch.relu(self.bias(x)) if bias is None and self.bias is not None else bias
            return torch.tanh(self.linear(x) + bias), bias

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Handing.Layer(makes=number == 0) for number in range(6))
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None
        for layer in self.layers:
            x, bias = layer(x, bias)
        return self.last(x)


def test_the_last_layer_may_hand_on_less() -> None:
    torch.manual_seed(0)
    found = from_repeats(Handing(), {"x": torch.randn(4, 8)}, None, False, "float32", False)
    assert found is not None, "all layers were traced, of which three are enough"
    assert len({s.block for s in found.segments if s.path.startswith("layers")}) == 3
    assert_traced(Handing())


@pytest.mark.parametrize("kinds", ["rrrt", "rrrtrr", "tttrrr", "rrrtrrrt"])
@pytest.mark.parametrize("made", [Indexed, Zipped, Numbered, Elsewhere])
def test_entries_are_read_at_a_layers_place(made: type[Layers], kinds: str) -> None:
    torch.manual_seed(0)
    assert_traced(made(kinds))


def test_lists_that_run_beside_one_another_stay_so() -> None:
    torch.manual_seed(0)
    module = Sisters()
    assert find_runs(module) and kept_children(module, find_runs(module)) == ()
    assert_traced(module)


def test_layers_that_repeat_are_left_out_where_their_entries_can_be_told() -> None:
    (kept,) = kept_children(Indexed("rrrt"), find_runs(Indexed("rrrt")))
    assert kept.children == (0, 1, 3)


def test_entries_stand_at_both_places_or_nowhere() -> None:
    assert at_both_places("aaab", (0, 1, 3)) == ["a", "a", "b", "b"]
    assert at_both_places("abab", (0, 1, 2, 3)) == list("abab")
    assert at_both_places("aaabb", (0, 1, 3, 4)) == list("aabbb")
    assert at_both_places("aaabc", (0, 1, 3, 4)) is None, "the fourth place is the fourth layer's and the fifth's"
