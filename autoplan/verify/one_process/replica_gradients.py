"""What each replica has of a batch's gradient, of a loss of which nothing is known but that it is a mean over rows.

A replica's rows by themselves have a mean of their own, over fewer tokens. The whole batch's gradient is a sum of
those, each times a weight: its share of the tokens that count. The weights are fitted to that sum, which they make
exactly where the loss is such a mean.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from autoplan.errors import InputsError

Batch = Mapping[str, Tensor]
Backward = Callable[[nn.Module, Batch], float]
"""Adds a batch's gradients up, and returns its loss."""
WITHIN = 1e-9
"""Of the whole gradient, what the weighted sum may lack of it."""


def replica_rows(batch: Batch, replicas: int, microbatches: int) -> list[dict[str, Tensor]]:
    """Each replica's rows of a batch: its share of each microbatch (``runtime.data.microbatches``)."""
    shares = {name: [part.chunk(replicas) for part in value.chunk(microbatches)] for name, value in batch.items()}
    return [{name: torch.cat([s[r] for s in parts]) for name, parts in shares.items()} for r in range(replicas)]


def summands(module: nn.Module, backward: Backward, batch: Batch, rows: Sequence[Batch]) -> tuple[float, Tensor]:
    """(the batch's loss, [replicas, elements of all parameters] what each has of its gradient).

    InputsError where these don't add up to it.
    """
    loss, whole = backward(module, batch), taken(module)
    each = []
    for one in rows:
        backward(module, one)
        each.append(taken(module).nan_to_num_(0.0))  # a mean over no token
    apart = torch.stack(each)
    found = torch.linalg.lstsq(apart @ apart.t(), apart @ whole, driver="gelsd").solution[:, None] * apart
    if not float((found.sum(0) - whole).norm()) <= WITHIN * float(whole.norm()):
        cause = "its loss isn't a mean over rows: what each replica has of the gradient can't be told from the module"
        raise InputsError("plan.verify() of compressed gradients", cause, "verify the plan without compression")
    return loss, found


def taken(module: nn.Module) -> Tensor:
    """All gradients behind one another, zero where there is none, which are then gone."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(module)]
    for parameter in trained(module):
        parameter.grad = None
    return torch.cat([each.flatten() for each in found])


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]
