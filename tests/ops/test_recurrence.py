"""A linear recurrence: the operator against its steps, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autoplan.ops.recurrence import recurrence
from tests.support.sampling import sampled

torch.set_num_threads(1)

ROWS, WIDTH = 2, 4


def stepwise(factor: Tensor, added: Tensor, dim: int) -> Tensor:
    states = [added.select(dim, 0)]
    for at in range(1, added.shape[dim]):
        states.append(factor.select(dim, at) * states[-1] + added.select(dim, at))
    return torch.stack(states, dim)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("length", sampled([1, 2, 5], [2, 5]))
def test_the_operator_is_the_loop(dim: int, length: int) -> None:
    shape = [ROWS, WIDTH]
    shape.insert(dim, length)
    factor, added = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda a, b: recurrence(a, b, dim), (factor, added))
    torch.testing.assert_close(recurrence(factor, added, dim), stepwise(factor, added, dim))
    torch.library.opcheck(torch.ops.autoplan.recurrence.default, (factor, added, dim))
