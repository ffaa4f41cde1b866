"""A causal attention of a rank's rows, in two blocks: equal to one device's in value and gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from autoplan.runtime import ops
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.ops.attention.last_rows import takes_blocks

CLOSE = {"rtol": 1e-10, "atol": 1e-11}
LENGTH = 12


def operands(kv: int) -> list[Tensor]:
    """q, k, v, and the gradient of the result."""
    generator = torch.Generator().manual_seed(kv)
    sizes = (4, kv, kv, 4)
    return [torch.randn(2, heads, LENGTH, 8, generator=generator, dtype=torch.float64) for heads in sizes]


def own(whole: list[Tensor], ways: int, rank: int, scale: float | None, *, compiled: bool = False) -> list[Tensor]:
    """A rank's rows of the result, and its share of the gradients of q, k and v."""
    axis = MeshAxis("cp", ways, rank)
    q, gradient = (x.chunk(ways, 2)[rank].clone() for x in (whole[0], whole[3]))
    k, v = (x.clone().requires_grad_() for x in whole[1:3])

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.causal_attention_rows(q, k, v, None, 0.0, True, scale=scale, enable_gqa=True, axes=(axis,))

    y = (torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run)(q.requires_grad_(), k, v)
    y.backward(gradient)
    return [y.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("ways", [1, 2, 3])
@pytest.mark.parametrize("kv", [4, 2, 1])
def test_rows_equal_one_device(kv: int, ways: int, scale: float | None) -> None:
    whole = operands(kv)
    assert takes_blocks(whole[0], whole[2], 0.3)
    q, k, v = (x.clone().requires_grad_() for x in whole[:3])
    want = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    want.backward(whole[3])
    parts = [own(whole, ways, rank, scale) for rank in range(ways)]
    torch.testing.assert_close(torch.cat([y for y, *_ in parts], 2), want.detach(), **CLOSE)
    torch.testing.assert_close(torch.cat([dq for _, dq, _, _ in parts], 2), q.grad, **CLOSE)
    for place, x in ((2, k), (3, v)):
        torch.testing.assert_close(sum(part[place] for part in parts), x.grad, **CLOSE)


def test_its_result_lies_row_by_row() -> None:
    """As the fused kernels' does: joining its heads, which is what is next, copies nothing."""
    for rank in range(2):
        assert own(operands(2), 2, rank, None)[0].transpose(1, 2).is_contiguous()


@pytest.mark.usefixtures("compiler")
def test_it_compiles_whole() -> None:
    for rank in range(2):
        compiled, eager = (own(operands(2), 2, rank, None, compiled=each) for each in (True, False))
        torch.testing.assert_close(compiled, eager, **CLOSE)
