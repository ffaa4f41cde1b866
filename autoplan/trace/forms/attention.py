"""Attention stays one operator, with every argument spelled out."""

from __future__ import annotations

from autoplan.trace.table import Builder, Ref, form


@form("aten.scaled_dot_product_attention.default")
def attention(
    b: Builder,
    query: Ref,
    key: Ref,
    value: Ref,
    mask: Ref | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Ref:
    kwargs = (("scale", scale), ("enable_gqa", bool(enable_gqa)))
    args = (query, key, value, mask, float(dropout_p), bool(is_causal))
    return b.emit("aten.scaled_dot_product_attention.default", *args, kwargs=kwargs, hint="attention")
