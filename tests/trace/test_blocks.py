"""The chain: what repeats shares a block, cuts carry gradients, and what was traced short is the whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoplan.ir.graph import Model
from autoplan.trace import pipeline
from autoplan.trace.pipeline import trace
from autoplan.trace.repeats.finding import find_runs, runs
from tests.support import zoo
from tests.support.sampling import slow
from tests.support.traced import assert_traced

torch.set_num_threads(1)
SEGMENTS = {"llama": 6, "gpt2": 6, "bert": 7, "vit": 6, "mlp": 4, "convnet": 4}
BLOCKS = {"llama": 3, "gpt2": 3, "bert": 4, "vit": 3, "mlp": 3, "convnet": 4}


@pytest.fixture(scope="module")
def traced() -> dict[str, Model]:
    models = {}
    for name in zoo.NAMES:
        module, batch, loss_fn = zoo.small(name, device="meta")
        models[name] = trace(module, batch, loss_fn=loss_fn, training=True)
    return models


@pytest.mark.parametrize("name", zoo.NAMES)
def test_repeats_share_a_block(traced: dict[str, Model], name: str) -> None:
    assert (len(traced[name].segments), len(traced[name].blocks)) == (SEGMENTS[name], BLOCKS[name])


@pytest.mark.parametrize("name", zoo.NAMES)
def test_the_chain_fits_together(traced: dict[str, Model], name: str) -> None:
    """Each segment takes what the one before gives, everything that crosses carries a gradient, names are one each."""
    model = traced[name]
    carried: list = []
    state = {value.name for value in (*model.parameters, *model.buffers, *model.batch)}
    constants = {node.name for node in model.constants}
    assert len({b.name for b in model.blocks}) == len(model.blocks)
    for segment in model.segments:
        block = model.blocks[segment.block]
        types = block.types()
        assert [v.type for v in block.inputs] == carried
        assert {v.name for v in block.inputs} <= block.carries_gradient()
        carried = [types[name] for name in block.outputs]
        assert set(block.outputs) <= block.carries_gradient()
        assert {*segment.parameters, *segment.buffers} <= state and set(segment.externals) <= state | constants
        assert block.name.isidentifier() and all(node.name.isidentifier() for node in block.nodes)
        entering = (*block.inputs, *block.externals, *block.parameters, *block.buffers, *block.nodes)
        assert len({value.name for value in entering}) == len(entering)
        assert constants.isdisjoint(node.name for node in block.nodes if node.name not in constants)
    assert [kind.shape for kind in carried] == [()]


def full_depth(module: nn.Module, batch: zoo.Batch, loss_fn: zoo.LossFn) -> Model:
    flat = pipeline.flat_of(module, batch, loss_fn, True, "float32", ())
    return pipeline.in_order(pipeline.fold(flat), module, True)


@pytest.mark.parametrize("name", ["llama", slow("gpt2"), slow("bert"), "vit"])
def test_two_repeats_expanded_are_the_whole(traced: dict[str, Model], name: str) -> None:
    module, batch, loss_fn = zoo.small(name, device="meta")
    assert [(run.start, run.period, run.count) for run in find_runs(module)] == [(0, 1, 4)]
    assert traced[name] == full_depth(module, batch, loss_fn)


@pytest.mark.slow
def test_a_stack_whose_last_layer_hands_on_less_is_expanded_too() -> None:
    """T5's layers hand on the bias of positions, the last of each stack doesn't."""
    with torch.device("meta"):
        module = zoo.t5(layers=5)
    assert [(run.start, run.period, run.count) for run in find_runs(module)] == [(1, 1, 4), (1, 1, 4)]
    model = trace(module, zoo.batch_of("t5"), training=True)
    assert model == full_depth(module, zoo.batch_of("t5"), None)
    middle = [s.block for s in model.segments if s.path.split(".")[-1] in ("1", "2", "3")]
    assert [middle.count(b) for b in dict.fromkeys(middle)] == [3, 3]
    assert [len(model.blocks[s.block].inputs) for s in model.segments] == [0, 1, 2, 2, 2, 2, 1, 2, 3, 3, 3, 3, 1]


def test_a_u_net_is_cut_at_every_level_and_its_skips_pass_the_cuts() -> None:
    with torch.device("meta"):
        module = zoo.example("unet").make_model(width=8, levels=4, groups=4)
    batch = (torch.empty(4, 3, 32, 32, device="meta"), torch.empty(4, 32, 32, dtype=torch.int64, device="meta"))
    model = trace(module, batch, loss_fn=F.cross_entropy, training=True)
    crossing = [len(model.blocks[s.block].inputs) for s in model.segments]
    assert len(model.segments) >= 8 and max(crossing) == 4
    assert crossing == sorted(crossing[:5]) + sorted(crossing[5:], reverse=True)


def test_repeats_of_two_modules_expanded_are_the_whole() -> None:
    layers = [module for _ in range(5) for module in (nn.Linear(8, 8), nn.Tanh())]
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), *layers, nn.Linear(8, 2))
    batch = (torch.zeros(4, 4), torch.zeros(4, 2))
    assert [(run.start, run.period, run.count) for run in find_runs(module)] == [(1, 2, 5)]
    model = trace(module, batch, loss_fn=F.mse_loss, training=True)
    assert model == full_depth(module, batch, F.mse_loss)
    assert len(model.segments) == 7 and len(model.blocks) == 3


def test_runs_leave_out_the_most() -> None:
    assert list(runs("aaaa")) == [(0, 1, 4)]
    assert list(runs("xababababy")) == [(1, 2, 4)]
    assert list(runs("aabaabaab")) == [(0, 3, 3)]
    assert list(runs("aaabaaabaaab")) == [(0, 4, 3)]
    assert list(runs("aabb")) == []
    assert list(runs("")) == []


class Chain(nn.Module):
    """Layers of one kind, of which ``forward`` treats the one at a position in its own way."""

    def __init__(self, depth: int, special: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        self.special = special


class Counting(Chain):
    """Its source doesn't show that it does: only the graph of two repeats can."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = self.special
        for layer in self.layers:
            y = layer(x)
            x = y.tanh() if left == 0 else y.relu()
            left -= 1
        return x


class Enumerating(Chain):
    """Its graph shows it in no two repeats: only the source can."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            y = layer(x)
            x = y.tanh() if index % 4 == self.special else y.relu()
        return x


class Measuring(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu() / len(self.layers)
        return x


class Skipping(Chain):
    """The first layer's result is added to every later one's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.layers[0](x)
        x = first.relu()
        for layer in self.layers[1:]:
            x = layer(x).relu() + first
        return x


@pytest.mark.parametrize("module", [Counting(6, 0), Counting(6, 1), Enumerating(6, 3), Measuring(6, 0)])
def test_repeats_that_are_told_apart_are_all_traced(module: Chain) -> None:
    model = assert_traced(module)
    assert [s.path for s in model.segments] == [f"layers.{i}" for i in range(6)]


def test_a_value_that_outlives_its_segment_is_passed_through() -> None:
    model = assert_traced(Skipping(6, 0))
    assert len(model.segments) == 6
    assert any(set(block.outputs) & {v.name for v in block.inputs} for block in model.blocks)


class Plain(nn.Module):
    """No list to cut by: residual branches may not be cut, what lies between them may."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x).relu()
        x = x + self.c(self.b(self.norm(x)).relu())
        return self.d(x)


def test_a_module_without_lists_is_cut_where_one_value_is_alive() -> None:
    module = Plain()
    model = trace(module, (torch.randn(4, 8), torch.randn(4, 8)), loss_fn=F.mse_loss, training=True)
    assert [s.parameters for s in model.segments] == [
        ("a.weight", "a.bias"),
        ("norm.weight", "norm.bias", "b.weight", "b.bias", "c.weight", "c.bias"),
        ("d.weight", "d.bias"),
    ]
    assert [model.blocks[s.block].name for s in model.segments] == ["A", "NormBC", "D"]
