"""Indices in the trace: what is read in its own order is a view or a gather, whose rows split."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autoplan.trace.pipeline import trace
from tests.support.interpret import interpret

torch.set_num_threads(1)

ROWS, LENGTH, WIDTH = 4, 6, 3
Read = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def rows() -> torch.Tensor:
    return torch.arange(ROWS)


READS: dict[str, tuple[Read, str]] = {
    "a row at one place": (lambda x, at: x[rows(), at[:, 0]], "gather"),
    "places before the start": (lambda x, at: x[rows(), at[:, 0] - LENGTH], "gather"),
    "a row at several places": (lambda x, at: x[rows()[:, None], at], "gather"),
    "several dims at a place": (lambda x, at: x[rows()[:, None], at, torch.arange(WIDTH)[None, :1]], "index"),
    "a row and a column": (lambda x, at: x[rows()[:, None], at[:, :1], torch.arange(WIDTH)[None]], "gather"),
    "all keys for all queries": (
        lambda x, at: x[rows()[:, None, None], torch.arange(LENGTH)[None, :, None], torch.arange(WIDTH)],
        "view",
    ),
    "the last in place of the first": (lambda x, at: x[rows()[:, None], :, torch.arange(WIDTH)], "view"),
    "with a dim of one": (lambda x, at: x[rows()[:, None, None], :, torch.arange(WIDTH)[None, None]], "view"),
    "the same places in each row": (lambda x, at: x[rows()[:, None], at[0]], "index"),
    "the same places before rows": (lambda x, at: x[rows()[None], at[0][:, None]], "index"),
    "behind what is read": (lambda x, at: x[:, at[0][:, None], torch.arange(WIDTH)[None]], "index"),
    "a diagonal": (lambda x, at: x[rows(), rows()], "gather"),
}


class Reading(nn.Module):
    def __init__(self, read: Read) -> None:
        super().__init__()
        self.read, self.embed = read, nn.Embedding(10, WIDTH)

    def forward(self, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        found = self.read(self.embed(ids), at)
        return (found * torch.arange(found.numel()).reshape(found.shape)).sum()


@pytest.mark.parametrize("name", READS)
def test_what_is_read_in_order_is_no_index(name: str) -> None:
    read, kind = READS[name]
    torch.manual_seed(0)
    module = Reading(read)
    ids, at = torch.randint(10, (ROWS, LENGTH)), torch.randint(LENGTH, (ROWS, 5))
    model = trace(module, {"ids": ids, "at": at}, training=True)
    state = {key: value.detach().clone().requires_grad_() for key, value in module.named_parameters()}
    got, expected = interpret(model, state, {"ids": ids, "at": at}), module(ids, at)
    torch.testing.assert_close(got, expected)
    got.backward()
    expected.backward()
    torch.testing.assert_close(state["embed.weight"].grad, module.embed.weight.grad)
    ops = {node.op for block in model.blocks for node in block.nodes}
    found = {"gather": "aten.gather.default", "index": "aten.index.Tensor"}
    assert {kind: op in ops for kind, op in found.items()} == {k: k == kind for k in found}


def test_repeated_rows_are_expanded() -> None:
    """For b rows [n, s] is [b, n, s], merged: no rows are put together that could not be split again."""

    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.weight.repeat(x.shape[0], 2, 1) * x).sum() + self.weight.repeat(2, 3).pow(3).sum()

    module, x = Repeated(), torch.randn(ROWS, 4, 3)
    model = trace(module, (x,), training=True)
    state = {"weight": module.weight.detach().clone().requires_grad_()}
    torch.testing.assert_close(interpret(model, state, {"x": x}), module(x))
    ops = {node.op for block in model.blocks for node in block.nodes}
    assert "aten.expand.default" in ops and "aten.cat.default" not in ops
