"""Seconds of elementwise operators in a row, each in a kernel or all in one."""

from __future__ import annotations

from cost_models.arithmetic import Number, where_positive
from cost_models.compute import DTYPE_BYTES, streaming_seconds
from cost_models.hardware import Device


def chain_seconds(passes: Number, kernels: int, elements: Number, dtype: str, device: Device) -> Number:
    """Time of memory-bound kernels over ``elements`` each, in seconds: ``passes`` reads and writes of all of them
    together, in ``kernels`` kernels. Fused, a chain is one kernel, whose passes are its operands and its result."""
    bytes = passes * elements * DTYPE_BYTES[dtype]
    return where_positive(bytes, kernels * (device.kernel_launch_s + streaming_seconds(bytes / kernels, device)))
