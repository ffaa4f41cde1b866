"""Candidates whose operators can't lie on their mesh are left out, and end a search only where no other is left."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.ir.graph import Model
from autoplan.options import Parallelism, Training
from autoplan.search.entry import search
from autoplan.trace.pipeline import trace
from tests.support.sampling import sampled

CLUSTER = ClusterSpec.parse("1x2 a100-sxm-80gb")
GROUP = 4


class Grouping(nn.Module):
    """Sums rows by four, so that a microbatch with fewer on all ranks doesn't hold whole groups."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        return y.reshape(-1, GROUP, 8, 32).sum(1).square().mean()


def grouping() -> Model:
    with torch.device("meta"):
        return trace(Grouping(), (torch.empty(32, 8, 32),), training=True)


PINNED = (Parallelism(), Parallelism(tp=2), Parallelism(dp=2), Parallelism(pp=1, zero=3))
CASES = list(itertools.product(PINNED, ("full", "fast")))


@pytest.mark.parametrize(("pinned", "effort"), sampled(CASES, [CASES[0], CASES[3], CASES[5], CASES[7]]))
def test_microbatches_over_which_rows_do_not_divide_are_left_out(pinned: Parallelism, effort: str) -> None:
    chosen, others, _ = search(grouping(), CLUSTER, Training(), pinned, effort=effort)
    assert chosen.parallelism.micro_batch is not None and chosen.parallelism.dp is not None
    for found in (chosen.parallelism, *(a.parallelism for a in others if not a.why_not)):
        assert found.micro_batch is not None and found.micro_batch * (found.dp or 1) % GROUP == 0


@pytest.mark.parametrize("effort", ["full", "fast"])
def test_where_none_is_left_the_first_says_why(effort: str) -> None:
    with pytest.raises(ParallelismError, match=r"the rows of .* don't divide by dp=2 and 16 microbatches"):
        search(grouping(), CLUSTER, Training(), Parallelism(dp=2, micro_batch=1), effort=effort)


def test_what_does_not_fit_is_told_in_spite_of_them() -> None:
    with pytest.raises(DoesNotFitError, match="does not fit"):
        search(grouping(), replace(CLUSTER, memory_bytes=20_000), Training(), Parallelism())
