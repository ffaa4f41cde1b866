"""Measured products: read by device, halved, and the constants that made them found again."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from cost_models.compute import repeated_matmul_seconds
from cost_models.hardware import load_device
from cost_models.validation.products import FILE, Products, fit_products, halves, main, read_products, with_constants

TRUE = (0.85, 2000.0, 150.0, 3.0, 0.7, 30.0, 6.0, 0.25, 0.8)
"""The constants of ``products.START``, in its order."""


def made(count: int) -> Products:
    """Products of many shapes with the times that TRUE gives them."""
    draw = np.random.default_rng(1)
    m, n, k = (2.0 ** draw.uniform(low, 14, count) // 1 for low in (8, 5, 5))
    device = with_constants(load_device("h100-sxm")[0], TRUE)
    return Products(m, n, k, repeated_matmul_seconds(m, n, k, 1, "bfloat16", device))


def test_a_fit_finds_what_made_the_products() -> None:
    fitted, reported = halves(made(2000))
    assert (len(fitted.m), len(reported.m)) == (100, 1900)
    start = load_device("h100-sxm")[0]
    found, constants = fit_products(start, fitted)
    assert np.median(np.abs(reported.errors(start))) > 0.05 > 0.01 > np.median(np.abs(reported.errors(found)))
    assert list(constants.values())[:4] == pytest.approx(TRUE[:4], rel=0.1)


def test_the_command_reads_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    products = made(40)
    rows = zip(products.m, products.n, products.k, products.measured_s, strict=True)
    lines = [
        f"{name},bfloat16,{m:.0f},{n:.0f},{k:.0f},{1e3 * s},x"
        for m, n, k, s in rows for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200")
    ]  # fmt: skip
    text = "\n".join(["device,dtype,m,n,k,latency_ms,source", *lines])
    (tmp_path / FILE).write_bytes(gzip.compress(text.encode()))
    assert set(read_products(tmp_path / FILE)) == {"a100-sxm-80gb", "h100-sxm", "b200"}
    main([str(tmp_path)])
    assert "h100-sxm: profile, 38 products: median" in capsys.readouterr().out
