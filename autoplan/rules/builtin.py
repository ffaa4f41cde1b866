"""The rules of all canonical operators: importing this package registers them."""

from autoplan.rules.nn import attention, bags, batch_sums, convolution, embedding, experts, lookups, loss, norm, pooling
from autoplan.rules.tensor import (
    constant,
    einsum,
    elementwise,
    indexing,
    matmul,
    recurrence,
    reduction,
    scan,
    scatter,
    slicing,
    sorting,
    spectral,
    view,
)

__all__ = [
    "attention", "bags", "batch_sums", "constant", "convolution", "einsum", "elementwise", "embedding", "experts",
    "indexing", "lookups", "loss", "matmul", "norm", "pooling", "recurrence", "reduction", "scan", "scatter",
    "slicing", "sorting", "spectral", "view",
]  # fmt: skip
