"""Scaled dot-product attention: batch, heads, and the rows of the queries."""

from autoplan.ir.graph import DTYPE_BYTES, TensorType
from autoplan.ir.layout import R, S, State
from autoplan.rules.registry import AxisStrategy, Rule, broadcast_shape, rule

LOGSUMEXP_BYTES = 4  # kept for each row of scores, in float32
SCORES = 2  # tensors of their size that are kept where they aren't fused
RING = "ring_attention"


@rule("aten.scaled_dot_product_attention.default")
def attention(
    q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, by_rank: bool = False,
) -> Rule:  # fmt: skip
    """q [b.., heads, rows, d], k [b.., kv, keys, d], v [b.., kv, keys, e] -> [b.., heads, rows, e].

    Query heads are (g r): kv groups of r heads each, where keys and values are shared (``enable_gqa``). Rows split
    freely without causality; with it each rank's mask differs, so a body builds it. Where keys and values are split as
    the rows are, they go round the ranks. Under dropout no body is offered: what is dropped follows from an element's
    place, which a body doesn't know; and scores are kept, as the softmax and as what is left of it, unless each rank
    drops its own part within its kernel (``by_rank``). Dims before the rows may be broadcast: one head of keys to all
    of the queries.
    """
    places = bool(dropout_p) and not by_rank
    row_bytes = SCORES * DTYPE_BYTES[q.dtype] * k.shape[-2] if places else LOGSUMEXP_BYTES
    batch = broadcast_shape(*(t.shape[:-3] for t in (q, k, v)))
    grouped = enable_gqa and len(q.shape) > 2 and q.shape[-3] != k.shape[-3]
    heads = q.shape[-3:-2] if grouped else broadcast_shape(*(t.shape[-3:-2] for t in (q, k, v)))
    names = (*(f"b{i}" for i in range(len(batch))), *(("(g r)",) if grouped else ("g",))[: len(heads)])
    shared = (*(f"b{i}" for i in range(len(batch))), *("g" for _ in heads))
    scores, of_values = (*batch, *heads), (*batch, *(v.shape[-3:-2] if grouped else heads))
    operands = [
        [*aligned(q.shape[:-2], scores, names), "rows", "d"],
        [*aligned(k.shape[:-2], of_values, shared), "keys", "d"],
        [*aligned(v.shape[:-2], of_values, shared), "keys", "e"],
    ]
    if mask is not None:
        operands.append(aligned(mask.shape, (*scores, q.shape[-2], k.shape[-2]), (*names, "rows", "keys")))
    return Rule(
        f"{', '.join(map(' '.join, operands))} -> {' '.join((*names, 'rows', 'e'))}",
        whole=frozenset({"d", "e", "keys"} | ({"rows"} if is_causal else set())),
        extra=() if dropout_p else bodies(q, k, v, mask, grouped, is_causal),
        cost="attention",
        saved=(0, 1, 2) if places else (0, 1, 2, "out"),
        saved_bytes_per_element=row_bytes / v.shape[-1],
    )


def aligned(sizes: tuple[int, ...], shape: tuple[int, ...], names: tuple[str, ...]) -> list[str]:
    """The terms of dims that are broadcast to a shape, of which ``names`` has the terms: "1" where one is expanded."""
    offset = len(shape) - len(sizes)
    return ["1" if size == 1 != shape[offset + i] else names[offset + i] for i, size in enumerate(sizes)]


def bodies(
    q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None, grouped: bool, is_causal: bool
) -> tuple[AxisStrategy, ...]:
    """Heads split further than the groups they share; rows split under causality; rows, keys and values split."""
    found: list[AxisStrategy] = []
    if not grouped and not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:  # broadcast heads: the notation says all
        return ()
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
