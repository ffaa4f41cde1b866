"""What eager operators are priced as is what the installed torch runs: kernel for kernel, and byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from autoplan.cluster import ClusterSpec
from autoplan.cost.operators.eager import COMPOSITE, TABLE, Moved, backward_bytes, forward_bytes, kernels_of
from autoplan.runtime.ops import cross_entropy

VIEWS = frozenset("view _unsafe_view t transpose expand slice select unsqueeze detach permute reshape alias".split())
EMPTY = frozenset(("empty", "empty_like", "lift_fresh", "scalar_tensor"))
STATISTICS = 0.02  # of a tensor: one number a row
ROWS, WIDTH = (4, 64), 256
UNIT = 4 * 64 * WIDTH * 4


@dataclass
class Kernel:
    name: str
    bytes: float


@dataclass
class Seen(TorchDispatchMode):
    """Every kernel that is dispatched with the bytes that it reads and writes; a broadcast tensor counts once."""

    kernels: list[Kernel] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        if name in VIEWS | EMPTY:
            return out
        read, written = tensors(args) + tensors(tuple((kwargs or {}).values())), tensors(out)
        if name in ("slice_backward", "select_backward"):  # zeros, and a copy into them
            self.kernels += [Kernel("zeros", size(written)), Kernel("copy_", 2 * size(read))]
        elif name in ("nll_loss_forward", "nll_loss_backward"):  # reads one number a row; writes one a row into zeros
            self.kernels.append(Kernel(name, size(written)))
        else:
            self.kernels.append(Kernel(name, size(read) + size(written)))
        return out


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in tensors(item)] if isinstance(value, (tuple, list)) else []


def size(found: list[Tensor]) -> float:
    """Bytes, of a broadcast tensor those that it has."""
    return sum(t.untyped_storage().nbytes() if 0 in t.stride() else t.nbytes for t in found)


def rows(*shape: int) -> Tensor:
    return torch.randn(shape or (*ROWS, WIDTH), dtype=torch.float32, requires_grad=True)


X, Y, W = rows, rows, lambda: rows(WIDTH)
TARGETS = torch.zeros(ROWS, dtype=torch.int64)
CASES: dict[str, tuple[Callable[..., Tensor], tuple[Callable[[], Tensor], ...]]] = {
    "aten.rms_norm.default": (lambda x, w: F.rms_norm(x, (WIDTH,), w, 1e-6), (X, W)),
    "aten.add.Tensor": (torch.add, (X, Y)),
    "aten.sub.Tensor": (torch.sub, (X, Y)),
    "aten.mul.Tensor": (torch.mul, (X, Y)),
    "aten.div.Tensor": (torch.div, (X, Y)),
    "aten.tanh.default": (torch.tanh, (X,)),
    "aten.sigmoid.default": (torch.sigmoid, (X,)),
    "aten.relu.default": (torch.relu, (X,)),
    "aten.exp.default": (torch.exp, (X,)),
    "aten.rsqrt.default": (torch.rsqrt, (X,)),
    "aten.sqrt.default": (torch.sqrt, (X,)),
    "aten.square.default": (torch.square, (X,)),
    "aten.pow.Tensor_Scalar": (lambda x: x.pow(2), (X,)),
    "aten.cos.default": (torch.cos, (X,)),
    "aten.sin.default": (torch.sin, (X,)),
    "aten.clone.default": (torch.clone, (X,)),
    "aten.softmax.int": (lambda x: x.softmax(-1), (X,)),
    "aten.log_softmax.int": (lambda x: x.log_softmax(-1), (X,)),
    "aten.sum.default": (lambda x: x.sum(), (X,)),
    "aten.sum.dim_IntList": (lambda x: x.sum(-1), (X,)),
    "aten.mean.default": (lambda x: x.mean(), (X,)),
    "aten.mean.dim": (lambda x: x.mean(-1, keepdim=True), (X,)),
    "aten.slice.Tensor": (lambda x: x[..., :128], (X,)),
    "aten.select.int": (lambda x: x.select(1, 0), (X,)),
    "aten.cat.default": (lambda x, y: torch.cat((x, y), -1), (X, Y)),
    "aten.stack.default": (lambda x, y: torch.stack((x, y), -1), (X, Y)),
    "aten.expand.default": (lambda x: x.expand(8, *ROWS, WIDTH), (X,)),
    "autoplan.cross_entropy": (lambda x: cross_entropy(x, TARGETS, torch.tensor(200.0), -100, 0.0), (X,)),
}
PRODUCTS = frozenset(op for op in TABLE if "linear" in op or "mm" in op or "matmul" in op or "attention" in op)
CPU, GPU = (ClusterSpec.parse(text).profile()[0] for text in ("1x1 cpu", "1x1 h100-sxm"))


def dispatched(op: Callable[..., Tensor], operands: list[Tensor]) -> tuple[list[Kernel], list[Kernel], Tensor]:
    """Kernels forward, kernels backward, and the result."""
    with Seen() as ahead:
        result = op(*operands)
    gradient = torch.randn(result.shape)
    with Seen() as back:
        torch.autograd.grad(result, operands, gradient)
    return ahead.kernels, back.kernels, result


def alike(kernels: list[Kernel], priced: list[float]) -> None:
    """As many kernels that move tensors, and as many bytes; what only touches a number a row counts for neither."""
    moving = [kernel.bytes / UNIT for kernel in kernels if kernel.bytes > 2 * STATISTICS * UNIT]
    told = [size / UNIT for size in priced if size > 2 * STATISTICS * UNIT]
    assert len(moving) == len(told), f"{kernels}, priced {told}"
    assert sorted(told) == pytest.approx(sorted(moving), abs=2 * STATISTICS)


@pytest.mark.parametrize("op", CASES)
def test_the_table_is_what_torch_runs(op: str) -> None:
    function, make = CASES[op]
    operands = [one() for one in make]
    ahead, back, result = dispatched(function, operands)
    kernels = kernels_of(op, CPU)
    assert kernels is not None
    moved = Moved([x.nbytes for x in operands], result.nbytes, [True] * len(operands))
    alike(ahead, forward_bytes(kernels, moved))
    alike(back, backward_bytes(kernels, moved))


def test_every_entry_of_the_table_is_held_to_torch() -> None:
    assert set(CASES) | PRODUCTS | {"aten.bmm.default"} == set(TABLE) | set(COMPOSITE)


@pytest.mark.parametrize("op", ["aten.add.Tensor", "aten.mul.Tensor"])
def test_the_gradient_of_what_is_broadcast_is_summed(op: str) -> None:
    function, _ = CASES[op]
    operands = [rows(), rows(WIDTH)]
    ahead, back, result = dispatched(function, operands)
    kernels = kernels_of(op, CPU)
    assert kernels is not None
    moved = Moved([x.nbytes for x in operands], result.nbytes, (True, True))
    alike(ahead, forward_bytes(kernels, moved))
    alike(back, backward_bytes(kernels, moved))


def test_a_norm_is_one_kernel_where_the_device_has_one() -> None:
    assert kernels_of("aten.rms_norm.default", GPU) is None
    assert kernels_of("aten.rms_norm.default", CPU) == COMPOSITE["aten.rms_norm.default"]


def test_a_bias_that_is_not_there_is_not_summed() -> None:
    kernels = TABLE["aten.linear.default"]
    with_bias, without = Moved((64, 64, 8), 64, (True,) * 3), Moved((64, 64), 64, (True,) * 2)
    assert len(backward_bytes(kernels, with_bias)) == len(backward_bytes(kernels, without)) + 2
    assert sum(backward_bytes(kernels, without)) == 0
