"""Kernels of a compiled graph: the same values, and inductor's own account of what is written."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, fx
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import run_fw_bw_and_get_code
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from autoplan.rehearsal.device import fused_graph
from autoplan.rehearsal.device.compiled import TANGENTS
from autoplan.rehearsal.device.fused_graph import fused, is_a_view, is_an_operator, kept_alone

ROWS, WIDTH, INNER, HEADS = 6, 16, 24, 2


def gated(x: Tensor, scale: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    y = functional.rms_norm(x, (WIDTH,), scale, 1e-5)
    return x + functional.linear(functional.silu(functional.linear(y, gate)) * functional.linear(y, up), down)


def convolved(x: Tensor, first: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, second: Tensor) -> Tensor:
    y = functional.conv2d(x, first, None, 1, 1) + bias.reshape(1, -1, 1, 1)
    y = functional.relu(functional.group_norm(y, 4, scale, shift))
    return functional.relu(functional.conv2d(torch.cat((y, x), 1), second, None, 1, 1))


def rotated(x: Tensor, weight: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    q = functional.linear(x, weight).view(ROWS, HEADS, -1).transpose(0, 1)
    half = q.shape[-1] // 2
    turned = q * cosine + torch.cat((-q[..., half:], q[..., :half]), -1) * sine
    return functional.softmax(turned @ turned.transpose(1, 2), -1) @ turned


def lost(x: Tensor, head: Tensor) -> Tensor:
    logits = functional.linear(functional.silu(x), head)
    return functional.cross_entropy(logits.float(), torch.arange(ROWS))


def looked_up(table: Tensor, weight: Tensor) -> Tensor:
    rows = functional.embedding(torch.arange(ROWS) * 2, table)
    return functional.linear(rows, weight)


GIVEN = {
    looked_up: ((INNER, WIDTH), (WIDTH, WIDTH)),
    lost: ((ROWS, WIDTH), (INNER, WIDTH)),
    gated: ((ROWS, WIDTH), (WIDTH,), (INNER, WIDTH), (INNER, WIDTH), (WIDTH, INNER)),
    convolved: ((2, 4, 8, 8), (8, 4, 3, 3), (8,), (8,), (8,), (8, 12, 3, 3)),
    rotated: ((ROWS, WIDTH), (WIDTH, WIDTH), (ROWS, WIDTH // HEADS), (ROWS, WIDTH // HEADS)),
}


class Values(fx.Interpreter):
    """Runs kernels on tensors that have values."""

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return fx.Interpreter(self.fetch_attr(target).inside).run(*args)  # type: ignore[union-attr]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return getattr(target, "function", target)(*args, **kwargs)


def graphs_of(function: Callable[..., Tensor]) -> list[tuple[fx.GraphModule, list]]:
    """A function's graphs, forward and backward, each with what it was given."""
    found: list[tuple[fx.GraphModule, list]] = []

    def noted(graph: fx.GraphModule, _: object) -> Callable:
        def run(*given: Any) -> Any:
            found.append((graph, list(given)))
            return graph.forward(*given)

        return make_boxed_func(run)

    torch.manual_seed(0)
    given = [torch.randn(shape, requires_grad=True) for shape in GIVEN[function]]
    taken = aot_function(
        function, fw_compiler=noted, bw_compiler=noted, partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )  # fmt: skip
    taken(*given).sum().backward()
    return found


@pytest.mark.parametrize("function", GIVEN, ids=lambda f: f.__name__)
def test_kernels_give_what_the_graph_gives(function: Callable[..., Tensor]) -> None:
    for graph, given in graphs_of(function):
        wanted = fx.Interpreter(graph).run(*given)
        kernels = fused(graph)
        assert any(node.op == "call_module" for node in kernels.graph.nodes)
        for one, other in zip(Values(kernels).run(*given), wanted, strict=True):
            assert (one is other is None) or torch.equal(one, other)


def written(graph: fx.GraphModule, donated: frozenset[str] = frozenset(), in_place: bool = False) -> Counter[int]:
    """How many tensors of so many bytes the calls of a graph write; ``in_place``: to memory of their own."""
    kernels, found = fused(graph, donated), Counter[int]()
    for node in kernels.graph.nodes:
        made = [node]
        if node.op == "call_module":
            kernel = kernels.get_submodule(node.target)
            made = [each for n, each in enumerate(kernel.writes) if not (in_place and n in kernel.places)]
        if node.op == "call_module" or (is_an_operator(node) and not is_a_view(node)):
            values = tree_leaves([each.meta["val"] for each in made])
            found.update(x.numel() * x.element_size() for x in values if isinstance(x, Tensor))
    return found


def written_by_inductor(function: Callable[..., Tensor], in_place: bool) -> Counter[int]:
    """The same of inductor's own code for the backward."""
    given = [torch.randn(shape, requires_grad=True) for shape in GIVEN[function]]
    torch._dynamo.reset()
    with config.patch({"fx_graph_cache": False, "inplace_buffers": in_place, "allow_buffer_reuse": False}):
        _, (_, backward) = run_fw_bw_and_get_code(lambda: torch.compile(function, fullgraph=True)(*given))
    found = re.findall(r"empty_strided_cpu\(\(([\d, ]*)\), [^t]*torch\.(\w+)\)", backward)
    shapes = [([int(n) for n in shape.split(",") if n.strip()], dtype) for shape, dtype in found]
    return Counter(math.prod(shape) * getattr(torch, dtype).itemsize for shape, dtype in shapes)


def donated(forward: fx.GraphModule, backward: fx.GraphModule) -> frozenset[str]:
    kept = [n for n in backward.graph.nodes if n.op == "placeholder" and not n.name.startswith(TANGENTS)]
    return kept_alone(forward, len(kept))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "in_place"),
    [(gated, False), (rotated, False), (lost, False), (gated, True), (lost, True), (looked_up, True)],
    ids=["gated, apart", "rotated, apart", "lost, apart", "gated, in place", "lost, in place", "looked up"],
)
def test_a_backward_writes_what_inductor_writes(function: Callable[..., Tensor], in_place: bool) -> None:
    """But for numbers of one row each, which its kernels on a CPU write more of. (Its convolutions on a CPU are others,
    of a forward it joins a product with the sum behind it, and a softmax's backward overwrites nothing.)"""
    (forward, _), (backward, _) = graphs_of(function)
    large = 4 * ROWS * 4
    rehearsed = written(backward, donated(forward, backward), in_place)
    real = written_by_inductor(function, in_place)
    assert {size: n for size, n in rehearsed.items() if size > large} == {s: n for s, n in real.items() if s > large}


def test_the_gradient_of_the_logits_takes_their_place() -> None:
    (forward, _), (backward, _) = graphs_of(lost)
    logits = 4 * ROWS * INNER
    apart, over = (written(backward, donated(forward, backward), in_place)[logits] for in_place in (False, True))
    assert apart == over + 1


def test_the_gradient_of_a_table_is_added_up_in_the_zeros_it_begins_with() -> None:
    (forward, _), (backward, _) = graphs_of(looked_up)
    assert written(backward, donated(forward, backward))[4 * INNER * WIDTH] == 1


@pytest.mark.parametrize(
    ("names", "expected"),
    [({"reads": 8}, 8), ({"reads": None, "_reads_default": 6}, 6), ({"reads": 3, "_reads_default": 6}, 3)],
    ids=["torch 2.11", "torch 2.13", "set by a user"],
)
def test_thresholds_are_inductors(monkeypatch: pytest.MonkeyPatch, names: dict, expected: int) -> None:
    monkeypatch.setattr(fused_graph, "config", SimpleNamespace(**names))
    assert fused_graph.threshold("reads") == expected
