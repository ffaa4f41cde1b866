"""A backward in two halves: the inputs' gradients first, those of the weights later (Qi et al. 2023).

Between them stay the graph and the gradients at the nodes where paths to weights leave those to inputs. Autograd has no
public interface that finds these nodes, so this is the one module that uses torch.distributed.pipelining._backward.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.pipelining._backward import (
    construct_reverse_graph,
    get_param_groups,
    stage_backward_weight,
)

Halves = list[dict[str, Any]]
"""Groups of weights, each with the nodes where its gradients begin and the gradients there."""


def backward_inputs(
    roots: Sequence[GradientEdge], gradients: Sequence[Tensor | None], inputs: Sequence[Tensor],
    weights: Sequence[nn.Parameter],
) -> tuple[tuple[Tensor | None, ...], Halves]:  # fmt: skip
    """The inputs' gradients, None where nothing depends on one, and what ``backward_weights`` goes on from."""
    edges = [get_gradient_edge(x) for x in inputs]
    reverse = construct_reverse_graph([root.node for root in roots])
    trained = [get_gradient_edge(w).node for w in weights if w.requires_grad]
    halves = get_param_groups([edge.node for edge in edges], trained, reverse)
    handles = []
    for group in halves:
        group["intermediates"] = list(group["intermediates"])
        group["grads"] = [()] * len(group["intermediates"])
        for place, node in enumerate(group["intermediates"]):
            handles.append(node.register_prehook(keep(group["grads"], place)))
    try:
        found = torch.autograd.grad(roots, edges, gradients, retain_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return found, halves


def keep(gradients: list[tuple[Tensor | None, ...]], place: int) -> Any:
    def hook(given: tuple[Tensor | None, ...]) -> None:
        gradients[place] = given

    return hook


def backward_weights(weights: Sequence[nn.Parameter], halves: Halves) -> None:
    """Adds the weights' gradients to those that they have; past every hook of autograd's."""
    stage_backward_weight(iter(weights), halves)
