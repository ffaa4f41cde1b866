"""The rules of all canonical operators: importing this package registers them."""

from autoplan.rules.nn import attention, batch_moves, convolution, embedding, experts, loss, norm, pooling
from autoplan.rules.tensor import (
    buffers,
    constant,
    elementwise,
    indexing,
    linalg,
    matmul,
    reduction,
    scan,
    scatter,
    slicing,
    sorting,
    spectral,
    view,
)

__all__ = [
    "attention", "batch_moves", "buffers", "constant", "convolution", "elementwise", "embedding", "experts",
    "indexing", "linalg", "loss", "matmul", "norm", "pooling", "reduction", "scan", "scatter", "slicing", "sorting",
    "spectral", "view",
]  # fmt: skip
