"""The rules of all canonical operators: importing this package registers them."""

from autoplan.rules import (
    attention,
    batch,
    constant,
    conv,
    elementwise,
    embedding,
    experts,
    indexing,
    loss,
    matmul,
    norm,
    recurrence,
    reduction,
    slicing,
    view,
)

__all__ = [
    "attention",
    "batch",
    "constant",
    "conv",
    "elementwise",
    "embedding",
    "experts",
    "indexing",
    "loss",
    "matmul",
    "norm",
    "recurrence",
    "reduction",
    "slicing",
    "view",
]
