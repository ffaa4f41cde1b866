"""Measured products of many shapes against the formula, and its constants fitted on one in twenty of them.

    python -m cost_models.validation.products [FOLDER] [--fit]

The file is a vendor's own table of kernels (ai-dynamo/aiconfigurator), each product run again and again by itself. Rows
of a device are shuffled once; ``--fit`` finds constants on the first twentieth and says their errors on the others.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from cost_models.compute import repeated_matmul_seconds
from cost_models.hardware import Device, Repeated, load_device
from cost_models.validation.published import default_folder

FILE = "gemm_bf16_a100_h100_b200.csv.gz"
DEVICES = {"NVIDIA A100-SXM4-80GB": "a100-sxm-80gb", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA B200": "b200"}
FITTED = 20  # one row of so many
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
START = {
    "efficiency": 0.9, "tile area": 1500.0, "ramp_k": 200.0, "kernel_launch, us": 2.5, "memory.efficiency": 0.8,
    "cache, MB": 40.0, "cache_bandwidth, TB/s": 5.0, "throttle": 0.18, "throttle_time, ms": 1.0,
}  # fmt: skip
"""The constants of a device, and where their search starts. A tile's share of the efficiency is area / (area +
"tile area")."""
WITHIN = 5.0  # the factor by which a constant may leave its start
LOOSE = 0.1  # errors beyond this share count in proportion, not squared


@dataclass(frozen=True)
class Products:
    """Shapes [m, k] @ [k, n] as a column each, with the seconds that they took."""

    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    measured_s: np.ndarray

    def of(self, places: np.ndarray) -> Products:
        return Products(self.m[places], self.n[places], self.k[places], self.measured_s[places])

    def errors(self, device: Device) -> np.ndarray:
        """Predicted over measured, less 1."""
        predicted = repeated_matmul_seconds(self.m, self.n, self.k, 1, "bfloat16", device)
        return predicted / self.measured_s - 1


def read_products(path: Path) -> dict[str, Products]:
    """By profile."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    made = {}
    for name, profile in DEVICES.items():
        own = [row for row in rows if row["device"] == name]
        sizes = (np.array([float(row[column]) for row in own]) for column in ("m", "n", "k", "latency_ms"))
        m, n, k, took_ms = sizes
        made[profile] = Products(m, n, k, took_ms / 1e3)
    return made


def halves(products: Products) -> tuple[Products, Products]:
    """(for fitting, reported)."""
    order = np.random.default_rng(0).permutation(len(products.m))
    count = len(order) // FITTED
    return products.of(order[:count]), products.of(order[count:])


def fit_products(device: Device, products: Products) -> tuple[Device, Mapping[str, float]]:
    """The device under which the products' times are met best, and its constants: least squares of the logarithm of
    predicted over measured, soft beyond ``LOOSE``, from three starts."""
    first, room = np.log(list(START.values())), np.log(WITHIN)
    shifts = [np.zeros_like(first), *np.random.default_rng(0).normal(0, 0.2, (2, first.size))]

    def residuals(values: np.ndarray) -> np.ndarray:
        return np.log1p(products.errors(with_constants(device, np.exp(values))))

    found = [
        least_squares(residuals, first + shift, bounds=(first - room, first + room), loss="soft_l1", f_scale=LOOSE,
                      diff_step=1e-2)
        for shift in shifts
    ]  # fmt: skip
    values = np.exp(min(found, key=lambda each: each.cost).x)
    return with_constants(device, values), dict(zip(START, map(float, values), strict=True))


def with_constants(device: Device, values: Sequence[float]) -> Device:
    """The device with the constants of ``START`` as they are given."""
    efficiency, area, ramp, launch_us, memory, cache_mb, cache_tb_s, throttle, throttle_ms = map(float, values)
    best = shared(TILES[0], area)
    return replace(
        device, matmul_efficiency=efficiency * best, matmul_ramp_k=ramp, kernel_launch_s=launch_us * 1e-6,
        matmul_tiles=tuple((*tile, shared(tile, area) / best) for tile in TILES), memory_efficiency=memory,
        repeated=Repeated(cache_mb * 1e6, cache_tb_s * 1e12, throttle, throttle_ms * 1e-3),
    )  # fmt: skip


def shared(tile: tuple[int, int], area: float) -> float:
    return tile[0] * tile[1] / (tile[0] * tile[1] + area)


def told(errors: np.ndarray) -> str:
    size = 100 * np.abs(errors)
    return f"median {np.median(size):.1f}%, 95th percentile {np.percentile(size, 95):.1f}%, mean {size.mean():.1f}%"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints each device's errors under its profile, and under constants fitted anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder())
    parser.add_argument("--fit", action="store_true", help="find the constants anew")
    given = parser.parse_args(arguments)
    for name, products in read_products(given.folder / FILE).items():
        device, _ = load_device(name)
        fitted, reported = halves(products)
        print(f"{name}: profile, {len(reported.m)} products: {told(reported.errors(device))}")
        if given.fit:
            device, constants = fit_products(device, fitted)
            print(f"  fitted on {len(fitted.m)} ({told(fitted.errors(device))}): {told(reported.errors(device))}")
            print("  " + ", ".join(f"{key} {value:.4g}" for key, value in constants.items()))
            print("  tiles " + ", ".join(f"{r}x{c} {share:.3f}" for r, c, share in device.matmul_tiles))


if __name__ == "__main__":
    main()
