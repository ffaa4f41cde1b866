"""Single kernels against published micro-benchmarks: matmuls by shape, attention by sequence, head and mask.

A benchmark of one kernel runs at clocks that training doesn't hold: it is predicted with ``matmul_sustained`` 1.

The profiles' efficiencies were fitted on the even rows by ``fit_matmul`` and ``fit_attention``:
``python -m tests.bench.closed_form.kernels ../shared/data/published`` prints the fits anew beside the errors.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from cost_models.compute import (
    ATTENTION_BACKWARD,
    DTYPE_BYTES,
    attention_backward_seconds,
    attention_seconds,
    matmul_flops,
    matmul_seconds,
    memory_bound_seconds,
    scores_seconds,
)
from cost_models.hardware import Device, load_device
from tests.bench.closed_form.case import Unusable
from tests.bench.closed_form.halves import split
from tests.bench.closed_form.metrics import Point
from tests.bench.closed_form.result import TableResult, results_of
from tests.bench.closed_form.rows import Row, rows_of

DEVICES = {
    "A100 SXM": "a100-sxm-80gb", "A100 (NVIDIA blog Fig. 6)": "a100-sxm-80gb", "A100-80GB SXM4": "a100-sxm-80gb",
    "A100 PCIe": "a100-pcie-80gb", "H100 SXM": "h100-sxm", "H100-80GB SXM5": "h100-sxm", "H200 SXM": "h200",
    "B200 SXM": "b200", "B200": "b200", "GB200 SXM": "gb200", "GB200": "gb200", "MI300X": "mi300x",
}  # fmt: skip
"""The profile of what a table calls a part."""

TOKENS, HIDDEN = 16384, 2048
"""Of FlashAttention's benchmarks: tokens in all, and the heads' extents together."""

FUSED, UNFUSED = ("FA2",), ("PyTorch unfused", "Standard")
"""Names of the attention that ``scaled_dot_product_attention`` runs on these parts, and of attention with its scores in
memory. The other kernels need other libraries."""


@dataclass(frozen=True)
class Matmul:
    """A product [m, k] @ [k, n] that ran at ``flops_per_s``."""

    row: int
    device: str
    dtype: str
    shape: tuple[int, int, int]
    flops_per_s: float

    def predicted(self, device: Device) -> float:
        """FLOP/s."""
        m, n, k = self.shape
        return float(matmul_flops(m, n, k) / matmul_seconds(m, n, k, 1, self.dtype, device))


@dataclass(frozen=True)
class Attention:
    """A self-attention over ``TOKENS`` tokens that ran at ``flops_per_s``, as its benchmark counts: half under a causal
    mask, and 3.5 forwards for forward and backward together."""

    row: int
    device: str
    fused: bool
    backward: bool
    causal: bool
    head_dim: int
    length: int
    flops_per_s: float

    def predicted(self, device: Device) -> float:
        """FLOP/s."""
        shape = TOKENS // self.length, HIDDEN // self.head_dim, self.length, self.length, self.head_dim
        flops = 4.0 * TOKENS * HIDDEN * self.length * (0.5 if self.causal else 1.0)
        if self.fused:
            forward_s = attention_seconds(*shape, self.causal, "bfloat16", device)
            backward_s = attention_backward_seconds(*shape, self.causal, "bfloat16", device)
        else:
            forward_s, backward_s = scores_seconds(*shape, False, "bfloat16", device)
            forward_s += self._mask_s(device)
        if self.backward:
            return float(flops * (1 + ATTENTION_BACKWARD) / (forward_s + backward_s))
        return float(flops / forward_s)


    def _mask_s(self, device: Device) -> float:
        """What the benchmarks' unfused attention pays for a causal mask: it is added in a kernel of its own."""
        scores = TOKENS * HIDDEN / self.head_dim * self.length
        return float(memory_bound_seconds(2 * DTYPE_BYTES["bfloat16"] * scores, device)) if self.causal else 0.0


Kernel = Matmul | Attention


def read_matmul(row: Row) -> Matmul:
    """A row of matmul_achieved.csv; ``Unusable`` for a part that has no profile."""
    sizes = [int(size) for size in row["shape_MxNxK"].split("x")]
    dtype = "float8" if row["op"].startswith("fp8") else "bfloat16"
    return Matmul(row.number, _device(row), dtype, (sizes[0], sizes[1], sizes[2]), row.positive("tflops") * 1e12)


def read_attention(row: Row) -> Attention:
    """A row of attention_achieved.csv; ``Unusable`` for another kernel than the profiles' figures are of."""
    if row["impl"] not in FUSED + UNFUSED:
        raise Unusable(f"{row['impl']} is not the attention that scaled_dot_product_attention runs")
    return Attention(
        row.number, _device(row), row["impl"] in FUSED, "bwd" in row["mode"], row.true("causal"),
        row.whole("head_dim"), row.whole("seq_len"), row.positive("tflops") * 1e12,
    )  # fmt: skip


def _device(row: Row) -> str:
    if row["gpu"] not in DEVICES:
        raise Unusable(f"{row['gpu']} has no profile")
    return DEVICES[row["gpu"]]


def alone(name: str) -> Device:
    """A device that runs one kernel again and again, at its full clocks."""
    return replace(load_device(name)[0], matmul_sustained=1.0)


def results(folder: Path) -> tuple[TableResult, ...]:
    """The errors of both tables, by device and kind of kernel; a table that isn't there gives none."""
    made: list[TableResult] = []
    for file, read in (("matmul_achieved.csv", read_matmul), ("attention_achieved.csv", read_attention)):
        if (folder / file).exists():
            kernels, left_out = _read(folder / file, read)
            made += _results(file, kernels, left_out)
    return tuple(made)


def _read(path: Path, read: Callable[[Row], Kernel]) -> tuple[list[Kernel], list[tuple[int, str]]]:
    kernels: list[Kernel] = []
    reasons: Counter[str] = Counter()
    for row in rows_of(path):
        try:
            kernels.append(read(row))
        except Unusable as error:
            reasons[str(error)] += 1
    return kernels, [(count, reason) for reason, count in reasons.items()]


def _results(file: str, kernels: Iterable[Kernel], left_out: Sequence[tuple[int, str]]) -> Iterable[TableResult]:
    by_kind: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_kind.setdefault(kind_of(kernel), []).append(kernel)
    for kind, held in by_kind.items():
        points = [point_of(kernel) for kernel in held]
        told = "" if kind in FITTED else " No figure was fitted on these rows."
        yield from results_of(
            kind, "FLOP/s", points, f"One kernel alone, at full clocks.{told}", file, left_out, kind in FITTED
        )
        left_out = ()


FITTED = ("matmul bfloat16", "attention")
"""The kinds whose figures the profiles hold; of the others all rows are reported."""


def kind_of(kernel: Kernel) -> str:
    if isinstance(kernel, Matmul):
        return f"matmul {kernel.dtype}"
    return "attention" if kernel.fused else "attention with scores"


def point_of(kernel: Kernel) -> Point:
    """A kernel with its prediction, in FLOP/s."""
    if isinstance(kernel, Matmul):
        label, group = "x".join(str(size) for size in kernel.shape), kernel.dtype
    else:
        passes = "forward and backward" if kernel.backward else "forward"
        label = f"{kernel.length} keys, heads of {kernel.head_dim}, {passes}"
        group = "causal" if kernel.causal else "full"
    predicted = kernel.predicted(alone(kernel.device))
    return Point(kernel.row, label, group, kernel.device, predicted, kernel.flops_per_s)


def fit_matmul(device: Device, kernels: Sequence[Matmul]) -> Device:
    """The device with efficiency, ramp, tiles' shares and launch fitted to the kernels; of fewer kernels than figures,
    with the efficiency alone."""
    (big, middle, small) = device.matmul_tiles
    if len(kernels) <= 5:
        return _fitted(kernels, lambda x: replace(device, matmul_efficiency=x[0]), [0.8], [0.1], [1.2])

    def build(x: Sequence[float]) -> Device:
        tiles = (big, (*middle[:2], float(x[3])), (*small[:2], float(x[3] * x[4])))
        return replace(
            device, matmul_efficiency=x[0], matmul_ramp_k=x[1] * 100, kernel_launch_s=x[2] * 1e-6, matmul_tiles=tiles
        )

    return _fitted(kernels, build, [0.95, 4.0, 6.0, 0.95, 0.8], [0.5, 0, 1, 0.5, 0.5], [1, 10, 15, 1, 1])


def fit_attention(device: Device, kernels: Sequence[Attention], backward: float | None = None) -> Device:
    """The device with the fused attention's efficiencies and ramps fitted to the kernels.

    backward  the backward's efficiency over the forward's, where no row of the forward alone tells them apart
    """

    def build(x: Sequence[float]) -> Device:
        return replace(
            device, attention_efficiency=x[0], attention_backward_efficiency=x[0] * (backward or x[3]),
            attention_ramp_k=x[1] * 100, attention_ramp_head_dim=x[2] * 10,
        )  # fmt: skip

    low, high = [0.1, 0.0, 0.0, 0.5], [1.0, 20.0, 20.0, 1.5]
    size = 4 if backward is None else 3
    return _fitted(kernels, build, [0.5, 2.0, 2.0, 0.9][:size], low[:size], high[:size])


def _fitted(
    kernels: Sequence[Kernel], build: Callable[[Sequence[float]], Device], start: list[float], low: list[float],
    high: list[float],
) -> Device:  # fmt: skip
    """The device under which the squares of the logarithms of predicted over measured are least."""

    def residuals(x: Sequence[float]) -> np.ndarray:
        device = build(x)
        return np.array([np.log(kernel.predicted(device) / kernel.flops_per_s) for kernel in kernels])

    found = least_squares(residuals, start, bounds=(low, high), diff_step=1e-2).x
    return build([float(value) for value in found])


FORWARD_TO_BACKWARD = 63 / 73
"""Of the peak, what FlashAttention-2 reaches backward and forward on an A100 (Dao 2023, abstract), whose plot holds
only both together."""


def fits(folder: Path) -> dict[str, Device]:
    """Each device's figures, fitted anew on the even rows."""
    matmuls, _ = _read(folder / "matmul_achieved.csv", read_matmul)
    attentions, _ = _read(folder / "attention_achieved.csv", read_attention)
    made: dict[str, Device] = {}
    for name in dict.fromkeys(kernel.device for kernel in matmuls if kind_of(kernel) in FITTED):
        own = [k for k in matmuls if isinstance(k, Matmul) and k.device == name and kind_of(k) in FITTED]
        made[name] = fit_matmul(alone(name), split(own)[0])
    for name in dict.fromkeys(kernel.device for kernel in attentions):
        fused = [k for k in attentions if isinstance(k, Attention) and k.device == name and k.fused]
        ratio = None if any(not kernel.backward for kernel in fused) else FORWARD_TO_BACKWARD
        made[name] = fit_attention(made[name], split(fused)[0], ratio)
    return made


def main(folder: str) -> None:
    """Prints each table's errors under the profiles, and the figures that a fit on the even rows gives."""
    for result in results(Path(folder)):
        for half, errors in (("fitted", result.fitted_errors), ("reported", result.errors)):
            if errors is not None:
                told = f"{errors.count:3} {half:8} mean {errors.mean:6.1%} max {errors.maximum:6.1%}"
                print(f"{result.series:18} {result.name:22} {told}")
    for name, device in fits(Path(folder)).items():
        tiles = ", ".join(f"{rows}x{columns} {share:.3f}" for rows, columns, share in device.matmul_tiles)
        print(
            f"{name}: matmul {device.matmul_efficiency:.3f}, ramp {device.matmul_ramp_k:.0f}, tiles {tiles}, "
            f"launch {device.kernel_launch_s * 1e6:.1f} us; attention {device.attention_efficiency:.3f}, backward "
            f"{device.attention_backward_efficiency:.3f}, ramps {device.attention_ramp_k:.0f} and "
            f"{device.attention_ramp_head_dim:.1f}"
        )


if __name__ == "__main__":
    main(sys.argv[1])
