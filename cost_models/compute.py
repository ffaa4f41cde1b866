"""An operator's time on one device, forward: roofline with the efficiency that its shape really reaches.

Sizes are elements, times seconds. Every size may be a number or a NumPy array of numbers (broadcast together).
A backward is a factor of the forward: ``MATMUL_BACKWARD``, ``attention_backward_seconds``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.errors import ProfileError
from cost_models.hardware import Device

Number = Any
"""A float, an int, or a NumPy array of them."""

MATMUL_BACKWARD = 2.0
"""A matmul's backward over its forward: one matmul for each operand's gradient, each of the forward's size."""

ATTENTION_BACKWARD = 2.5
"""A fused attention's backward FLOPs over its forward's: five matmuls, scores recomputed, against two.

Dao 2023, FlashAttention-2, section 4.1, which counts a backward as 2.5 forwards.
"""

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element, by dtype name."""


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

    launch + max(tile-quantised FLOPs / (peak · efficiency), bytes / achieved bandwidth). 0 where any extent is 0.

    Roofline: Williams et al. 2009. Quantisation: the result is cut into tiles that run in waves of one tile a
    multiprocessor, and a last wave that is not full takes as long as a full one (NVIDIA, Matrix Multiplication
    Background User's Guide, sections 3.1 and 3.2); each tile also fills its pipeline once, worth ``matmul_ramp_k``
    steps of k. The library is taken to choose the best of the profile's tiles.
    """
    peak = peak_flops_per_s(device, dtype) * device.matmul_efficiency
    per_multiprocessor = peak / device.multiprocessors
    compute_s: Number = np.inf
    for rows, columns, share in device.matmul_tiles:
        tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
        waves = np.ceil(tiles / device.multiprocessors)
        flops_per_tile = 2.0 * rows * columns * (k + device.matmul_ramp_k)
        compute_s = np.minimum(compute_s, waves * flops_per_tile / (per_multiprocessor * share))
    moved_s = matmul_bytes(m, n, k, batch, dtype) / achieved_bytes_per_s(device)
    nonzero = matmul_flops(m, n, k, batch) > 0
    return nonzero * (device.kernel_launch_s + np.maximum(compute_s, moved_s))


def achieved_bytes_per_s(device: Device) -> float:
    """Memory bandwidth that a streaming kernel reaches."""
    return device.memory_bandwidth_bytes_per_s * device.memory_efficiency


def memory_bound_seconds(bytes: Number, device: Device) -> Number:
    """Time of a kernel that streams ``bytes`` in all, reads and writes together: launch + bytes / achieved bandwidth.

    0 for 0 bytes: no kernel runs.
    """
    return (bytes > 0) * (device.kernel_launch_s + bytes / achieved_bytes_per_s(device))


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
    seen = np.minimum(q_len, k_len)          # queries before the first key see none
    return 1.0 * seen * k_len - seen * (seen - 1.0) / 2


def attention_seconds(
    batch: Number, heads: Number, q_len: Number, k_len: Number, head_dim: Number,
    causal: bool, dtype: str, device: Device,
) -> Number:
    """Time of a fused attention's forward (no quadratic intermediate in memory), in seconds.

    launch + max(FLOPs / (peak · efficiency · keys/(keys + ramp) · head_dim/(head_dim + ramp)), bytes / achieved
    bandwidth): bytes are those of q, k, v and the output, keys how many a query sees on average.
    Grouped queries change only the bytes of k and v, which are counted at the query heads here: an upper bound of a
    term that is never the larger but for decoding.
    """
    return _attention(1.0, device.attention_efficiency, batch, heads, q_len, k_len, head_dim, causal, dtype, device)


def attention_backward_seconds(
    batch: Number, heads: Number, q_len: Number, k_len: Number, head_dim: Number,
    causal: bool, dtype: str, device: Device,
) -> Number:
    """Time of a fused attention's backward: ``ATTENTION_BACKWARD`` times the FLOPs at the backward's efficiency."""
    efficiency = device.attention_backward_efficiency
    return _attention(ATTENTION_BACKWARD, efficiency, batch, heads, q_len, k_len, head_dim, causal, dtype, device)


def _attention(
    factor: float, efficiency: float, batch: Number, heads: Number, q_len: Number, k_len: Number, head_dim: Number,
    causal: bool, dtype: str, device: Device,
) -> Number:
    flops = factor * attention_flops(batch, heads, q_len, k_len, head_dim, causal)
    seen = k_len / 2 if causal else k_len    # keys that a query sees on average: what the ramp is measured in
    reached = efficiency * seen / (seen + device.attention_ramp_k)
    reached = reached * head_dim / (head_dim + device.attention_ramp_head_dim)
    moved = factor * DTYPE_BYTES[dtype] * batch * heads * head_dim * (2.0 * q_len + 2.0 * k_len)
    busy_s = np.maximum(flops / (peak_flops_per_s(device, dtype) * reached), moved / achieved_bytes_per_s(device))
    return (flops > 0) * (device.kernel_launch_s + busy_s)
