"""Scaled dot-product attention: batch, heads, and the rows of the queries."""

from __future__ import annotations

from autoplan.graph import TensorType
from autoplan.layout import R, S, State
from autoplan.rule import AxisStrategy, Rule, letters, rule

LOGSUMEXP_BYTES = 4  # kept for each row of scores, in float32
RING = "ring_attention"


@rule("aten.scaled_dot_product_attention.default")
def attention(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    mask: TensorType | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Rule:
    """q [b.., heads, rows, d], k [b.., kv, keys, d], v [b.., kv, keys, e] -> [b.., heads, rows, e].

    Query heads are (g r): kv groups of r heads each, where keys and values are shared (``enable_gqa``). Rows split
    freely without causality; with it each rank's mask differs, so a body builds it. Where keys and values are split as
    the rows are, they go round the ranks. Under dropout no body is offered: what is dropped follows from an element's
    place, which a body doesn't know.
    """
    lead = len(q.shape) - 3
    batch = f"{letters(lead, 'b')} " if lead > 0 else ""
    grouped = enable_gqa and lead >= 0 and q.shape[-3] != k.shape[-3]
    head, kv_head = ("(g r) ", "g ") if grouped else ("g ", "g ")
    if lead < 0:
        head = kv_head = ""
    operands = [f"{batch}{head}rows d", f"{batch}{kv_head}keys d", f"{batch}{kv_head}keys e"]
    if mask is not None:
        operands.append(mask_terms(q, k, mask, head))
    whole = {"d", "e", "keys"} | ({"rows"} if is_causal else set())
    return Rule(
        f"{', '.join(operands)} -> {batch}{head}rows e",
        whole=frozenset(whole),
        extra=() if dropout_p else bodies(q, k, mask, grouped, is_causal),
        cost="attention",
        saved=(0, 1, 2, "out"),
        saved_bytes_per_element=LOGSUMEXP_BYTES / v.shape[-1],
    )


def mask_terms(q: TensorType, k: TensorType, mask: TensorType, head: str) -> str:
    """The terms of a mask that is broadcast to the scores [b.., heads, rows, keys]."""
    scores = (*q.shape[:-1], k.shape[-2])
    lead = len(q.shape) - 3
    names = [*(f"b{i}" for i in range(lead)), *([head.strip()] if head else []), "rows", "keys"]
    offset = len(scores) - len(mask.shape)
    return " ".join(
        "1" if size == 1 and scores[offset + i] != 1 else names[offset + i] for i, size in enumerate(mask.shape)
    )


def bodies(
    q: TensorType, k: TensorType, mask: TensorType | None, grouped: bool, is_causal: bool
) -> tuple[AxisStrategy, ...]:
    """Heads split further than the groups they share; rows split under causality; rows, keys and values split."""
    found = []
    heads, rows = len(q.shape) - 3, len(q.shape) - 2
    if grouped:
        states = [S(heads), R, R] + ([mask_state(q, mask, heads)] if mask is not None else [])
        found.append(AxisStrategy(tuple(states), S(heads), body="grouped_attention"))
    if is_causal and mask is None:
        found.append(AxisStrategy((S(rows), R, R), S(rows), body="causal_attention_rows"))
    if may_go_round(q, k, mask, is_causal):
        states = [S(rows)] * 3 + ([mask_state(q, mask, rows)] if mask is not None else [])
        found.append(AxisStrategy(tuple(states), S(rows), body=RING, communicates=True, single=True))
    return tuple(found)


def may_go_round(q: TensorType, k: TensorType, mask: TensorType | None, is_causal: bool) -> bool:
    """Whether keys and values may come part by part: a mask of truth values is cut for each (one that is added may
    carry a gradient, which a part doesn't have); a causal ring has as many queries as keys."""
    if is_causal:
        return mask is None and q.shape[-2] == k.shape[-2]
    return mask is None or mask.dtype == "bool"


def mask_state(q: TensorType, mask: TensorType, dim: int) -> State:
    """How the mask comes when the scores are split along one of their dims: split too, unless it is broadcast there."""
    own = dim - (len(q.shape) - len(mask.shape))
    return S(own) if own >= 0 and mask.shape[own] == q.shape[dim] and q.shape[dim] > 1 else R
