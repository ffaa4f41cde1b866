"""An operator's time on one device: roofline with the efficiency that its shape really reaches.

Sizes are elements, times seconds. Every size may be a number, a NumPy array or a SymPy expression (``arithmetic``).
"""

from __future__ import annotations

from cost_models.arithmetic import Number, ceil, maximum, minimum, where_positive
from cost_models.errors import ProfileError
from cost_models.hardware import Device

MATMUL_BACKWARD = 2.0
"""A matmul's backward over its forward: one matmul for each operand's gradient, each of the forward's size."""

ATTENTION_BACKWARD = 2.5
"""A fused attention's backward FLOPs over its forward's: five matmuls, scores recomputed, against two.

Dao 2023, FlashAttention-2, section 4.1, which counts a backward as 2.5 forwards.
"""

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "float8-rowwise": 1}
"""Bytes of an element, by dtype name. "float8" products have one scale for each operand, "float8-rowwise" one a row."""


def peak_flops_per_s(device: Device, dtype: str) -> float:
    """The device's peak for a dtype name. A dtype that the profile lacks is an error, never another dtype's peak."""
    for name, peak in device.peaks:
        if name == dtype:
            return peak
    known = ", ".join(name for name, _ in device.peaks)
    raise ProfileError(dtype, f"the profile of {device.name} has no peak for it", f"Use one of {known}")


def matmul_flops(m: Number, n: Number, k: Number, batch: Number = 1) -> Number:
    """FLOPs of ``batch`` products [m, k] @ [k, n]: a multiplication and an addition for each of m·n·k."""
    return 2.0 * batch * m * n * k


def matmul_bytes(m: Number, n: Number, k: Number, batch: Number, dtype: str) -> Number:
    """Bytes that ``batch`` products [m, k] @ [k, n] read and write at least: each operand once, the result once."""
    return DTYPE_BYTES[dtype] * batch * (1.0 * m * k + 1.0 * k * n + 1.0 * m * n)


def matmul_seconds(m: Number, n: Number, k: Number, batch: Number, dtype: str, device: Device) -> Number:
    """Time of ``batch`` products [m, k] @ [k, n], in seconds.

    launch + max(tile-quantised FLOPs / (peak · efficiency · sustained), bytes / achieved bandwidth). 0 where any extent
    is 0.

    Roofline: Williams et al. 2009. Quantisation: the result is cut into tiles that run in waves of one tile a
    multiprocessor, and a last wave that is not full takes as long as a full one (NVIDIA, Matrix Multiplication
    Background User's Guide, sections 3.1 and 3.2); each tile also fills its pipeline once, worth ``matmul_ramp_k``
    steps of k. The library is taken to choose the best of the profile's tiles.
    """
    share = dict(device.matmul_shares).get(dtype, 1.0)
    peak = peak_flops_per_s(device, dtype) * device.matmul_efficiency * share * device.matmul_sustained
    per_multiprocessor = peak / device.multiprocessors
    tiled_s = []
    for rows, columns, share in device.matmul_tiles:
        tiles = ceil(m / rows) * ceil(n / columns) * batch
        waves = ceil(tiles / device.multiprocessors)
        flops_per_tile = 2.0 * rows * columns * (k + device.matmul_ramp_k)
        tiled_s.append(waves * flops_per_tile / (per_multiprocessor * share))
    moved_s = streaming_seconds(matmul_bytes(m, n, k, batch, dtype), device)
    busy_s = maximum(minimum(*tiled_s), moved_s)
    return where_positive(matmul_flops(m, n, k, batch), device.kernel_launch_s + busy_s)


def achieved_bytes_per_s(device: Device) -> float:
    """Memory bandwidth that a streaming kernel reaches."""
    return device.memory_bandwidth_bytes_per_s * device.memory_efficiency


def streaming_seconds(bytes: Number, device: Device) -> Number:
    """Time that a kernel's ``bytes`` take, reads and writes together, in seconds: bytes / achieved bandwidth, of those
    that stay in a cache by the cache's bandwidth."""
    if not device.cache_bytes:
        return bytes / achieved_bytes_per_s(device)
    near = minimum(bytes, device.cache_bytes)
    return near / device.cache_bandwidth_bytes_per_s + (bytes - near) / achieved_bytes_per_s(device)


def many_kernels_seconds(bytes: Number, device: Device) -> Number:
    """Time of kernels one behind the other that stream ``bytes`` together, each of them few (no more than
    ``Device.cache_bytes``), in seconds: launch + bytes / the bandwidth that such kernels achieve. 0 for 0 bytes."""
    rate = device.cache_bandwidth_bytes_per_s if device.cache_bytes else achieved_bytes_per_s(device)
    return where_positive(bytes, device.kernel_launch_s + bytes / rate)


def memory_bound_seconds(bytes: Number, device: Device) -> Number:
    """Time of a kernel that streams ``bytes`` in all, reads and writes together, in seconds: launch + bytes / achieved
    bandwidth.

    0 for 0 bytes: no kernel runs.
    """
    return where_positive(bytes, device.kernel_launch_s + streaming_seconds(bytes, device))


def eager_seconds(seconds: Number, device: Device) -> Number:
    """Time of an operator in eager mode whose kernels take ``seconds``: with streams the framework goes on to the next
    operator meanwhile, so whichever takes longer; where there are none (``Device.blocking``), one after the other."""
    return device.dispatch_s + seconds if device.blocking else maximum(device.dispatch_s, seconds)


def update_seconds(bytes: Number, device: Device) -> Number:
    """Time of an optimizer's update that moves ``bytes``, each parameter, gradient and state once for every read and
    write, in seconds: launch + bytes / achieved bandwidth / the share of it that the optimizer's kernels reach.

    What was last touched a step ago is in no cache.
    """
    rate = achieved_bytes_per_s(device) * device.update_efficiency
    return where_positive(bytes, device.kernel_launch_s + bytes / rate)


def attention_flops(
    batch: Number, heads: Number, q_len: Number, k_len: Number, head_dim: Number, causal: bool
) -> Number:
    """FLOPs of softmax(q kᵀ) v over ``heads`` query heads: two matmuls.

    A causal mask aligned to the end (a query sees the keys up to its own place) leaves out the pairs above the
    diagonal, which a fused kernel skips: q_len·k_len − q_len(q_len − 1)/2 pairs, for q_len ≤ k_len.
    """
    return 4.0 * batch * heads * head_dim * _pairs(q_len, k_len, causal)


def _pairs(q_len: Number, k_len: Number, causal: bool) -> Number:
    """Query-key pairs that are computed."""
    if not causal:
        return 1.0 * q_len * k_len
    seen = minimum(q_len, k_len)             # queries before the first key see none
    return 1.0 * seen * k_len - seen * (seen - 1.0) / 2


def attention_seconds(
    batch: Number, heads: Number, q_len: Number, k_len: Number, head_dim: Number,
    causal: bool, dtype: str, device: Device,
) -> Number:
    """Time of a fused attention's forward (no quadratic intermediate in memory), in seconds.

    launch + max(FLOPs / (peak · efficiency · keys/(keys + ramp) · head_dim/(head_dim + ramp)), bytes /
    achieved bandwidth): bytes are those of q, k, v and the output, keys how many a query sees on average.
    Grouped queries change only the bytes of k and v, which are counted at the query heads here: an upper bound of a
    term that is never the larger but for decoding.
    """
    return _attention(1.0, device.attention_efficiency, batch, heads, q_len, k_len, head_dim, causal, dtype, device)


def attention_backward_seconds(
    batch: Number, heads: Number, q_len: Number, k_len: Number, head_dim: Number,
    causal: bool, dtype: str, device: Device,
) -> Number:
    """Time of a fused attention's backward, in seconds: ``ATTENTION_BACKWARD`` times the FLOPs, at its efficiency."""
    efficiency = device.attention_backward_efficiency
    return _attention(ATTENTION_BACKWARD, efficiency, batch, heads, q_len, k_len, head_dim, causal, dtype, device)


def _attention(
    factor: float, efficiency: float, batch: Number, heads: Number, q_len: Number, k_len: Number, head_dim: Number,
    causal: bool, dtype: str, device: Device,
) -> Number:
    flops = factor * attention_flops(batch, heads, q_len, k_len, head_dim, causal)
    seen = k_len / 2 if causal else k_len    # keys that a query sees on average: what the ramp is measured in
    reached = efficiency * _ramped(seen, device.attention_ramp_k) * _ramped(head_dim, device.attention_ramp_head_dim)
    moved = factor * DTYPE_BYTES[dtype] * batch * heads * head_dim * (2.0 * q_len + 2.0 * k_len)
    busy_s = maximum(flops / (peak_flops_per_s(device, dtype) * reached), streaming_seconds(moved, device))
    return where_positive(1.0 * batch * heads * q_len * k_len * head_dim, device.kernel_launch_s + busy_s)


def _ramped(extent: Number, ramp: Number) -> Number:
    """The share that is reached at an extent of which ``ramp`` reaches half; at 0 there is no work."""
    return where_positive(extent, extent, 1.0) / (where_positive(extent, extent, 1.0) + ramp)


def scores_seconds(
    batch: Number, heads: Number, q_len: Number, k_len: Number, head_dim: Number,
    dropout: bool, dtype: str, device: Device, skips_masked: bool = False,
) -> tuple[Number, Number]:
    """(forward, backward) of an attention whose scores go through memory, in seconds.

    Forward: q kᵀ, a kernel that scales, masks and takes the softmax (scores read and written once), dropout where there
    is one (read, written, a byte of mask), and the product with v. Backward: two products for each of the two, the
    softmax's gradient from its result and its result's gradient (two read, one written), dropout's (read, written, the
    mask). These kernels reach ``Device.scores_efficiency`` of what streaming ones do; a ``ProfileError`` where a
    profile doesn't say it.

    skips_masked  the mask is causal, and the softmax's kernel doesn't read the pairs that it leaves out, but writes
                  their zeros (Megatron-LM, megatron/fused_kernels/scaled_upper_triang_masked_softmax.h). The products
                  and dropout are whole.
    """
    if device.scores_efficiency is None:
        cause = f"the profile of {device.name} doesn't say what kernels over attention's scores reach"
        raise ProfileError("attention.scores", cause, "Add it under [attention], or use a fused attention")
    scores = 1.0 * batch * heads * q_len * k_len / device.scores_efficiency
    width = DTYPE_BYTES[dtype]
    products_s = matmul_seconds(q_len, k_len, head_dim, batch * heads, dtype, device) + matmul_seconds(
        q_len, head_dim, k_len, batch * heads, dtype, device
    )
    read = 1.0 * batch * heads * _pairs(q_len, k_len, skips_masked) / device.scores_efficiency
    dropped = (2 * width + 1) * scores if dropout else 0
    forward_s = (
        products_s + memory_bound_seconds(width * (read + scores), device) + memory_bound_seconds(dropped, device)
    )
    backward_s = (
        MATMUL_BACKWARD * products_s
        + memory_bound_seconds(width * (2 * read + scores), device)
        + memory_bound_seconds(dropped, device)
    )
    return forward_s, backward_s
