"""Importing this package fills the table of canonical forms."""

from autoplan.trace.forms import (
    arithmetic,
    attention,
    convolution,
    experts,
    factory,
    indexing,
    loss,
    matmul,
    norm,
    random,
    reduction,
    resize,
    scatter,
    view,
)

__all__ = [
    "arithmetic",
    "attention",
    "convolution",
    "experts",
    "factory",
    "indexing",
    "loss",
    "matmul",
    "norm",
    "random",
    "reduction",
    "resize",
    "scatter",
    "view",
]
