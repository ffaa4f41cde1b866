"""What the operators of a transformer keep for their backward, on one rank and of one microbatch.

Each tensor once, whoever reads it: a product keeps its input, a norm its input, fused attention its operands, result
and log-sum-exp, unfused attention the scores' softmax, GELU its input, a gate both factors and the product, dropout a
mask of one byte. With LayerNorm, GELU, dropout and unfused attention in 16 bit that is Korthikanti et al. 2022, table
2: sbh(10 + 24/t + 5as/(ht)).
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.arithmetic import Number
from cost_models.compute import DTYPE_BYTES
from tests.bench.closed_form.transformer.layer import HALF, rows
from tests.bench.closed_form.transformer.model import Recipe, Transformer

FLOAT = 4
"""Bytes of a float32 element."""
RECOMPUTES = ("none", "selective", "operators", "full")
PLAIN = ("none", "selective")
"""Where nothing but attention's core is computed again."""
PRODUCT = ("none", "selective", "operators")
"""Results that per-operator checkpointing keeps as well."""


@dataclass(frozen=True)
class Saved:
    """A tensor that is kept: its bytes, and the ways of recomputation (``RECOMPUTES``) that keep it."""

    name: str
    bytes: Number
    kept: tuple[str, ...] = PLAIN


def element_bytes(recipe: Recipe) -> int:
    """Bytes of an activation's element."""
    return DTYPE_BYTES[HALF[recipe.precision]]


def stream_bytes(model: Transformer, recipe: Recipe) -> Number:
    """Bytes of the tensor that goes from layer to layer, as a rank holds it between the tensor axis's matrices."""
    split = recipe.tensor if recipe.sequence_parallel else 1
    return element_bytes(recipe) * rows(model, recipe) * model.hidden / split


def whole_bytes(model: Transformer, recipe: Recipe) -> Number:
    """Bytes of the same tensor with all of the rank's rows, as a product reads it."""
    return element_bytes(recipe) * rows(model, recipe) * model.hidden


def layer_saved(model: Transformer, recipe: Recipe) -> tuple[Saved, ...]:
    """Everything that one layer may keep, with its bytes."""
    feed_forward = _experts(model, recipe) if model.experts else _dense(model, recipe)
    return (
        Saved("layer input", stream_bytes(model, recipe), _input_kept(model, recipe)),
        *_norm("attention norm", model, recipe),
        *_attention(model, recipe),
        *_branch_mask("attention", model, recipe),
        Saved("feed-forward input", stream_bytes(model, recipe), _norm_input_kept(model, recipe)),
        *_norm("feed-forward norm", model, recipe),
        *feed_forward,
        *_branch_mask("feed-forward", model, recipe),
    )


def kept_bytes(saved: tuple[Saved, ...], recompute: str) -> Number:
    """Bytes of what is kept under a way of recomputation; a ``ValueError`` for another name."""
    if recompute not in RECOMPUTES:
        raise ValueError(f"recompute {recompute!r} is none of {', '.join(RECOMPUTES)}")
    return sum((tensor.bytes for tensor in saved if recompute in tensor.kept), start=0.0)


def layer_saved_bytes(model: Transformer, recipe: Recipe) -> Number:
    """Bytes that a layer keeps of one microbatch, on the mean of those that recompute and those that don't."""
    saved, share = layer_saved(model, recipe), recipe.recomputed_layers
    again = kept_bytes(saved, recipe.recompute)
    return share * again + (1 - share) * kept_bytes(saved, "none")


def embedding_saved_bytes(model: Transformer, recipe: Recipe) -> Number:
    """Before the first layer: the tokens' numbers (8 bytes each) and dropout's mask."""
    return 8 * rows(model, recipe) + _mask_bytes(model, recipe)


def head_saved_bytes(model: Transformer, recipe: Recipe) -> Number:
    """Bytes kept after the last layer, the logits aside: the norm's input, what it keeps beside, the head's input."""
    saved = (Saved("last norm input", stream_bytes(model, recipe)), *_norm("last norm", model, recipe, in_pieces=False))
    return kept_bytes(saved, "none")


def _pieced(model: Transformer, recipe: Recipe) -> bool:
    """Whether a norm is written in pieces, each of which keeps what it needs."""
    return model.norm == "rms" and not recipe.compiled


def _norm_input_kept(model: Transformer, recipe: Recipe) -> tuple[str, ...]:
    return () if _pieced(model, recipe) else PLAIN


def _input_kept(model: Transformer, recipe: Recipe) -> tuple[str, ...]:
    return ("operators", "full", *_norm_input_kept(model, recipe))


def _norm(name: str, model: Transformer, recipe: Recipe, in_pieces: bool | None = None) -> tuple[Saved, ...]:
    """Its result, which a product reads, gathered where it isn't gathered again; in pieces also its input in float32
    and the rows before their weight.

    in_pieces  the tensor axis's gathers go in pieces under the product (None: as the recipe says of layers)
    """
    stream = stream_bytes(model, recipe)
    small = recipe.regathers or (recipe.overlaps_tensor if in_pieces is None else in_pieces)
    output = stream if small else whole_bytes(model, recipe)
    pieces = (
        Saved(f"{name} in float32", stream / element_bytes(recipe) * FLOAT),
        Saved(f"{name} without weight", stream),
    )
    return (*(pieces if _pieced(model, recipe) else ()), Saved(f"{name} output", output))


def _mask_bytes(model: Transformer, recipe: Recipe) -> Number:
    return stream_bytes(model, recipe) / element_bytes(recipe) if model.dropout else 0.0


def _branch_mask(name: str, model: Transformer, recipe: Recipe) -> tuple[Saved, ...]:
    return (Saved(f"{name} dropout mask", _mask_bytes(model, recipe)),) if model.dropout else ()


def _attention(model: Transformer, recipe: Recipe) -> tuple[Saved, ...]:
    """Per-operator checkpointing keeps the first, third, … product of a layer: query and value, not key and projection.
    Rotary positions make queries and keys anew; where all three were slices of one result, the value's slice keeps it.
    """
    part = element_bytes(recipe) * rows(model, recipe) / recipe.tensor
    query, key = part * model.query_width, part * model.key_width
    copied = model.positions == "rotary" and model.fused_projections
    return (
        Saved("query", query, PRODUCT),
        Saved("key", key),
        Saved("value", key, PRODUCT),
        *((Saved("query and key before rotation", query + key),) if copied else ()),
        Saved("attention output", query, PRODUCT),
        *_core(model, recipe),
    )


def _core(model: Transformer, recipe: Recipe) -> tuple[Saved, ...]:
    """Fused: the log-sum-exp of each query in float32 (Dao et al. 2022, algorithm 2). Unfused: the softmax, and with
    dropout its mask and the result (Korthikanti et al. 2022, section 4.1: 5as²b)."""
    heads, tokens = model.heads / recipe.tensor, rows(model, recipe)
    if recipe.fused_attention:
        return (Saved("log-sum-exp", FLOAT * heads * tokens, ("none", "operators")),)
    scores = heads * tokens * model.sequence
    softmax = Saved("softmax", element_bytes(recipe) * scores, ("none",))
    if not model.dropout:
        return (softmax,)
    mask = Saved("softmax dropout mask", scores, ("none",))
    return (softmax, mask, Saved("softmax after dropout", element_bytes(recipe) * scores, ("none",)))


def _inner(model: Transformer, recipe: Recipe, inner: Number, first_kept: tuple[str, ...]) -> tuple[Saved, ...]:
    """Up, activation, down, of ``inner`` bytes: the activation's operands and its result; in eager a gate keeps its
    activated half too."""
    if not model.gated:
        return (Saved("up", inner, first_kept), Saved("activation", inner))
    eager = () if recipe.compiled else (Saved("activated gate", inner),)
    return (Saved("gate", inner, first_kept), Saved("up", inner), *eager, Saved("gated", inner))


def _dense(model: Transformer, recipe: Recipe) -> tuple[Saved, ...]:
    """Per-operator checkpointing keeps the fifth product (gate, or up) and, gated, the seventh, down's: in eager
    whether or not something reads it, compiled only what backward reads. What the tensor axis reduces it keeps too."""
    inner = element_bytes(recipe) * rows(model, recipe) * model.inner / recipe.tensor
    unread = ()
    if not recipe.compiled:
        down = (Saved("down", element_bytes(recipe) * rows(model, recipe) * model.hidden, ("operators",)),)
        reduced = (Saved("reduced", 2 * stream_bytes(model, recipe), ("operators",)),)
        unread = (*(down if model.gated else ()), *(reduced if recipe.sequence_parallel and recipe.tensor > 1 else ()))
    return (*_inner(model, recipe, inner, PRODUCT), *unread)


def _experts(model: Transformer, recipe: Recipe) -> tuple[Saved, ...]:
    """A balanced mixture: each token's ``top_k`` copies as sent and as the experts got them, what the experts keep, and
    their results, which the router's weights multiply. The router's logits and weights are in float32."""
    split = recipe.tensor if recipe.sequence_parallel else 1
    tokens = rows(model, recipe) / split
    routed = element_bytes(recipe) * tokens * model.top_k
    inner = routed * model.expert_inner                    # expert_tensor times the tokens, each 1/expert_tensor of it
    return (
        Saved("router", 2 * FLOAT * tokens * model.experts),
        Saved("sent tokens", routed * model.hidden),
        Saved("experts' tokens", routed * model.hidden * recipe.expert_tensor),
        *_inner(model, recipe, inner, PLAIN),
        Saved("experts' results", routed * model.hidden),
    )
