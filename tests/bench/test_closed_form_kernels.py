"""Single kernels: rows read, predicted, fitted on one half and reported on the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.bench.closed_form.case import Unusable
from tests.bench.closed_form.kernels import (
    HIDDEN,
    TOKENS,
    Attention,
    Matmul,
    alone,
    fit_attention,
    fit_matmul,
    fits,
    kind_of,
    main,
    point_of,
    read_attention,
    read_matmul,
    results,
)
from tests.bench.closed_form.rows import Row

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "published"

MATMULS = """op,gpu,shape_MxNxK,tflops,peak,pct_peak,note,source,status
"bf16 matmul m=n=k, cuBLAS",A100 (NVIDIA blog Fig. 6),1024x1024x1024,89,312,28.5,x,x,x
"bf16 matmul m=n=k, cuBLAS",A100 (NVIDIA blog Fig. 6),2048x2048x2048,195,312,62.5,x,x,x
"bf16 matmul m=n=k, cuBLAS",A100 (NVIDIA blog Fig. 6),4096x4096x4096,259,312,83.0,x,x,x
"bf16 matmul m=n=k, cuBLAS",A100 (NVIDIA blog Fig. 6),8192x8192x8192,291,312,93.3,x,x,x
"bf16 matmul, best shape (MAMF mean of 100)",Gaudi2,14336x15360x2048,418.7,432,96.9,x,x,x
"fp8 matmul, best shape (MAMF)",H100 SXM,1024x9216x14336,1402.6,1979,70.9,x,x,x
"""
ATTENTIONS = """impl,gpu,mode,causal,head_dim,seq_len,tflops,note,source,status
FA2,A100-80GB SXM4,fwd+bwd,no,64,2048,162,x,x,x
FA2,A100-80GB SXM4,fwd+bwd,yes,128,8192,182,x,x,x
FA3,H100-80GB SXM5,fwd,no,128,4096,638,x,x,x
PyTorch unfused,A100-80GB SXM4,fwd+bwd,no,128,2048,76,x,x,x
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "matmul_achieved.csv").write_text(MATMULS)
    (tmp_path / "attention_achieved.csv").write_text(ATTENTIONS)
    return tmp_path


def test_every_kind_and_device_is_told_apart_with_what_was_left_out(folder):
    told = results(folder)
    assert {(result.name, result.series, len(result.points)) for result in told} == {
        ("matmul bfloat16", "a100-sxm-80gb", 4), ("matmul float8", "h100-sxm", 1), ("attention", "a100-sxm-80gb", 2),
        ("attention with scores", "a100-sxm-80gb", 1),
    }  # fmt: skip
    assert {reason for result in told for _, reason in result.left_out} == {
        "Gaudi2 has no profile", "FA3 is not the attention that scaled_dot_product_attention runs",
    }  # fmt: skip
    fitted = next(result for result in told if result.name == "matmul bfloat16")
    assert [point.row for point in fitted.fitted] == [1, 3] and [point.row for point in fitted.reported] == [2, 4]
    assert all(not result.fitted for result in told if result.name in ("matmul float8", "attention with scores"))


def test_a_folder_without_the_tables_gives_nothing(tmp_path):
    assert results(tmp_path) == ()


def test_profiles_are_near_what_was_measured(folder):
    errors = {result.name: [abs(point.error) for point in result.points] for result in results(folder)}
    assert np.mean(errors["matmul bfloat16"]) < 0.05 and max(errors["matmul bfloat16"]) < 0.1
    assert max(errors["attention"]) < 0.08


def test_a_row_is_read_as_it_was_counted():
    """A causal attention is counted as half, forward and backward together as 3.5 forwards."""
    text = {"impl": "FA2", "gpu": "A100-80GB SXM4", "mode": "fwd+bwd", "causal": "yes", "head_dim": "64",
            "seq_len": "512", "tflops": "88"}  # fmt: skip
    kernel = read_attention(Row(3, text))
    assert kernel == Attention(3, "a100-sxm-80gb", True, True, True, 64, 512, 88e12)
    device = alone("a100-sxm-80gb")
    full = replace(kernel, causal=False)
    counted = 4.0 * TOKENS * HIDDEN * 512 * 3.5
    assert counted / full.predicted(device) > counted / 2 / kernel.predicted(device) > 0
    assert point_of(kernel).group == "causal" and point_of(kernel).predicted == kernel.predicted(device)
    with pytest.raises(Unusable, match="TPU has no profile"):
        read_matmul(Row(1, {"op": "bf16", "gpu": "TPU", "shape_MxNxK": "8x8x8", "tflops": "1"}))


def test_a_benchmark_of_one_kernel_runs_at_full_clocks():
    assert alone("h100-sxm").matmul_sustained == 1.0


@pytest.mark.parametrize("efficiency", [0.5, 0.9])
def test_a_fit_of_one_product_finds_its_efficiency(efficiency):
    true = replace(alone("b200"), matmul_efficiency=efficiency)
    kernel = Matmul(1, "b200", "bfloat16", (1792, 16128, 3072), 0.0)
    measured = replace(kernel, flops_per_s=kernel.predicted(true))
    assert fit_matmul(alone("b200"), [measured]).matmul_efficiency == pytest.approx(efficiency, rel=1e-3)


def test_a_fit_finds_the_figures_that_made_its_kernels():
    true = replace(
        alone("a100-sxm-80gb"), matmul_efficiency=0.9, matmul_ramp_k=250.0, kernel_launch_s=5e-6,
        attention_efficiency=0.7, attention_backward_efficiency=0.6, attention_ramp_k=300.0,
        attention_ramp_head_dim=30.0,
    )  # fmt: skip
    products = [Matmul(i, true.name, "bfloat16", (n, n, n), 0.0) for i, n in enumerate(range(512, 8193, 512))]
    found = fit_matmul(alone(true.name), [replace(p, flops_per_s=p.predicted(true)) for p in products])
    assert found.matmul_efficiency == pytest.approx(0.9, rel=0.02)
    assert found.matmul_ramp_k == pytest.approx(250.0, rel=0.15)
    heads = [
        Attention(0, true.name, True, backward, causal, head_dim, length, 0.0)
        for backward in (False, True) for causal in (False, True) for head_dim in (64, 128)
        for length in (512, 2048, 8192)
    ]  # fmt: skip
    found = fit_attention(alone(true.name), [replace(kernel, flops_per_s=kernel.predicted(true)) for kernel in heads])
    for name in ("efficiency", "backward_efficiency", "ramp_k", "ramp_head_dim"):
        assert getattr(found, f"attention_{name}") == pytest.approx(getattr(true, f"attention_{name}"), rel=0.02)
    backward_alone = [kernel for kernel in heads if kernel.backward]
    told = fit_attention(
        alone(true.name), [replace(kernel, flops_per_s=kernel.predicted(true)) for kernel in backward_alone], 6 / 7
    )
    assert told.attention_efficiency == pytest.approx(0.7, rel=0.02)


def test_the_command_prints_errors_and_fits(folder, capsys):
    main(str(folder))
    text = capsys.readouterr().out
    assert "a100-sxm-80gb      matmul bfloat16" in text and "a100-sxm-80gb: matmul 0." in text
    assert set(fits(folder)) == {"a100-sxm-80gb"}


def test_the_published_tables_where_they_are():
    """On rows that nothing was fitted on."""
    for result in results(PUBLISHED):
        if result.name in ("matmul bfloat16", "attention") and result.errors is not None:
            assert result.errors.mean < 0.05, (result.name, result.series)
            assert result.errors.rank is None or result.errors.rank > 0.9


def test_kinds():
    assert kind_of(Matmul(1, "h100-sxm", "float8", (1, 1, 1), 1.0)) == "matmul float8"
