"""The parameters of a stage as one rank holds them: elements, states, and the copies made for their use."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.arithmetic import Number
from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.bench.closed_form.transformer.saved import element_bytes
from tests.bench.closed_form.transformer.states import ACCOUNTS, ModelStates, state_bytes

FLOAT8 = 1
"""Bytes of an 8 bit element."""


@dataclass(frozen=True)
class Elements:
    """Parameter elements on one rank of a stage before the data axis shares them out.

    layers   of the stage's layers but the experts
    experts  of their experts
    ends     of the embedding (first stage), the head and the last norm (last stage)
    layer    of one layer, its experts among them
    """

    layers: Number
    experts: Number
    ends: Number
    layer: Number

    @property
    def total(self) -> Number:
        return self.layers + self.experts + self.ends


def stage_elements(model: Transformer, recipe: Recipe, stage: int, layers: Number) -> Elements:
    """Parameter elements on one rank of a stage with so many layers. Matrices, the embedding and the biases of what is
    split by columns are split over the tensor axis; norms, the biases after a reduction, learned positions and routers
    are whole. The head of a tied embedding on another stage is a copy."""
    first, last = stage == 0, stage == recipe.pipeline - 1
    dense, experts = _layer_elements(model, recipe), _expert_elements(model, recipe)
    ends: Number = 0.0
    if first:
        ends = model.embedding_parameters / recipe.tensor
        ends += model.sequence * model.hidden if model.positions == "learned" else 0
    if last:
        head = 0 if model.tied and first else model.embedding_parameters / recipe.tensor
        ends += _norm_elements(model) + head
    return Elements(layers * dense, layers * experts, ends, dense + experts)


def _norm_elements(model: Transformer) -> Number:
    return model.hidden * (2 if model.bias else 1)


def _layer_elements(model: Transformer, recipe: Recipe) -> Number:
    """One layer's, but its experts."""
    split = model.hidden * (2 * model.query_width + 2 * model.key_width)
    whole = 2 * _norm_elements(model)
    if model.experts:
        whole += model.hidden * model.experts
    else:
        split += model.feed_forward_matrices * model.hidden * model.inner
    if model.bias:
        split += model.query_width + 2 * model.key_width
        split += 0 if model.experts else model.inner * (2 if model.gated else 1)
        whole += model.hidden * (1 if model.experts else 2)
    return split / recipe.tensor + whole


def _expert_elements(model: Transformer, recipe: Recipe) -> Number:
    """One layer's experts, shared out over the expert axis, each split over ``expert_tensor``."""
    one = model.feed_forward_matrices * model.hidden * model.expert_inner
    return model.experts * one / (recipe.expert * recipe.expert_tensor)


def stage_states(model: Transformer, recipe: Recipe, elements: Elements) -> ModelStates:
    """Bytes of the states. The data and context axes share those of all but the experts, whose own data axis is what
    the expert axes leave of tensor · context · data. Where state is factored, a matrix counts as hidden by hidden."""
    ranks = recipe.data * recipe.context
    expert_ranks = max(1, recipe.tensor * ranks // (recipe.expert * recipe.expert_tensor))
    parts = ((elements.layers + elements.ends, ranks), (elements.experts, expert_ranks))
    dense, experts = (
        state_bytes(
            size, recipe.precision, recipe.optimizer, recipe.zero, shared, ACCOUNTS[recipe.account], recipe.offload,
            2 * size / model.hidden,
        )
        for size, shared in parts
    )  # fmt: skip
    return dense + experts


def is_sharded(recipe: Recipe) -> bool:
    """Parameters are shared out and gathered for their use."""
    return recipe.zero == 3


def used_element_bytes(recipe: Recipe) -> int:
    """Bytes of an element of a layer's parameter as it is gathered or cast for its use."""
    return FLOAT8 if recipe.matmul == "float8" else element_bytes(recipe)


def used_copies_bytes(recipe: Recipe, elements: Elements, layers: int) -> Number:
    """Bytes of copies of parameters made for their use: of the ends and so many layers, or of every layer where they
    stand through the step; none where the stored parameters are used themselves."""
    cast = recipe.account == "float32-stored" and "mixed" in recipe.precision
    if not (is_sharded(recipe) or cast):
        return 0.0
    ends = element_bytes(recipe) * elements.ends
    if is_sharded(recipe) and recipe.gathers_each_microbatch:
        return ends + layers * used_element_bytes(recipe) * elements.layer
    return ends + used_element_bytes(recipe) * (elements.layers + elements.experts)
