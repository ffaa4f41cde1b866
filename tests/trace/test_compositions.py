"""Operators written as others are what torch computes, with its gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autoplan.trace.passes.compositions import pairwise_distances, repeated, waves

WINDOW = torch.hann_window(8, dtype=torch.float64)
TIMES = torch.tensor([1, 2, 0, 3])


def drawn(*shape: int) -> Tensor:
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return values.requires_grad_()


def check(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], x: Tensor) -> None:
    found, wanted = ours(x), theirs(x)
    torch.testing.assert_close(found, wanted)
    weights = torch.linspace(1, 2, found.numel(), dtype=torch.float64).reshape(found.shape)
    losses = [(y.real * weights - y.imag * weights if y.is_complex() else y * weights).sum() for y in (found, wanted)]
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in losses))


@pytest.mark.parametrize("p", [2.0, 1.0, 0.5, float("inf")])
def test_distances_of_pairs(p: float) -> None:
    check(partial(pairwise_distances, p=p), partial(F.pdist, p=p), drawn(5, 3))


def test_the_distance_of_equal_rows_has_no_gradient() -> None:
    x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    check(pairwise_distances, F.pdist, x)


@pytest.mark.parametrize(("dim", "times"), [(0, TIMES), (1, TIMES), (-1, torch.tensor(2)), (None, torch.tensor([3]))])
def test_entries_repeated(dim: int | None, times: Tensor) -> None:
    x = drawn(4, 4)
    size = torch.repeat_interleave(x, times, dim).shape[dim or 0]
    check(
        lambda x: repeated(x, times, dim, output_size=size),
        lambda x: torch.repeat_interleave(x, times, dim, output_size=size), x,
    )  # fmt: skip


@pytest.mark.parametrize("size", [5, 7])
def test_entries_that_do_not_add_up(size: int) -> None:
    with pytest.raises(IndexError, match="out of range"):
        repeated(drawn(4, 2), TIMES, 0, output_size=size)


@pytest.mark.parametrize(
    "said",
    [
        {"window": WINDOW}, {"window": WINDOW, "hop_length": 4, "length": 15}, {"window": WINDOW, "normalized": True},
        {"window": WINDOW[:6] + 0.1, "win_length": 6}, {"center": False}, {"center": False, "length": 12},
        {"window": WINDOW, "length": 40},
    ],
)  # fmt: skip
@pytest.mark.parametrize("complex_wave", [False, True])
@pytest.mark.filterwarnings("ignore:A window was not provided", "ignore:The length of signal is shorter")
def test_waves_of_spectra(said: dict, complex_wave: bool) -> None:
    bins = 8 if complex_wave else 5

    def spectra(x: Tensor) -> Tensor:
        return torch.complex(x, 2 * x.flip(1))

    given = {**said, "return_complex": complex_wave, "onesided": not complex_wave}
    if complex_wave and "window" in given:
        given["window"] = given["window"] + 0j
    ours, theirs = (lambda x, f=f: f(spectra(x), 8, **given) for f in (waves, torch.istft))
    check(ours, theirs, drawn(2, bins, 9))


def test_a_spectrum_of_both_sides_may_give_a_real_wave() -> None:
    ours, theirs = (lambda x, f=f: f(torch.complex(x, -x), 8, window=WINDOW) for f in (waves, torch.istft))
    check(ours, theirs, drawn(3, 8, 9))
