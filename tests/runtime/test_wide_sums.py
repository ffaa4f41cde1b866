"""Half-precision gradients in float32 sums: the same bits as of gradients that are cast first, in fewer kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.runtime.parallel.gradient_buckets import widen
from autoplan.runtime.parallel.parameters import leaf

SHAPE = (5, 8)


class Kernels(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def summed(alone: bool, dtype: torch.dtype) -> tuple[Tensor, list[list[str]]]:
    """A weight's gradient of three microbatches, and the kernels of each backward."""
    generator, kernels = torch.Generator().manual_seed(0), []
    weight = leaf(torch.randn(SHAPE, generator=generator).to(dtype), True, torch.float32, alone)
    weight.register_post_accumulate_grad_hook(lambda p: widen(p, torch.float32))
    for _ in range(3):
        x = torch.randn(4, SHAPE[1], generator=generator).to(dtype)
        loss = nn.functional.linear(x, weight).float().square().sum()
        with Kernels() as launched:
            loss.backward()
        kernels.append(launched.names)
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    return weight.grad, kernels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_bits_are_those_of_gradients_cast_first(dtype: torch.dtype) -> None:
    at_once, few = summed(True, dtype)
    cast, more = summed(False, dtype)
    assert torch.equal(at_once, cast)
    assert [names.count("aten::_to_copy") for names in more] == [c + 1 for c in casts(few[1:], more)]
    assert [names.count("aten::add_") for names in few] == [0, 1, 1]


def casts(later: list[list[str]], of: list[list[str]]) -> list[int]:
    """Casts of a microbatch after the first, which are none of the weight's gradient."""
    (count,) = {names.count("aten::_to_copy") for names in later}
    return [count] * len(of)
