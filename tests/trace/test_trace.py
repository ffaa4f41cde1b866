"""The traced model computes what the module computes: loss and every gradient, in float64, for the whole zoo."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Olmo3Config,
    Olmo3ForCausalLM,
)

from autoplan.ir.graph import Model
from autoplan.trace.builder import Builder
from autoplan.trace.passes.literals import literal
from autoplan.trace.passes.precision import in_precision, widened
from autoplan.trace.pipeline import trace
from autoplan.trace.repeats.finding import find_runs
from tests.support import zoo
from tests.support.interpret import interpret
from tests.support.sampling import slow

torch.set_num_threads(1)


def doubled(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def named(batch: zoo.Batch, model: Model) -> dict[str, torch.Tensor]:
    values = batch.values() if isinstance(batch, dict) else batch
    return {v.name: doubled(value) for v, value in zip(model.batch, values, strict=True)}


def eager(module: nn.Module, batch: zoo.Batch, loss_fn: zoo.LossFn) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients of the module itself, in float64 throughout."""
    module = module.double()
    with widened():
        if isinstance(batch, dict):
            loss = module(**{k: doubled(v) for k, v in batch.items()}).loss
        else:
            assert loss_fn is not None
            loss = loss_fn(module(doubled(batch[0])), *map(doubled, batch[1:]))
        loss.backward()
    return loss.detach(), {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def traced_run(
    model: Model, module: nn.Module, batch: zoo.Batch
) -> tuple[torch.Tensor, dict[str, torch.Tensor], Mapping[str, torch.Tensor]]:
    """The same of the traced model, in float64, on the module's values; and its buffers afterwards."""
    state = {name: value.detach().double().requires_grad_() for name, value in module.named_parameters()}
    buffers = {name: doubled(value.detach().clone()) for name, value in module.named_buffers()}
    loss = interpret(in_precision(model, "fp64"), {**state, **buffers}, named(batch, model))
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in state.items() if p.grad is not None}, buffers


def assert_equal(name: str, batch: zoo.Batch, *, from_meta: bool = False) -> Model:
    module, _, loss_fn = zoo.small(name)
    source = zoo.small(name, device="meta")[0] if from_meta else module
    return assert_traced(module, trace(source, batch, loss_fn=loss_fn, training=True), batch, loss_fn)


def assert_traced(module: nn.Module, model: Model, batch: zoo.Batch, loss_fn: zoo.LossFn) -> Model:
    loss, gradients, buffers = traced_run(model, module, batch)
    expected, wanted = eager(module, batch, loss_fn)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert gradients.keys() == wanted.keys()
    for key, gradient in wanted.items():
        assert (gradients[key] - gradient).norm() <= 1e-11 * gradient.norm().clamp(min=1e-3), key
    after = dict(module.named_buffers())
    for buffer in model.buffers:
        torch.testing.assert_close(buffers[buffer.name], after[buffer.name], rtol=1e-12, atol=0)
    return model


@pytest.mark.parametrize("name", zoo.NAMES)
@pytest.mark.parametrize("from_meta", [False, True])
def test_loss_and_gradients_equal_the_module(name: str, from_meta: bool) -> None:
    assert_equal(name, zoo.batch_of(name), from_meta=from_meta)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_a_padding_mask_equals_the_module(name: str) -> None:
    batch = zoo.batch_of(name)
    assert isinstance(batch, dict)
    mask = (torch.arange(zoo.SEQUENCE)[None, :] < torch.tensor([16, 9, 16, 12, 5, 16, 7, 16])[:, None]).long()
    batch["labels"] = batch["labels"].masked_fill(mask == 0, -100)
    model = assert_equal(name, {**batch, "attention_mask": mask})
    assert "attention_mask" in {ref for node in model.constants for ref in node.operands}


SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 96}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def falcon() -> nn.Module:
    """It branches on the name of its attention instead of looking it up."""
    return FalconForCausalLM(FalconConfig(**SIZES, **SPECIAL))  # type: ignore[arg-type]


def gemma3() -> nn.Module:
    """Two kinds of layers, which differ in the mask and the rotary table that they read."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 3
    grouped = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4, "layer_types": kinds}
    sizes = {**SIZES, **SPECIAL, **grouped, "num_hidden_layers": 9, "intermediate_size": 64}
    return Gemma3ForCausalLM(Gemma3TextConfig(**sizes))  # type: ignore[arg-type]


def olmo3() -> nn.Module:
    """A layer that attends to everything follows three of a window: of those one is left out of the trace."""
    grouped = {"num_key_value_heads": 2, "sliding_window": 4}
    sizes = {**SIZES, **SPECIAL, **grouped, "num_hidden_layers": 4, "intermediate_size": 64}
    return Olmo3ForCausalLM(Olmo3Config(**sizes))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [falcon, gemma3, slow(olmo3)])
def test_models_that_attend_in_other_ways(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, batch = make().train(), zoo.batch_of("llama")
    assert find_runs(module)
    assert_traced(module, trace(module, batch, training=True), batch, None)


def test_causality_is_an_argument_where_nothing_is_padded() -> None:
    module, batch, _ = zoo.small("llama")
    model = trace(module, batch, training=True)
    attention = [n for b in model.blocks for n in b.nodes if n.op == "aten.scaled_dot_product_attention.default"]
    assert [(node.args[3], node.args[5], dict(node.kwargs)["enable_gqa"]) for node in attention] == [(None, True, True)]
    assert not any(node.type.dtype == "bool" for node in model.constants)


class Shifting(nn.Module):
    """Assigns to slices of a tensor that it makes, as models shift their targets to the right."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        shifted = ids.new_zeros(ids.shape)
        shifted[..., 1:] = ids[..., :-1].clone()
        shifted[..., 0] = 3
        shifted[1:, 2:4] = 5
        shifted.masked_fill_(shifted == 7, 1)
        return self.table(shifted).square().mean()


class Rereading(Shifting):
    """Reads a slice before and after it is assigned to."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        shifted = ids.new_zeros(ids.shape)
        part = shifted[..., 1:]
        part[...] = ids[..., :-1]
        return self.table(shifted + part.sum(1, keepdim=True) % 2).square().mean()


@pytest.mark.parametrize("kind", [Shifting, Rereading])
def test_assigning_to_slices(kind: type[nn.Module]) -> None:
    module, ids = kind(), torch.randint(8, (4, 6), generator=torch.Generator().manual_seed(1))
    model = trace(module, (ids,), training=True)
    got = interpret(model, dict(module.named_parameters()), {"ids": ids})
    torch.testing.assert_close(got, module(ids))


class Filling(nn.Module):
    """Makes tensors by every kind of factory, each of more bytes than a machine has."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = (x.shape[0], 1 << 20, 1 << 20)
        made = [
            torch.zeros(large), torch.full(large, 2.0), x.new_zeros(large), x.new_empty(large), x.new_full(large, 1.0),
            torch.arange(1 << 41)[None, None, : 1 << 20].float(),
        ]  # fmt: skip
        made += [torch.ones_like(made[0]), torch.full_like(made[1], 3.0)]
        return self.fc(x).sum() + torch.stack([y[:, 0, 0].sum() for y in made]).sum()


def test_what_a_factory_makes_takes_no_memory_in_the_trace() -> None:
    model = trace(Filling(), (torch.empty(8, 4, device="meta"),), training=True)
    assert (8, 1 << 20, 1 << 20) in {node.type.shape for node in model.constants}


@pytest.mark.parametrize("numbers", [torch.full((1 << 24,), 2.0), torch.arange(5, 5 + 3 * (1 << 24), 3)])
def test_many_numbers_that_an_operator_makes_become_that_operator(numbers: torch.Tensor) -> None:
    builder = Builder()
    made = literal(builder, numbers.view(1 << 12, -1))
    assert made is not None and builder.shape(made) == (1 << 12, 1 << 12)
    assert len(builder.nodes) <= 2
