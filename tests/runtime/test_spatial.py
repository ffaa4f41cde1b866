"""Pictures split along a dim of space: rows of the batch are few, and channels don't divide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoplan.ir.graph import Node, Ref, TensorType
from autoplan.options import Parallelism
from autoplan.rules.nn.windows import Window, windows_of
from tests.support.planning import parallelize_unproved

pytestmark = pytest.mark.usefixtures("verified_in_pool")

SIZE = 512


class Net(nn.Module):
    """Windows that overlap, with strides of one and two, and some that lie side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 7, 5, stride=2, padding=2)
        self.last = nn.Conv2d(7, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(torch.tanh(self.first(x)), 3, 2, 1)
        h = F.avg_pool2d(torch.tanh(self.second(h)), 2)
        return self.last(h).square().mean()


def test_pictures_split_along_space_equal_one_device(tmp_path: Path) -> None:
    batch = {"x": torch.randn(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))}
    plan = parallelize_unproved(Net(), "1x4 cpu", batch, parallelism=Parallelism(dp=1, tp=4, pp=1))
    plan.export(tmp_path / "out")
    program = (tmp_path / "out" / "program.py").read_text()
    assert re.search(r"= convolution_along_[23]\(", program), program
    found = plan.verify()
    assert found.passed, str(found)


def test_windows_see_as_far_as_their_kernel_reaches() -> None:
    assert Window(3, 1, 1).halo == 2 and Window(3, 1, 1).splits(8)
    assert Window(3, 2, 1).halo == 1 and Window(3, 2, 1).splits(8) and not Window(3, 2, 1).splits(9)
    assert Window(7, 2, 3).after == 2 and Window(7, 2, 3).windows(8) == 4
    assert Window(4, 4).fills(8) and not Window(4, 4).fills(9) and not Window(4, 2).fills(8)
    assert not Window(3).splits(8), "without padding there are fewer windows than places"
    assert Window(3, 1, 2, 2).halo == 4


def test_windows_are_read_off_a_node() -> None:
    x, w = TensorType((2, 3, 8, 8), "float32"), TensorType((5, 3, 3, 1), "float32")
    args = (Ref("x"), Ref("w"), None, (2, 1), (1, 0), (1, 1), False, (0, 0), 1)
    conv = Node("y", "aten.convolution.default", args, (), TensorType((2, 5, 4, 8), "float32"))
    assert windows_of(conv, (x, w)) == (Window(3, 2, 1), Window(1))
    pool = Node("y", "aten.max_pool1d.default", (Ref("x"), (3,)), (), TensorType((2, 3, 8, 2), "float32"))
    assert windows_of(pool, (x,)) == (Window(3, 3),)
