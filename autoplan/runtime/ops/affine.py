"""A product with its bias as one operator, where the weight lies [k, n]: nn.Linear's lies [n, k]."""

import torch
from torch import Tensor


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [.., k], weight [k, n], bias [n] -> x @ weight + bias [.., n]."""
    rows = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight)
    return rows if x.ndim == 2 else rows.view(*x.shape[:-1], weight.shape[-1])
