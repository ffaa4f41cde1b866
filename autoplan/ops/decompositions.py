"""Decompositions of matrices, whose several results lie one after another in one dim, so that one operator gives them.

Each result's gradient is torch's own. Complex vectors are given with real values where torch does so.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

KINDS: Mapping[str, Callable[..., tuple[Tensor, ...]]] = {
    "svd": lambda x, full: tuple(torch.linalg.svd(x, full_matrices=full)),
    "eigh": lambda x, triangle: tuple(torch.linalg.eigh(x, UPLO=triangle)),
    "eig": lambda x: tuple(torch.linalg.eig(x)),
    "qr": lambda x, mode: tuple(torch.linalg.qr(x, mode=mode)),
    "lu": lambda x, pivot: tuple(torch.linalg.lu(x, pivot=pivot)),
    "slogdet": lambda x: tuple(torch.linalg.slogdet(x)),
}


def decomposed(x: Tensor, kind: str, *options: object) -> Tensor:
    """The results of ``torch.linalg``'s function of that name of [.., m, n], each flat: [.., p]."""
    parts = KINDS[kind](x, *options)
    return torch.cat([part.reshape(*x.shape[:-2], -1) for part in parts], -1)
