"""Experts' rows rounded up on a CPU in 16 bits: few numbers of rows, and the same results bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autoplan.ops.experts import grouped
from autoplan.ops.experts.few_sizes import filled_up, rounded
from autoplan.ops.experts.grouped import Inside, Weights
from autoplan.ops.experts.mixture import run_backward, run_forward


def test_numbers_of_rows_are_few_and_at_most_an_eighth_more() -> None:
    found = [rounded(rows) for rows in range(4097)]
    assert all(rows <= up <= rows + rows / 8 for rows, up in enumerate(found))
    assert found[:17] == list(range(17)) and len(set(found)) <= 17 + 8 * 8


def test_an_experts_last_row_fills_up() -> None:
    rows, fill, ends = filled_up(torch.tensor([17, 17, 20], dtype=torch.int32))
    assert rows.tolist() == [*range(17), 16, 17, 18, 19] and fill.tolist() == [17]
    assert ends.tolist() == [18, 18, 21] and ends.dtype == torch.int32
    rows, fill, ends = filled_up(torch.zeros(3, dtype=torch.int32))
    assert rows.tolist() == fill.tolist() == [] and ends.tolist() == [0, 0, 0]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("choices", [1, 2, 3])
@pytest.mark.parametrize("named", ["all", "some", "none"])
def test_bits_are_those_of_exact_numbers(
    named: str, choices: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward, with what is kept and with products computed again, counted and not."""
    random = torch.Generator().manual_seed(choices)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).bfloat16()

    hidden, gradient, scores = drawn(150, 32), drawn(150, 32), torch.rand(150, choices, generator=random)
    low, high = {"all": (0, 4), "some": (-3, 7), "none": (4, 9)}[named]
    index = torch.randint(low, high, (150, choices), generator=random)
    weights = Weights(
        [drawn(4, 64, 32), drawn(4, 64, 32)], drawn(4, 32, 64), [drawn(4, 64)] * 2 if biased else [], False
    )
    count = int(((index >= 0) & (index < 4)).sum())
    text = "mul(silu(gate), up)"

    def results() -> list[Tensor]:
        found = []
        for known, at_most in ((None, False), (count, False), (index.numel(), True)):
            result, inside = run_forward(hidden, index, scores, weights, text, known, at_most)
            kept = Inside.again(inside.kept, hidden, weights)
            anew = Inside.of(hidden, index, scores, weights, known, at_most)
            found.append(result)
            for each in (kept, anew):
                found += run_backward(gradient, hidden, each, weights, text, index.shape)
        return found

    ours = results()
    monkeypatch.setattr(grouped, "rounds", lambda _: False)
    for one, exact in zip(ours, results(), strict=True):
        assert torch.equal(one, exact)
