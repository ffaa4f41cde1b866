"""What goes wrong on one rank is raised on all; where nothing does, no objects go round."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch.distributed as dist

from autoplan.errors import AutoplanError, InputsError
from autoplan.runtime.collectives.objects import together
from autoplan.verify.local_ranks import RankPool


def all_well(rank: int, world: int) -> int:
    with patch.object(dist, "all_gather_object", side_effect=AssertionError("an object went round")):
        return together(lambda: 10 * rank)


def of_one(rank: int, world: int) -> str:
    def act() -> None:
        if rank == 2:
            raise InputsError("the batch", "it ends", "give more")
        if rank == 3:
            raise KeyError("rows")

    with pytest.raises((AutoplanError, KeyError)) as told:
        together(act)
    return f"{type(told.value).__name__} {told.value}"


def test_each_has_its_own_result_or_the_first_s_error(pool: RankPool) -> None:
    assert pool.run(all_well) == [0, 10, 20, 30]
    first = "InputsError the batch: it ends. give more."
    assert pool.run(of_one) == [first, first, first, "KeyError 'rows'"]
