"""Indices that lie outside what they count, said as one device says it.

A rank that has a slice takes an index outside it for another rank's. One that no rank has would give zeros in silence,
where one device raises an error: a tokenizer with more tokens than the model has rows would train on nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# Private, yet the only assertion that neither waits for a GPU nor breaks a compiled graph.
_assert = torch.ops.aten._assert_async.msg


def check_rows(indices: Tensor, rows: int) -> None:
    """RuntimeError, on a GPU from the device and so later, where an index [..] isn't in [0, rows)."""
    _assert((indices.clamp(0, rows - 1) == indices).all(), told("an index", f"a table of {rows} rows", f"[0, {rows})"))


def check_classes(target: Tensor, classes: int, ignored: Tensor, value: int) -> None:
    """The same of a loss' targets [..]: each in [0, classes), or ``ignored``, where it is this value."""
    inside = (target.clamp(0, classes - 1) == target) | ignored
    _assert(inside.all(), told("a target", f"a loss of {classes} classes", f"[0, {classes}), or {value}"))


def check_tables(indices: Sequence[Tensor], rows: Sequence[int]) -> None:
    """The same of several tables at once, so that it costs as few kernels as one: indices [b, l] of each."""
    widths = [each.shape[1] for each in indices]
    limits = torch.tensor([n for n, width in zip(rows, widths, strict=True) for _ in range(width)], device="cpu")
    together = torch.cat(list(indices), 1)
    inside = (together >= 0) & (together < limits.to(together.device))
    _assert(inside.all(), told("an index", f"its table, of {' or '.join(map(str, dict.fromkeys(rows)))} rows", "it"))


def told(index: str, limits: str, allowed: str) -> str:
    return f"{index} lies outside {limits}. No rank has what it stands for. Give whole numbers within {allowed}."
