"""A transformer's step in closed form: parts, limits, and the same number from floats, arrays and symbols."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.collective import group_size
from cost_models.hardware import Topology, load_device
from tests.bench.closed_form.transformer.layer import layer_operators
from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.bench.closed_form.transformer.parts import layer_parts
from tests.bench.closed_form.transformer.step import layer_passes, model_flops, step_seconds
from tests.support.sampling import sampled

DEVICE, LINKS = load_device("a100-sxm-80gb")
GPT = Transformer(4096, 32, 32, 2048, 51200)
LLAMA = Transformer(4096, 32, 32, 8192, 128256, kv_heads=8, ffn=14336, gated=True, tied=False, bias=False, norm="rms",
                    positions="rotary")  # fmt: skip
MIXTRAL = dataclasses.replace(LLAMA, experts=8, top_k=2)


def nodes(count: int) -> Topology:
    return Topology(DEVICE, LINKS.levels(count, 8))


RECIPES = {
    "one": Recipe(),
    "tensor": Recipe(tensor=8, sequence_parallel=True),
    "context": Recipe(tensor=2, context=4),
    "zero3": Recipe(data=64, zero=3),
    "zero1, unfused": Recipe(tensor=4, data=16, zero=1, fused_attention=False, recompute="selective"),
    "pipeline": Recipe(tensor=8, data=2, pipeline=4, microbatches=16, recompute="full"),
    "interleaved": Recipe(tensor=2, data=4, pipeline=8, microbatches=16, schedule="interleaved", virtual_stages=2),
    "zero bubble": Recipe(tensor=8, pipeline=8, microbatches=24, schedule="zero-bubble"),
}
recipes = st.sampled_from(sorted(RECIPES)).map(RECIPES.get)
models = st.sampled_from([GPT, LLAMA])


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL], ids=["gpt", "llama", "mixtral"])
def test_a_step_is_positive_and_no_faster_than_the_peak(name, model):
    recipe = RECIPES[name]
    step = step_seconds(model, recipe, nodes(8))
    assert step.seconds > 0
    assert step.flops_per_s_per_device < DEVICE.peak_flops_per_s["bfloat16"]


@settings(deadline=None, max_examples=30)
@given(model=models, recipe=recipes, more=st.integers(1, 4))
def test_more_work_takes_longer(model, recipe, more):
    now = step_seconds(model, recipe, nodes(8)).seconds
    for larger in (
        (model, dataclasses.replace(recipe, micro_batch=recipe.micro_batch + more)),
        (dataclasses.replace(model, layers=model.layers + 8 * more), recipe),
        (dataclasses.replace(model, sequence=model.sequence * (1 + more)), recipe),
    ):
        assert step_seconds(*larger, nodes(8)).seconds > now


@pytest.mark.parametrize("name", sampled(RECIPES, sorted({*RECIPES} - {"pipeline", "zero bubble"})))
def test_the_same_number_from_floats_arrays_and_symbols(name):
    sequence, batch = sympy.symbols("s b", positive=True)
    symbolic = step_seconds(
        dataclasses.replace(LLAMA, sequence=sequence), dataclasses.replace(RECIPES[name], micro_batch=batch), nodes(8),
        closed_form=True,
    ).seconds  # fmt: skip
    from_symbols = sympy.lambdify((sequence, batch), symbolic)
    sizes, batches = np.array([1024.0, 4096.0, 8192.0]), np.array([1.0, 2.0, 4.0])
    arrays = step_seconds(
        dataclasses.replace(LLAMA, sequence=sizes), dataclasses.replace(RECIPES[name], micro_batch=batches), nodes(8),
        closed_form=True,
    ).seconds  # fmt: skip
    for place, (length, count) in enumerate(zip(sizes, batches, strict=True)):
        number = step_seconds(
            dataclasses.replace(LLAMA, sequence=float(length)),
            dataclasses.replace(RECIPES[name], micro_batch=float(count)), nodes(8), closed_form=True,
        ).seconds  # fmt: skip
        assert arrays[place] == pytest.approx(number, rel=1e-9)
        assert from_symbols(float(length), float(count)) == pytest.approx(number, rel=1e-9)


def test_recomputation_costs_what_is_run_again():
    none, selective, operators, full = (
        layer_passes(GPT, Recipe(tensor=8, fused_attention=False, recompute=kind), nodes(1)).backward_s
        for kind in ("none", "selective", "operators", "full")
    )
    forward = layer_passes(GPT, Recipe(tensor=8, fused_attention=False), nodes(1)).forward_s
    assert none < selective < full
    assert none < operators < full
    assert full == pytest.approx(none + forward)


def test_a_rank_that_shares_nothing_pays_for_no_collective():
    """One rank: the layer's passes are the sum of its operators."""
    operators = layer_operators(GPT, Recipe(), DEVICE)
    passes = layer_passes(GPT, Recipe(), nodes(1))
    assert passes.forward_s == pytest.approx(sum(operator.forward_s for operator in operators))
    assert passes.backward_s == pytest.approx(sum(operator.backward_s for operator in operators))


def test_fusing_elementwise_chains_takes_less():
    for model in (LLAMA, dataclasses.replace(GPT, dropout=True)):
        eager, compiled = (layer_passes(model, Recipe(compiled=fused), nodes(1)) for fused in (False, True))
        assert compiled.forward_s < eager.forward_s and compiled.backward_s <= eager.backward_s


def test_the_first_stage_hands_back_no_gradient_and_the_last_no_result():
    """One microbatch passes each border once there and once back, whether or not stages wait for their messages."""
    recipe, cluster = Recipe(pipeline=4, overlaps_messages=False), Topology(DEVICE, LINKS.levels(4, 1))
    apart = step_seconds(GPT, dataclasses.replace(recipe, overlaps_messages=True), cluster).pipeline_s
    assert step_seconds(GPT, recipe, cluster).pipeline_s == pytest.approx(apart)


def test_what_the_host_carries_takes_longer():
    """Four tensor ranks leave two data ranks in a node, far apart; eight leave one."""
    for tensor, slower in ((4, True), (8, False)):
        recipe = Recipe(tensor=tensor, data=64 // tensor, overlaps_gradients=False)
        relayed, through = (
            step_seconds(GPT, dataclasses.replace(recipe, relays=relays), nodes(8)).gradients_s
            for relays in (True, False)
        )
        assert (through > 2 * relayed) if slower else through == relayed


def test_gathers_that_run_ahead_hide():
    ahead, behind = (
        layer_passes(LLAMA, Recipe(data=64, zero=3, prefetches_backward=flag), nodes(8)) for flag in (True, False)
    )
    assert ahead.forward_s == behind.forward_s and ahead.backward_s < behind.backward_s


def test_model_flops_are_published_ones():
    """Narayanan et al. 2021, eq. 3 less the recomputed forward: 72·B·s·l·h²·(1 + s/6h + V/12lh)."""
    model, recipe = Transformer(12288, 96, 96, 2048, 51200), Recipe(micro_batch=1, microbatches=1536)
    published = 72 * 1536 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (12 * 96 * 12288))
    assert model_flops(model, recipe) == pytest.approx(published)


def test_experts_are_shared_out_by_their_own_axis():
    """Their gradients go between the ranks that hold the same experts, their states are those ranks' alone."""
    steps = [step_seconds(MIXTRAL, Recipe(data=32, expert=ranks), nodes(4)) for ranks in (1, 2, 4, 8)]
    assert all(more.optimizer_s < less.optimizer_s for less, more in itertools.pairwise(steps))
    experts = MIXTRAL.layers * MIXTRAL.expert_parameters
    dense = MIXTRAL.parameters - experts
    share = (dense + experts / 8) / (dense + experts)
    assert steps[3].optimizer_s / steps[0].optimizer_s == pytest.approx(share, rel=0.01)
    whole, shared = (layer_parts(MIXTRAL, Recipe(data=32, expert=ranks), nodes(4))[1] for ranks in (1, 8))
    assert whole.elements == 8 * shared.elements
    assert (group_size(whole.replicas), group_size(shared.replicas)) == (32, 4)


@pytest.mark.parametrize(
    ("model", "recipe", "told"),
    [
        (GPT, Recipe(data=8, expert=8), "8 expert ranks for 0 experts"),
        (MIXTRAL, Recipe(data=16, expert=16), "16 expert ranks for 8 experts"),
        (dataclasses.replace(MIXTRAL, top_k=16), Recipe(), "top_k=16 of 8 experts"),
        (MIXTRAL, Recipe(data=2, expert=8), "8 expert ranks don't divide"),
    ],
)
def test_impossible_experts_are_refused(model, recipe, told):
    with pytest.raises(ValueError, match=told):
        step_seconds(model, recipe, nodes(2))


def test_too_many_ranks_are_refused():
    with pytest.raises(ValueError, match=r"16 ranks .* on 8 devices"):
        step_seconds(GPT, Recipe(tensor=16), nodes(1))


@pytest.mark.parametrize(
    ("field", "value"), [("recompute", "ful"), ("zero", 7), ("matmul", "int4"), ("precision", "half")]
)
def test_a_choice_that_is_not_known_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"{field}={value!r} isn't known: give one of"):
        step_seconds(GPT, Recipe(**{field: value}), nodes(1))


def test_chunks_without_a_pipeline_are_all_run():
    plain, chunks = (step_seconds(GPT, Recipe(tensor=8, virtual_stages=count), nodes(1)).seconds for count in (1, 4))
    assert chunks == plain
