"""Attention stays one operator, with every argument spelled out; a mask of zeros, which is added, is none."""

from autoplan.trace.canonical_forms import Builder, Ref, form


@form("aten.scaled_dot_product_attention.default")
def attention(
    b: Builder, query: Ref, key: Ref, value: Ref, mask: Ref | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Ref:  # fmt: skip
    mask = None if adds_nothing(b, mask) else mask
    kwargs = (("scale", scale), ("enable_gqa", bool(enable_gqa)))
    args = (query, key, value, mask, float(dropout_p), bool(is_causal))
    return b.emit("aten.scaled_dot_product_attention.default", *args, kwargs=kwargs, hint="attention")


def adds_nothing(b: Builder, mask: Ref | None) -> bool:
    """Whether a mask holds zeros alone, as T5's position bias between its two stacks does."""
    while mask is not None and (view := b.maker(mask, "aten.expand.default")) is not None:
        assert isinstance(view.args[0], Ref)
        mask = view.args[0]
    made = b.maker(mask, "aten.full.default") if mask is not None else None
    return made is not None and made.type.floating and made.args[1] == 0
