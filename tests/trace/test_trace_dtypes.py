"""Floating inputs of another dtype: let through where torch runs the model on them, refused where it doesn't."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoplan.errors import InputsError
from autoplan.trace.checks.input_dtypes import check_dtypes, stored_notes

X = torch.ones(4, 8)
IMAGE = torch.ones(2, 3, 8, 8)


class Casting(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model", [nn.Linear(8, 8), nn.Conv2d(3, 4, 3), nn.GRU(8, 8), nn.Linear(8, 8, device="meta")])
def test_what_torch_refuses_is_refused(model: nn.Module, dtype: torch.dtype) -> None:
    given = IMAGE if isinstance(model, nn.Conv2d) else X
    cause = rf"example_inputs\[0\] of {str(dtype)[6:]}: the model is of float32.*refuses"
    with pytest.raises(InputsError, match=cause):
        check_dtypes(model, (given.to(dtype),), None, "fp32")
    if not next(model.parameters()).is_meta:
        with pytest.raises((RuntimeError, ValueError)):
            model(given.to(dtype))


def test_half_a_norm_is_mixed_by_torch_and_double_is_not() -> None:
    norm = nn.LayerNorm(8)
    check_dtypes(norm, (X.bfloat16(),), None, "fp32")
    norm(X.bfloat16())
    with pytest.raises(InputsError, match="float64"):
        check_dtypes(norm, (X.double(),), None, "fp32")
    with pytest.raises(RuntimeError):
        norm(X.double())


@pytest.mark.parametrize(
    ("model", "given", "precision"),
    [
        (nn.Linear(8, 8), X, "bf16-mixed"),
        (nn.Linear(8, 8), X.double(), "fp64"),
        (nn.Linear(8, 8), X.bfloat16(), "bf16"),
        (nn.Linear(8, 8).bfloat16(), X, "bf16-mixed"),
        (nn.Linear(8, 8).bfloat16(), X.bfloat16(), "fp32"),
        (Casting(8, 8), X.double(), "fp32"),
        (nn.Embedding(8, 8), torch.zeros(4, dtype=torch.int32), "fp32"),
        (nn.Flatten(), X.double(), "fp32"),
    ],
)
def test_what_runs_is_let_through(model: nn.Module, given: Tensor, precision: str) -> None:
    check_dtypes(model, {"input": given}, None, precision)


def test_a_target_may_be_wider() -> None:
    check_dtypes(nn.Linear(8, 8), (X, X.double()), F.mse_loss, "fp32")


@pytest.mark.parametrize(
    ("model", "precision", "told"),
    [
        (nn.Linear(8, 8).bfloat16(), "fp32", "weights in bfloat16; the plan keeps them in float32; precision='bf16'"),
        (nn.Linear(8, 8).bfloat16(), "bf16-mixed", "the plan keeps them in float32; precision='bf16' keeps them so"),
        (nn.Linear(8, 8).double(), "fp32", "weights in float64; the plan keeps them in float32; precision='fp64'"),
        (nn.Linear(8, 8).half(), "fp16-mixed", "weights in float16; the plan keeps them in float32"),
        (nn.Linear(8, 8).bfloat16(), "bf16", ""),
        (nn.Linear(8, 8), "bf16-mixed", ""),
        (nn.Linear(8, 8).bfloat16().requires_grad_(False), "fp32", ""),
    ],
)
def test_weights_that_are_kept_in_another_dtype_are_told(model: nn.Module, precision: str, told: str) -> None:
    assert told in "".join(stored_notes(model, precision)) and bool(told) == bool(stored_notes(model, precision))
