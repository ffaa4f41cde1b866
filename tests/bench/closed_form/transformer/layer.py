"""The operators of one transformer layer on one rank, with their times: closed forms of what a plan's operators cost.

A rank holds ``rows`` tokens of a microbatch and 1/tensor of each matrix. Times are seconds of one microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.arithmetic import Number, maximum
from cost_models.compute import (
    DTYPE_BYTES,
    attention_backward_seconds,
    attention_seconds,
    matmul_seconds,
    memory_bound_seconds,
    scores_seconds,
)
from cost_models.hardware import Device
from tests.bench.closed_form.transformer.elementwise import chain_seconds
from tests.bench.closed_form.transformer.model import Recipe, Transformer

HALF = {"bf16-mixed": "bfloat16", "bf16": "bfloat16", "fp16-mixed": "float16", "fp32": "float32", "fp64": "float64"}
"""The dtype in which a precision multiplies."""


@dataclass(frozen=True)
class Operator:
    """One operator of a layer.

    forward_s, backward_s              seconds on the device
    forward_kernels, backward_kernels  kernels that the framework starts for it
    core                               belongs to attention's core, which selective recomputation runs again
    weights_s                          of the backward, what only the weights' gradients take
    """

    name: str
    forward_s: Number
    backward_s: Number
    forward_kernels: int = 1
    backward_kernels: int = 2
    core: bool = False
    weights_s: Number = 0.0


def rows(model: Transformer, recipe: Recipe) -> Number:
    """Tokens of a microbatch on one rank."""
    return recipe.micro_batch * model.sequence / recipe.context


def layer_operators(model: Transformer, recipe: Recipe, device: Device) -> tuple[Operator, ...]:
    """Attention, feed-forward and what stands around them, in the order in which they run, with their seconds."""
    feed_forward = _experts(model, recipe, device) if model.experts else _dense(model, recipe, device)
    return (*_attention(model, recipe, device), *feed_forward)


def linear(
    name: str, m: Number, n: Number, k: Number, bias: bool, recipe: Recipe, device: Device, batch: Number = 1
) -> Operator:
    """The seconds of a matrix product [m, k] @ [k, n], and backward of its operands' gradients, [m, n] @ [n, k] and
    [k, m] @ [m, n]; a bias is added by the product itself, its gradient is the sum over the result's, read once more.

    In 8 bit each of the three products casts its operands first: the greatest magnitude is looked for (a pass of its
    own where one scale serves a whole tensor and nothing fuses the look), then 2 bytes are read and 1 written.
    """
    dtype = HALF[recipe.precision]
    if recipe.matmul != "float8":
        products = [matmul_seconds(*shape, batch, dtype, device) for shape in ((m, n, k), (m, k, n), (k, n, m))]
        summed_s = memory_bound_seconds(bias * DTYPE_BYTES[dtype] * m * n, device)
        weights_s = products[2] + summed_s
        return Operator(name, products[0], products[1] + weights_s, 1, 3 if bias else 2, weights_s=weights_s)
    dtype = "float8" if recipe.float8_scaling == "tensorwise" else "float8-rowwise"
    products = [matmul_seconds(*shape, batch, dtype, device) for shape in ((m, n, k), (m, k, n), (k, n, m))]
    passes = _float8_passes(recipe)
    cast = [memory_bound_seconds(passes * batch * size, device) for size in (m * k, k * n, m * n)]
    kernels = 1 if recipe.compiled else 3
    return Operator(
        name,
        products[0] + cast[0] + cast[1],
        products[1] + products[2] + 2 * cast[2] + cast[1] + cast[0],
        1 + 2 * kernels,
        2 + 4 * kernels,
        weights_s=products[2] + cast[2] + cast[0],
    )


def _float8_passes(recipe: Recipe) -> float:
    """Bytes an element that a cast to 8 bit moves: two reads of 2 bytes and a write of 1; compiled, the search for the
    greatest of a whole tensor is fused into what made it, the scales of rows need the rows once more, transposed."""
    if not recipe.compiled:
        return 5.0
    return 3.0 if recipe.float8_scaling == "tensorwise" else 6.0


def _attention(model: Transformer, recipe: Recipe, device: Device) -> tuple[Operator, ...]:
    tokens, dtype, split = rows(model, recipe), HALF[recipe.precision], recipe.tensor
    query, key = model.query_width / split, model.key_width / split
    return (
        norm("attention norm", model, recipe, device),
        linear("query, key, value", tokens, query + 2 * key, model.hidden, model.bias, recipe, device),
        *_rotary(model, recipe, device),
        _core(model, recipe, device, dtype),
        linear("projection", tokens, model.hidden, query, model.bias, recipe, device),
        _residual("attention residual", model, recipe, device),
    )


def _core(model: Transformer, recipe: Recipe, device: Device, dtype: str) -> Operator:
    """Attention over the local heads; a split sequence leaves each rank its share of the pairs."""
    heads, batch, length = model.heads / recipe.tensor, recipe.micro_batch, model.sequence
    width = model.head_width
    if recipe.fused_attention:
        extents = (batch, heads, length, length, width, model.causal and recipe.skips_masked)
        forward_s = attention_seconds(*extents, dtype, device)
        backward_s = attention_backward_seconds(*extents, dtype, device)
        return Operator("attention", forward_s / recipe.context, backward_s / recipe.context, 1, 3, core=True)
    skips = model.causal and recipe.skips_masked
    forward_s, backward_s = scores_seconds(batch, heads, length, length, width, model.dropout, dtype, device, skips)
    kernels = 4 if model.dropout else 3
    return Operator(
        "attention", forward_s / recipe.context, backward_s / recipe.context, kernels, kernels + 2, core=True
    )


def _rotary(model: Transformer, recipe: Recipe, device: Device) -> tuple[Operator, ...]:
    """Rotary embedding of queries and keys, where positions aren't learned; none of it is a matrix product.

    Compiled: one read, one write. In eager: cast up, multiplied, cast down, in float32 between.
    """
    if model.positions != "rotary":
        return ()
    elements = rows(model, recipe) * (model.query_width + model.key_width) / recipe.tensor
    passes, kernels = (2.0, 1) if recipe.compiled else (10.0, 4)
    seconds = chain_seconds(passes, kernels, elements, HALF[recipe.precision], device)
    return (Operator("rotary embedding", seconds, seconds, kernels, kernels, core=False),)


def norm(name: str, model: Transformer, recipe: Recipe, device: Device) -> Operator:
    """The seconds of a norm over the rows that this rank has of it. LayerNorm is one kernel (read, write), its backward
    one more (two read, one written) and the sums for its weights (two read). RMSNorm the same where compiled; in eager
    it is written in pieces, in float32: squares, mean, product, weight."""
    elements = rows(model, recipe) * model.hidden / (recipe.tensor if recipe.sequence_parallel else 1)
    fused = recipe.compiled or model.norm == "layer"
    dtype = HALF[recipe.precision]
    forward_s = chain_seconds(2.0 if fused else 12.0, 1 if fused else 5, elements, dtype, device)
    backward_s = chain_seconds(5.0 if fused else 20.0, 2 if fused else 10, elements, dtype, device)
    return Operator(name, forward_s, backward_s, 1 if fused else 5, 2 if fused else 10)


def _residual(name: str, model: Transformer, recipe: Recipe, device: Device) -> Operator:
    """Bias, dropout and the residual's addition: fused one kernel (two read, one written, half a pass of mask), else
    one each. Backward dropout's gradient, and the addition of the branches' gradients (two read, one written)."""
    elements = rows(model, recipe) * model.hidden / (recipe.tensor if recipe.sequence_parallel else 1)
    mask = 0.5 if model.dropout else 0.0
    eager = 0.0 if recipe.compiled or not model.dropout else 2.0
    kernels = 1 if recipe.compiled or not model.dropout else 2
    dtype = HALF[recipe.precision]
    forward_s = chain_seconds(3.0 + mask + eager, kernels, elements, dtype, device)
    backward_s = chain_seconds(3.0 + (2.0 + mask if model.dropout else 0.0), kernels, elements, dtype, device)
    return Operator(name, forward_s, backward_s, kernels, kernels)


def _activation(
    name: str, model: Transformer, recipe: Recipe, device: Device, tokens: Number, inner: Number
) -> Operator:
    """GELU of one matrix's result, or the gate's product of two: compiled, operands read and the result written once;
    backward the operands and the gradient read, the operands' gradients written."""
    operands = 2.0 if model.gated else 1.0
    eager = 2.0 if model.gated and not recipe.compiled else 0.0     # the activated half, written and read again
    kernels = 1 if recipe.compiled or not model.gated else 2
    dtype = HALF[recipe.precision]
    forward_s = chain_seconds(operands + 1.0 + eager, kernels, tokens * inner, dtype, device)
    backward_s = chain_seconds(2 * operands + 1.0 + 2 * eager, kernels, tokens * inner, dtype, device)
    return Operator(name, forward_s, backward_s, kernels, kernels)


def _dense(model: Transformer, recipe: Recipe, device: Device) -> tuple[Operator, ...]:
    tokens, inner = rows(model, recipe), model.inner / recipe.tensor
    wide = inner * (2 if model.gated else 1)
    return (
        norm("feed-forward norm", model, recipe, device),
        linear("up", tokens, wide, model.hidden, model.bias, recipe, device),
        _activation("activation", model, recipe, device, tokens, inner),
        linear("down", tokens, model.hidden, inner, model.bias, recipe, device),
        _residual("feed-forward residual", model, recipe, device),
    )


def _experts(model: Transformer, recipe: Recipe, device: Device) -> tuple[Operator, ...]:
    """A router, tokens put in the order of their experts (read and written, there and back), and grouped products."""
    tokens = rows(model, recipe) / (recipe.tensor if recipe.sequence_parallel else 1)
    routed = tokens * model.top_k
    here = maximum(1.0, model.experts / recipe.expert)
    inner = model.expert_inner
    wide = inner * (2 if model.gated else 1)
    each = routed / here if recipe.expert == 1 else routed * recipe.expert / model.experts
    dtype = HALF[recipe.precision]
    order_s = chain_seconds(2.0, 1, routed * model.hidden, dtype, device)
    return (
        norm("feed-forward norm", model, recipe, device),
        linear("router", tokens, model.experts, model.hidden, False, recipe, device),
        Operator("permutation", 2 * order_s, 2 * order_s, 4, 4),
        linear("experts up", each, wide, model.hidden, False, recipe, device, batch=here),
        _activation("activation", model, recipe, device, each * here, inner),
        linear("experts down", each, model.hidden, inner, False, recipe, device, batch=here),
        _residual("feed-forward residual", model, recipe, device),
    )


def head_operators(model: Transformer, recipe: Recipe, device: Device) -> tuple[Operator, ...]:
    """After the last layer, with their seconds: a norm, the logits over the local part of the vocabulary (never in 8
    bit), and the loss: logits cast to float32, their greatest, exponentials and sum; backward one pass that writes the
    gradient. A fused loss reads the logits as they are, once each way, and writes their gradient."""
    tokens, dtype = rows(model, recipe), HALF[recipe.precision]
    columns = model.vocabulary / recipe.tensor
    logits = tokens * columns
    shapes = ((tokens, columns, model.hidden), (tokens, model.hidden, columns), (model.hidden, columns, tokens))
    products = [matmul_seconds(*shape, 1, dtype, device) for shape in shapes]
    width = DTYPE_BYTES[dtype]
    each, kernels = ((10.0, 10.0), 3) if recipe.compiled else ((26.0, 26.0), 6)
    if recipe.loss == "fused":
        each, kernels = (width, 2 * width), 1
    loss_s = [memory_bound_seconds(bytes * logits, device) for bytes in each]
    return (
        norm("last norm", model, recipe, device),
        Operator("logits", products[0], products[1] + products[2]),
        Operator("loss", loss_s[0], loss_s[1], kernels, kernels),
    )


def embedding_operator(model: Transformer, recipe: Recipe, device: Device) -> Operator:
    """Seconds of reading and writing rows of the embedding; backward added into its gradient."""
    elements = rows(model, recipe) * model.hidden
    passes = (4.0 if model.positions == "learned" else 2.0) + (2.5 if model.dropout else 0.0)
    dtype = HALF[recipe.precision]
    forward_s = chain_seconds(passes, 1, elements, dtype, device)
    return Operator("embedding", forward_s, chain_seconds(passes + 1, 2, elements, dtype, device))


def gathered_bytes(recipe: Recipe) -> int:
    """Bytes of an element of what is gathered for a product: with one scale for a whole operand it is cast to 8 bit
    before it is gathered, with one for each row after."""
    tensorwise = recipe.matmul == "float8" and recipe.float8_scaling == "tensorwise"
    return 1 if tensorwise else DTYPE_BYTES[HALF[recipe.precision]]


def activation_message_bytes(model: Transformer, recipe: Recipe) -> Number:
    """Bytes of the tensor that goes from layer to layer, on one rank that holds all of its rows."""
    return rows(model, recipe) * model.hidden * DTYPE_BYTES[HALF[recipe.precision]]
