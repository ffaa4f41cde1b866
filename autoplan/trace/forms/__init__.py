"""The canonical forms of exported operators; importing this package fills their table.

Order: `nn` (layers and losses), `tensor` (tensor operators).
"""

from autoplan.trace.forms.nn import attention, bags, convolution, experts, loss, norm, penalties, pooling, resize
from autoplan.trace.forms.tensor import (
    arithmetic,
    factory,
    indexing,
    linalg,
    matmul,
    products,
    random,
    reduction,
    scatter,
    sorting,
    view,
)

__all__ = [
    "arithmetic", "attention", "bags", "convolution", "experts", "factory", "indexing", "linalg", "loss", "matmul",
    "norm", "penalties", "pooling", "products", "random", "reduction", "resize", "scatter", "sorting", "view",
]  # fmt: skip
