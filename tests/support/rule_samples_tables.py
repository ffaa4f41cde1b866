"""Calls of the operators that look up several rows at once."""

from __future__ import annotations

import torch

from autoplan.rules.check.case import Sample
from tests.support.rule_operands import c, ints, s, x


def bag_samples() -> list[Sample]:
    op, scales = "autoplan.embedding_bag", c(8, 4).abs()
    found = [s(op, x(12, 8), ints(12, 8, 4), None, mode, padding) for mode in ("sum", "mean") for padding in (-1, 3)]
    found += [s(op, x(12, 8), ints(12, 8, 4), None, "max", 3), s(op, x(12, 8), ints(12, 8, 4), scales, "sum", -1)]
    found += [s(op, x(12, 8), ints(12, 2, 4, 4), x(2, 4, 4), "sum", 5), s(op, x(12, 8), ints(4, 4, 4), None, "mean", 2)]
    ragged, offsets = "autoplan.ragged_bag", torch.tensor([0, 3, 3, 8, 9, 12, 12, 15])
    found += [s(ragged, x(12, 8), ints(12, 16), offsets, None, mode, 4) for mode in ("sum", "mean", "max")]
    found += [s(ragged, x(12, 8), ints(12, 16), offsets, x(16), "sum", -1)]
    return [*found, lookups_sample()]


def lookups_sample() -> Sample:
    """Tables by rows, by columns and whole, so that no box lies on two of two, three or four ranks."""
    tables = ((12, 8, 3, "mean", 2, False), (6, 12, 2, "none", 1, False), (9, 4, 4, "sum", -1, True),
              (5, 3, 2, "max", 0, False))  # fmt: skip
    share = 24
    boxes = [(0, row, 1, 0, 8, row * share) for row in range(12)]
    boxes += [(1, 0, 6, column, 1, column * share + 8) for column in range(12)]
    boxes += [(2, row, 1, 0, 4, row * share + 14) for row in range(9)]
    boxes += [(3, 0, 5, column, 1, (9 + column) * share + 14) for column in range(3)]
    indices = (ints(12, 12, 3), ints(6, 12, 2), ints(9, 12, 4), ints(5, 12, 2))
    return s("autoplan.lookups", x(12 * share), indices, (c(12, 4),), tables, tuple(boxes))
