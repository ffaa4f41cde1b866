"""A stage's bytes: parts that add up, the same number from floats, arrays and symbols, what can only shrink them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.closed_form.transformer.elements import stage_elements
from tests.bench.closed_form.transformer.memory import peak_bytes, reserved_bytes, stages_bytes
from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.bench.closed_form.transformer.saved import embedding_saved_bytes
from tests.bench.closed_form.transformer.states import state_bytes
from tests.oracles.korthikanti import transformer_layer_activation_bytes

GPT = Transformer(2048, 24, 16, 1024, 51200, dropout=True)
LLAMA = Transformer(
    2048, 24, 16, 4096, 32000, kv_heads=4, ffn=5632, gated=True, tied=False, bias=False, norm="rms", positions="rotary"
)  # fmt: skip
MIXTURE = replace(LLAMA, experts=8, top_k=2, expert_ffn=1408)
MODELS = {"gpt": GPT, "llama": LLAMA, "mixture": MIXTURE}

MEGATRON = Recipe(
    tensor=2, data=4, pipeline=4, zero=1, micro_batch=2, microbatches=8, sequence_parallel=True, compiled=True,
    gradient_bytes=4, account="float32-gradients", loss="in place",
)  # fmt: skip
FSDP = Recipe(data=8, zero=3, micro_batch=2, recompute="operators", gradient_bytes=4, account="float32-stored")
RECIPES = {
    "one": Recipe(),
    "ddp": Recipe(data=8, micro_batch=2, microbatches=2),
    "megatron": MEGATRON,
    "interleaved": replace(MEGATRON, schedule="interleaved", virtual_stages=3),
    "gpipe": replace(MEGATRON, schedule="gpipe", recompute="full"),
    "fsdp": FSDP,
    "fsdp, tensor": replace(FSDP, tensor=4, data=2, sequence_parallel=True, regathers=False, recompute="full"),
    "fsdp, pipeline": replace(FSDP, pipeline=4, microbatches=4, gathers_each_microbatch=False, keeps_messages=True),
    "zero-2": Recipe(data=8, zero=2, micro_batch=2, microbatches=2, fused_attention=False, recompute="selective"),
}
SIZES = ("hidden", "layers", "sequence", "vocabulary")

every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@every_model
@every_recipe
def test_parts_are_positive_and_the_peak_is_one_of_the_moments(model, recipe):
    stages = stages_bytes(model, recipe)
    assert [stage.stage for stage in stages] == list(range(recipe.pipeline))
    for stage in stages:
        assert all(part >= 0 for moment in stage.moments for _, part in moment.parts)
        assert all(part >= 0 for _, part in (*stage.streams, *stage.fragments))
        assert stage.peak_bytes == stage.peak.bytes == max(moment.bytes for moment in stage.moments)
        assert 0 < stage.steady <= stage.peak_bytes
        assert ("loss" in [moment.name for moment in stage.moments]) == (stage.stage == recipe.pipeline - 1)
        assert stage.peak.part("activations") in (stage.activations, 0)
    assert peak_bytes(model, recipe) == max(stage.peak_bytes for stage in stages)
    assert reserved_bytes(model, recipe) == max(stage.reserved_bytes for stage in stages)


@every_recipe
def test_floats_arrays_and_symbols_agree(recipe):
    names = (*SIZES, "heads")
    symbols = sympy.symbols(names, positive=True)
    values = [(1024, 12, 1024, 32000, 8), (2048, 24, 512, 50304, 16)]
    symbolic = Transformer(**dict(zip(names, symbols, strict=True)), dropout=True)
    arrays = [np.array(column, dtype=float) for column in zip(*values, strict=True)]
    for function in (peak_bytes, reserved_bytes):
        numbers = [function(Transformer(**dict(zip(names, v, strict=True)), dropout=True), recipe) for v in values]
        assert function(Transformer(**dict(zip(names, arrays, strict=True)), dropout=True), recipe).tolist() == numbers
        priced = sympy.lambdify(symbols, function(symbolic, recipe))
        assert [float(priced(*v)) for v in values] == pytest.approx(numbers)


@every_model
@every_recipe
@pytest.mark.parametrize("function", [peak_bytes, reserved_bytes])
def test_monotone_in_every_size(model, recipe, function):
    here = function(model, recipe)
    for name in SIZES:
        assert function(replace(model, **{name: 2 * getattr(model, name)}), recipe) > here
    assert function(model, replace(recipe, micro_batch=2 * recipe.micro_batch)) > here
    if model.ffn is not None and not model.experts:
        assert function(replace(model, ffn=2 * model.ffn), recipe) > here


@every_model
@every_recipe
@pytest.mark.parametrize("axis", ["tensor", "data", "context"])
def test_more_ranks_hold_no_more(model, recipe, axis):
    """At the same micro batch. Sequence parallelism's whole gathers need an axis to be there at all."""
    here = peak_bytes(model, recipe)
    more = replace(recipe, **{axis: 2 * getattr(recipe, axis)})
    assert peak_bytes(model, more) <= here
    if axis == "data" and recipe.zero:
        assert peak_bytes(model, more) < here


@every_model
@given(stages=st.sampled_from([1, 2, 4]), schedule=st.sampled_from(["gpipe", "1f1b"]))
def test_more_stages_hold_no_more_states_and_activations(model, stages, schedule):
    recipe = Recipe(pipeline=stages, microbatches=8, schedule=schedule)
    here, more = (stages_bytes(model, r) for r in (recipe, replace(recipe, pipeline=2 * stages)))
    assert max(s.states.total_bytes for s in more) <= max(s.states.total_bytes for s in here)
    embedding = (more[0].activations - here[0].activations, embedding_saved_bytes(model, recipe))
    assert embedding[0] <= stages * embedding[1] * (1 + 1e-9)          # of each microbatch in flight: p of them
    assert max(s.activations for s in more[1:]) <= here[0].activations * (1 + 1e-12)


@every_model
@every_recipe
def test_the_stages_hold_every_parameter_once(model, recipe):
    """On one rank of every other axis; a tied head on its own stage is the embedding's copy."""
    alone = replace(recipe, tensor=1, data=1, context=1, expert=1, expert_tensor=1)
    share = model.layers / recipe.pipeline
    held = sum(stage_elements(model, alone, stage, share).total for stage in range(recipe.pipeline))
    copy = model.embedding_parameters if model.tied and recipe.pipeline > 1 else 0
    assert held - copy == model.parameters


@every_recipe
def test_no_layers_hold_nothing_but_the_ends(recipe):
    empty = replace(LLAMA, layers=0)
    for stage in stages_bytes(empty, recipe):
        ends = stage_elements(empty, recipe, stage.stage, 0)
        assert ends.layers == ends.experts == 0
        if 0 < stage.stage < recipe.pipeline - 1:
            assert stage.states.total_bytes == stage.steady == stage.activations == 0


def test_states_are_those_of_the_elements():
    stage = stages_bytes(GPT, replace(MEGATRON, pipeline=1))[0]
    elements = stage_elements(GPT, replace(MEGATRON, pipeline=1), 0, 24).total
    assert stage.states.total_bytes == pytest.approx(elements * (6 + 12 / 4))
    assert stage.steady == stage.states.total_bytes
    whole = state_bytes(LLAMA.parameters, "bf16-mixed", "adam").total_bytes
    assert stages_bytes(LLAMA, Recipe())[0].states.total_bytes == pytest.approx(whole)


@pytest.mark.parametrize(("chunks", "schedule"), [(1, "1f1b"), (2, "interleaved"), (3, "interleaved")])
def test_the_first_stage_holds_what_korthikanti_says(chunks, schedule):
    """Equation 5 and its interleaved factor, with the embedding's mask; the closed form counts the tokens too."""
    recipe = replace(MEGATRON, schedule=schedule, virtual_stages=chunks, fused_attention=False)
    layer = transformer_layer_activation_bytes(1024, 2, 2048, 16, tensor=2, sequence_parallel=True)
    expected = layer * 24 * (1 if chunks == 1 else 1 + (4 - 1) / (4 * chunks))
    flying = 4 if chunks == 1 else min(8, 4 * chunks + 3)
    embedding = flying * (1024 * 2 * 2048 / 2 + 8 * 1024 * 2)
    assert stages_bytes(GPT, recipe)[0].activations == pytest.approx(expected + embedding)


def test_unequal_stages():
    held = stages_bytes(GPT, MEGATRON, (3, 7, 7, 7))
    assert held[0].states.total_bytes < stages_bytes(GPT, MEGATRON)[0].states.total_bytes
    assert held[1].states.total_bytes > stages_bytes(GPT, MEGATRON)[1].states.total_bytes
    with pytest.raises(ValueError, match="2 numbers of layers for 4 stages"):
        stages_bytes(GPT, MEGATRON, (12, 12))


def test_what_a_recipe_saves():
    assert peak_bytes(GPT, replace(MEGATRON, recompute="full")) < peak_bytes(GPT, replace(MEGATRON, recompute="none"))
    assert peak_bytes(LLAMA, replace(FSDP, zero=3)) < peak_bytes(LLAMA, replace(FSDP, zero=1))
    assert peak_bytes(GPT, replace(MEGATRON, loss="fused")) <= peak_bytes(GPT, MEGATRON)
    assert peak_bytes(GPT, replace(MEGATRON, offload="optimizer")) < peak_bytes(GPT, MEGATRON)
    assert peak_bytes(LLAMA, replace(FSDP, optimizer="adam-8bit")) < peak_bytes(LLAMA, FSDP)
    assert peak_bytes(LLAMA, replace(FSDP, optimizer="adafactor")) < peak_bytes(LLAMA, replace(FSDP, optimizer="lion"))
    pipedream = stages_bytes(GPT, replace(MEGATRON, schedule="pipedream"))
    extra = [stage.steady - plain.steady for stage, plain in zip(pipedream, stages_bytes(GPT, MEGATRON), strict=True)]
    versions = [stage.states.parameters_bytes * more for stage, more in zip(pipedream, (3, 2, 1, 0), strict=True)]
    assert extra == pytest.approx(versions)


def test_experts_are_shared_out():
    one = stage_elements(MIXTURE, Recipe(data=4), 0, 24)
    four = stage_elements(MIXTURE, Recipe(data=4, expert=4), 0, 24)
    assert (four.experts, four.layers) == (one.experts / 4, one.layers)
    split = stage_elements(MIXTURE, Recipe(tensor=2, data=4, expert=4, expert_tensor=2), 0, 24)
    assert split.experts == one.experts / 8
    shared = stages_bytes(MIXTURE, Recipe(data=4, expert=4, zero=1))[0].states
    assert shared.optimizer_bytes == pytest.approx(8 * (four.layers + four.ends) / 4 + 8 * four.experts)


def test_what_is_reserved_is_more_than_what_is_allocated():
    """A gather's buffer and the shards of gradients are on other streams; the logits' segment stands free."""
    stage = stages_bytes(LLAMA, FSDP)[0]
    streams, fragments = dict(stage.streams), dict(stage.fragments)
    assert stage.peak.name == "loss"
    assert stage.reserved_bytes == pytest.approx(stage.peak_bytes + sum(streams.values()) + sum(fragments.values()))
    assert fragments["logits"] == 2 * 2 * 4096 * 32000
    assert streams["gradient shards"] == pytest.approx(4 * LLAMA.parameters / 8)
