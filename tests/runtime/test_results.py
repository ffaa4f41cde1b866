"""Results of autograd Functions under a compiler: torch 2.11's passes zeros back where a forward ends in an operator
that did nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

import autoplan.runtime
from autoplan.runtime.collectives import raw, typed
from autoplan.runtime.collectives.result import cast
from autoplan.runtime.ops import vocab_parallel_cross_entropy

AXIS: Any = SimpleNamespace(rank=1, size=2, places=(), group=None, name="tp")
NOTHING_OFTEN = ("to", "contiguous", "reshape", "expand", "type", "float")


def loss(x: Tensor) -> Tensor:
    target = torch.arange(4) % 8
    return vocab_parallel_cross_entropy(x, target, torch.tensor(4.0), axes=())


def shard(dim: int) -> Callable[[Tensor], Tensor]:
    return lambda x: typed._Shard.apply(x.exp(), (dim,), AXIS)


@pytest.mark.parametrize(
    "function", [loss, shard(0), shard(1), lambda x: typed._ShardToPartial.apply(x.exp(), (0,), AXIS)],
    ids=["vocabulary-parallel loss", "first dim", "last dim", "padded"],
)  # fmt: skip
@pytest.mark.usefixtures("compiler")
def test_gradients_are_the_eager_ones(function: Callable[[Tensor], Tensor]) -> None:
    found = []
    for run in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
        run(x).square().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])
    assert found[0].abs().max() > 0


@pytest.mark.usefixtures("compiler")
def test_a_compiled_loss_keeps_half_precision_logits_and_nothing_else_of_their_size() -> None:
    """torch's partitioner has to see that the exponentials wait for the gradient."""
    kept: list[Tensor] = []

    def forward(graph: fx.GraphModule, given: Sequence[object]) -> Callable:
        results = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        kept.extend(node.meta["val"] for node in results if isinstance(node, fx.Node))
        return make_boxed_func(graph.forward)

    def backward(graph: fx.GraphModule, given: Sequence[object]) -> Callable:
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, partition_fn=min_cut_rematerialization_partition
    )
    x, weight = (torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((64, 8), (8, 32)))
    target, count = torch.arange(64) % 32, torch.tensor(64.0)

    def of(x: Tensor, weight: Tensor) -> Tensor:
        return vocab_parallel_cross_entropy((x @ weight).to(torch.float32), target, count, axes=())

    torch.compile(of, backend=backend)(x, weight).backward()
    assert [value.dtype for value in kept if isinstance(value, Tensor) and value.numel() == 64 * 32] == [torch.bfloat16]


def test_a_cast_to_the_same_is_left_out() -> None:
    x = torch.ones(2, 3)
    assert cast(x, torch.float32) is x and cast(x, torch.float64).dtype == torch.float64


@pytest.mark.parametrize("dim", [0, 1])
def test_a_part_doesn_t_keep_the_whole(dim: int) -> None:
    part = raw.shard(torch.arange(32.0).view(4, 8), dim, AXIS)
    assert part.is_contiguous() and part.untyped_storage().nbytes() == 16 * 4
    assert torch.equal(part, torch.arange(32.0).view(4, 8).chunk(2, dim)[1])


def forwards() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Of the runtime's own autograd Functions."""
    for file in sorted(Path(autoplan.runtime.__file__).parent.rglob("*.py")):
        for each in ast.walk(ast.parse(file.read_text())):
            if isinstance(each, ast.ClassDef) and any(ast.unparse(base).endswith("Function") for base in each.bases):
                yield from ((f"{file.name}: {each.name}", f) for f in each.body if getattr(f, "name", "") == "forward")


def test_no_forward_ends_in_an_operator_that_may_do_nothing() -> None:
    found = dict(forwards())
    assert len(found) >= 8
    for name, forward in found.items():
        ends = [each.value for each in ast.walk(forward) if isinstance(each, ast.Return) and each.value is not None]
        for end in ends:
            called = end.func.attr if isinstance(end, ast.Call) and isinstance(end.func, ast.Attribute) else ""
            assert called not in NOTHING_OFTEN, f"{name} returns {ast.unparse(end)}: see collectives.result"
