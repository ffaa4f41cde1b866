"""Ranks that keep nothing of a job. What a test's program leaves, unless it closes it, are process groups with three
threads each, one of which wakes a hundred times a second: ranks that live on had 51 threads each, and have 10 so."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from unittest.mock import patch

from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from autoplan.runtime.elastic.launch import end_groups, standing
from autoplan.runtime.parallel.gradient_buckets import GradientSums
from autoplan.verify.local_ranks import RankPool


class ClosingRanks(RankPool):
    """A pool whose jobs are cleared away after."""

    def run(self, function: Callable[..., object], *args: object, timeout_s: float | None = None) -> list:
        return super().run(cleared, function, *args, timeout_s=timeout_s)


def cleared(rank: int, size: int, function: Callable[..., object], *args: object) -> object:
    """What a job gives on one rank. Hooks by which parameters refer to themselves are taken from them, and meshes in
    torch's caches lose their groups."""
    made: list[weakref.ref[GradientSums]] = []
    begin = GradientSums.__init__

    def known(sums: GradientSums, *given: object) -> None:
        made.append(weakref.ref(sums))
        begin(sums, *given)  # type: ignore[arg-type]

    with patch.object(GradientSums, "__init__", known):
        result = function(rank, size, *args)
    for sums in filter(None, (one() for one in made)):
        sums.close()
    gc.collect()
    if distributed.is_initialized():
        meshes = [each for each in gc.get_objects() if isinstance(each, DeviceMesh)]
        end_groups(standing() - {distributed.group.WORLD}, meshes)
    return result
