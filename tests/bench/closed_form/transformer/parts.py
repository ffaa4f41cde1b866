"""The parameters that one rank holds, and between which ranks their gradients are reduced."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cost_models.arithmetic import Number
from cost_models.hardware import LinkPath, Topology
from tests.bench.closed_form.transformer.model import Recipe, Transformer


@dataclass(frozen=True)
class Part:
    """Parameters of one rank, as elements, and the links between the ranks that hold the same."""

    elements: Number
    replicas: LinkPath


def layer_parts(model: Transformer, recipe: Recipe, topology: Topology) -> tuple[Part, ...]:
    """A layer's parameters on one rank, in elements, before the data axis shares anything out: what the tensor axis
    splits, and its experts, which the expert axis does."""
    dense = Part((model.layer_parameters - model.expert_parameters) / recipe.tensor, replicas(recipe, topology))
    if not model.experts:
        return (dense,)
    ranks = recipe.tensor * recipe.context * recipe.data
    path = topology.axis(recipe.expert, ranks // recipe.expert, recipe.relays)
    return dense, Part(model.expert_parameters / recipe.expert, path)


def replicas(recipe: Recipe, topology: Topology) -> LinkPath:
    """The links between ranks that hold the same parameters: the context and data axes."""
    return topology.axis(recipe.tensor, recipe.context * recipe.data, recipe.relays)


def stage_parts(model: Transformer, recipe: Recipe, topology: Topology) -> tuple[Part, ...]:
    """The parameters of the largest stage on one rank, in elements, before the data axis shares anything out."""
    both = recipe.pipeline == 1 and not model.tied
    ends = model.embedding_parameters * (2 if both else 1) / recipe.tensor
    dense, *experts = (
        replace(part, elements=model.layers / recipe.pipeline * part.elements)
        for part in layer_parts(model, recipe, topology)
    )
    return (replace(dense, elements=dense.elements + ends), *experts)
