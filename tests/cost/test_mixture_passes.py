"""What a mixture's experts are priced to move beside their products is what their operators move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autoplan.cost.operators.experts import Grouped
from autoplan.ops.experts.activation import counts
from autoplan.ops.experts.grouped import Weights
from autoplan.ops.experts.mixture import names_of, run_backward, run_forward

TOKENS, EXPERTS, HIDDEN, INNER = 96, 4, 512, 256
ACTIVATION = "mul(silu(gate), up)"
READS_WHAT_IT_GIVES = ("index_select", "take")
MAKES = ("new_zeros", "new_empty", "zeros", "empty", "arange")
PRODUCTS = ("_grouped_mm",)


class Moved(TorchDispatchMode):
    """Bytes that operators read and write, products aside; of a gather what it gives, read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._opname
        if func.is_view or name in PRODUCTS:
            return result
        given, made = (sum(map(size_of, tensors_of(x))) for x in ((args, kwargs), result))
        if name in READS_WHAT_IT_GIVES:
            given = made
        elif name in MAKES:
            given, made = 0, made if "zeros" in name else 0
        self.bytes += given + made
        return result


def tensors_of(values: Any) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def size_of(x: Tensor) -> int:
    return x.numel() * x.element_size()


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("scores", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("choices", [2, 3])
def test_bytes_are_those_of_the_operators(choices: int, scores: torch.dtype, first: int) -> None:
    """Indices and scores, of a number for each row, aside."""
    torch.manual_seed(0)
    text = ACTIVATION if first == 2 else "silu(x)"
    hidden, gradient = (torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16) for _ in range(2))
    index = torch.stack([torch.randperm(EXPERTS)[:choices] for _ in range(TOKENS)])
    up = [torch.randn(EXPERTS, INNER, HIDDEN, dtype=torch.bfloat16) for _ in range(first)]
    weights = Weights(up, torch.randn(EXPERTS, HIDDEN, INNER, dtype=torch.bfloat16), [], False)
    given = torch.rand(TOKENS, choices, dtype=scores)
    with torch.no_grad():
        with Moved() as ahead:
            _, inside = run_forward(hidden, index, given, weights, text, index.numel())
        with Moved() as back:
            run_backward(gradient, hidden, inside, weights, text, index.shape)
    rows = inside.score.shape[0]  # that run: a CPU rounds them up (autoplan.ops.experts.few_sizes)
    grouped = Grouped.of(rows, EXPERTS, HIDDEN, INNER, HIDDEN, first, counts(text, names_of(up)))
    priced = grouped.of_tokens(TOKENS, choices, scores.itemsize)
    assert ahead.bytes == pytest.approx(sum(priced.passes(2)), rel=0.03)
    assert back.bytes == pytest.approx(sum(priced.passes_back(2)), rel=0.03)
