"""Float64 without islands: of a traced model, and of a module that casts to float32 itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoplan.option_values import PRECISIONS
from autoplan.trace.passes.precision import FLOATING, compute_dtype, in_precision, widened
from autoplan.trace.pipeline import trace
from tests.support import zoo


class Wider(nn.Module):
    """Products of halves with a float32 buffer, and a float32 loss of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("mean", torch.ones(8))
        self.register_buffer("mixes", torch.ones(8, 8))
        self.register_buffer("blurs", torch.ones(6, 1, 3))

    def forward(self, x: torch.Tensor, target: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        scores = F.conv1d(self.fc(x - self.mean) @ self.mixes, self.blurs, padding=1, groups=6)
        return F.ctc_loss(scores.log_softmax(-1).transpose(0, 1), target, lengths + 4, lengths)


def test_halves_that_meet_wider_numbers_are_as_under_autocast() -> None:
    batch = (torch.ones(4, 6, 8), torch.ones(4, 3, dtype=torch.long), torch.full((4,), 2))
    model = trace(Wider(), batch, training=True, dtype="bfloat16")
    products = ("aten.linear.default", "aten.matmul.default", "aten.convolution.default", "autoplan.ctc_losses")
    met = set()
    for block in model.blocks:
        types = {**model.types(), **block.types()}
        read = [(node.op, types[name]) for node in block.nodes for name in node.operands if node.op in products]
        met |= {(op, kind.dtype) for op, kind in read if kind.floating}
    assert met == {
        ("aten.linear.default", "bfloat16"), ("aten.matmul.default", "bfloat16"),
        ("aten.convolution.default", "bfloat16"), ("autoplan.ctc_losses", "float32"),
    }  # fmt: skip


def test_every_precision_has_a_dtype() -> None:
    assert {compute_dtype(p) for p in PRECISIONS} == {"float32", "bfloat16", "float16"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_in_fp64_has_no_other_floating_dtype(dtype: str) -> None:
    module, batch, _ = zoo.small("llama", device="meta")
    traced = trace(module, batch, training=True, dtype=dtype)
    model = in_precision(traced, "fp64")
    values = [*model.batch, *model.parameters, *model.buffers, *model.constants]
    for block in model.blocks:
        values += [*block.inputs, *block.externals, *block.parameters, *block.buffers, *block.nodes]
    assert {v.type.dtype for v in values if v.type.floating} == {"float64"}
    assert not any(str(wide) in repr(v) for wide in FLOATING[:3] for v in values)
    assert len(model.segments) == len(traced.segments)
    casts = [n for b in model.blocks for n in b.nodes if n.op == "aten.to.dtype"]
    assert casts == []


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real((x * self.weight).to(torch.complex64) * 1j).sum()


def test_a_cast_to_complex_numbers_stays_one() -> None:
    model = in_precision(trace(Spectrum(), (torch.randn(4, 8),), training=True), "fp64")
    casts = [n for b in model.blocks for n in b.nodes if n.op == "aten.to.dtype"]
    assert [n.type.dtype for n in casts] == ["complex128"]


def test_other_precisions_are_as_traced() -> None:
    module, batch, _ = zoo.small("mlp", device="meta")
    traced = trace(module, batch, loss_fn=zoo.LOSSES["mlp"], training=True)
    assert all(in_precision(traced, p) is traced for p in PRECISIONS if p != "fp64")


class Casting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x).float().softmax(-1, dtype=torch.float32).to(torch.bfloat16)
        z = y * torch.arange(8, dtype=torch.float32) * torch.tensor(0.1) * torch.full((8,), 0.3)
        return z.type(torch.float32)


def test_widened_keeps_a_module_in_float64() -> None:
    module, x = Casting(), torch.randn(4, 8, dtype=torch.float64)
    with widened():
        got = module(x)
    expected = module.fc(x).softmax(-1) * torch.arange(8).double() * 0.1 * 0.3
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=0)
    got.sum().backward()
    assert module.fc.weight.grad is not None and module.fc.weight.grad.dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32
    assert module(x).dtype == torch.float32


def test_widened_gives_the_default_dtype_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), widened():
        raise ZeroDivisionError
    assert torch.get_default_dtype() == torch.float32
