"""Floating-point operations of an operator, by torch's own formulas (``torch.utils.flop_counter``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry


def flops_of(function: Any, args: tuple, kwargs: Mapping[str, Any], result: Any) -> int:
    """0 for an operator without a formula: it multiplies no matrices."""
    formula = flop_registry.get(function._overloadpacket)
    if formula is None:
        return 0
    return int(formula(*_with_all_heads(function, args), **kwargs, out_val=result))


def _with_all_heads(function: Any, args: tuple) -> list:
    """Attention's arguments with as many heads of keys and values as of queries, as the kernels multiply them: torch
    2.11's formulas know no others. Shapes stand for tensors then, which formulas that read tensors don't take: those
    of kernels that are called by their own names, whose heads are alike."""
    names = [argument.name for argument in function._schema.arguments[: len(args)]]
    given = list(args)
    if "query" not in names:
        return given
    query = args[names.index("query")]
    for place in (names.index(name) for name in ("key", "value") if name in names):
        x = args[place]
        if isinstance(x, Tensor) and x.ndim == 4 and x.shape[1] != query.shape[1]:
            given[place] = (*x.shape[:1], query.shape[1], *x.shape[2:])
    return given
