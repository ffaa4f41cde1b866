"""What a layer keeps: Korthikanti et al.'s formulas, and what PyTorch's autograd really keeps of layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.bench.closed_form.transformer.saved import RECOMPUTES, kept_bytes, layer_saved, layer_saved_bytes
from tests.oracles.korthikanti import transformer_layer_activation_bytes

UNFUSED = Recipe(fused_attention=False, compiled=True, micro_batch=3)
sizes = st.sampled_from([1, 2, 4, 8, 16])


@given(sizes, sizes, sizes, st.booleans(), st.sampled_from(["none", "selective"]))
def test_korthikanti(scale, heads, tensor, sequence_parallel, recompute):
    """LayerNorm, GELU, dropout and unfused attention in 16 bit: table 2, exactly."""
    model = Transformer(64 * heads * tensor, 2, heads * tensor, 128 * scale, 512, dropout=True)
    recipe = replace(UNFUSED, tensor=tensor, sequence_parallel=sequence_parallel, recompute=recompute)
    expected = transformer_layer_activation_bytes(
        model.sequence, 3, model.hidden, model.heads, tensor, sequence_parallel, recompute
    )
    assert layer_saved_bytes(model, recipe) == expected


def test_korthikanti_in_symbols():
    s, b, h, a = sympy.symbols("s b h a", positive=True)
    model = Transformer(h, 1, a, s, 1, dropout=True)
    ours = layer_saved_bytes(model, replace(UNFUSED, micro_batch=b, tensor=8))
    assert sympy.simplify(ours - s * b * h * (10 + sympy.Rational(24, 8) + 5 * a * s / (h * 8))) == 0
    full = layer_saved_bytes(model, replace(UNFUSED, micro_batch=b, recompute="full"))
    assert sympy.simplify(full - 2 * s * b * h) == 0


MODELS = (
    Transformer(512, 4, 8, 256, 1024, dropout=True),
    Transformer(512, 4, 8, 256, 1024, kv_heads=2, ffn=1408, gated=True, bias=False, norm="rms", positions="rotary"),
    Transformer(512, 4, 8, 256, 1024, gated=True, norm="rms", experts=8, top_k=2, expert_ffn=256),
)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("compiled", [False, True])
def test_more_recomputation_keeps_no_more(model, compiled):
    saved = layer_saved(model, Recipe(compiled=compiled))
    none, selective, operators, full = (kept_bytes(saved, recompute) for recompute in RECOMPUTES)
    assert none >= selective > operators > full > 0
    half = Recipe(compiled=compiled, recompute="full", recomputed_layers=0.5)
    assert layer_saved_bytes(model, half) == pytest.approx((none + full) / 2)


@pytest.mark.parametrize("model", MODELS)
@given(tensor=st.sampled_from([1, 2, 4]), recompute=st.sampled_from(RECOMPUTES))
def test_splitting_keeps_no_more(model, tensor, recompute):
    recipe = Recipe(tensor=tensor, recompute=recompute)
    here = layer_saved_bytes(model, recipe)
    assert layer_saved_bytes(model, replace(recipe, tensor=2 * tensor)) <= here
    if recompute != "operators":      # in eager that keeps what the tensor axis scatters as well
        assert layer_saved_bytes(model, replace(recipe, sequence_parallel=True)) <= here
    assert layer_saved_bytes(model, replace(recipe, compiled=True)) <= here
    assert layer_saved_bytes(model, replace(recipe, context=2)) == pytest.approx(here / 2)


def test_another_recomputation_is_refused():
    with pytest.raises(ValueError, match="'some'"):
        layer_saved_bytes(MODELS[0], Recipe(recompute="some"))


# -- against autograd -------------------------------------------------------------------------------------------------

BATCH, SEQUENCE, HIDDEN, HEADS = 2, 32, 64, 4


class Attention(nn.Module):
    """Separate projections, rotary positions or none, PyTorch's own attention."""

    def __init__(self, kv_heads: int, bias: bool, rotary: bool) -> None:
        super().__init__()
        self.width, self.rotary = HIDDEN // HEADS, rotary
        self.query = nn.Linear(HIDDEN, HIDDEN, bias)
        self.key, self.value = (nn.Linear(HIDDEN, kv_heads * self.width, bias) for _ in range(2))
        self.projection = nn.Linear(HIDDEN, HIDDEN, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for f in (self.query, self.key, self.value))
        if self.rotary:
            angles = torch.ones(SEQUENCE, self.width, dtype=x.dtype)
            q, k = (t * angles + t.roll(1, -1) * angles for t in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])
        return self.projection(out.transpose(1, 2).flatten(-2))


class PiecewiseNorm(nn.Module):
    """RMSNorm as models write it out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class Gated(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(HIDDEN, inner, False) for _ in range(2))
        self.down = nn.Linear(inner, HIDDEN, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, attention: nn.Module, feed_forward: nn.Module, norms: list[nn.Module]) -> None:
        super().__init__()
        self.attention, self.feed_forward, self.norms = attention, feed_forward, nn.ModuleList(norms)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.feed_forward(self.norms[1](x))


def kept_by_autograd(block: nn.Module) -> int:
    """Bytes of the storages that autograd saves, the parameters' and the rows' own figures (norms' means) left out."""
    x = torch.randn(BATCH, SEQUENCE, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    own = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() > BATCH * SEQUENCE * HEADS and tensor.numel() != SEQUENCE * HIDDEN // HEADS:
            storages.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x)
    return sum(storage.nbytes() for pointer, storage in storages.items() if pointer not in own)


def closed_form(model: Transformer) -> float:
    """Of the same layer in eager, but for the log-sum-exp, which is as small as what autograd's count leaves out."""
    saved = layer_saved(model, Recipe(micro_batch=BATCH))
    return kept_bytes(tuple(tensor for tensor in saved if tensor.name != "log-sum-exp"), "none")


def test_a_gpt_layer_keeps_what_autograd_keeps():
    feed_forward = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))
    block = Block(Attention(HEADS, True, False), feed_forward, [nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)])
    assert kept_by_autograd(block.bfloat16()) == closed_form(Transformer(HIDDEN, 1, HEADS, SEQUENCE, 1))


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_a_llama_layer_keeps_what_autograd_keeps(kv_heads):
    block = Block(Attention(kv_heads, False, True), Gated(160), [PiecewiseNorm(), PiecewiseNorm()])
    model = Transformer(
        HIDDEN, 1, HEADS, SEQUENCE, 1, kv_heads=kv_heads, ffn=160, gated=True, bias=False, norm="rms",
        positions="rotary",
    )  # fmt: skip
    assert kept_by_autograd(block.bfloat16()) == closed_form(model)
