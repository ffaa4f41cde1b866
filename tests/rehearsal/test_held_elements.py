"""What ZeRO leaves a rank of a parameter with fewer rows than ranks, in the bytes that its bucket is compared by."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autoplan.ir.mesh import Mesh
from autoplan.rehearsal.pricing.parameter_calls import held_elements


@pytest.mark.parametrize(("rank", "elements"), [(0, 64), (3, 64), (4, 64), (5, 64), (6, 0), (15, 0)])
def test_a_mixtures_router_is_cut_by_its_rows(rank: int, elements: int) -> None:
    """Three experts' rows of 64 over eight data-parallel ranks: a row, or none, and not 24 elements each."""
    mesh = Mesh.of(dp=8, tp=2, mb=1)
    data = SimpleNamespace(ways=lambda summed: 8, group=lambda summed: "dp")
    share = SimpleNamespace(rank=rank, stage_model=SimpleNamespace(data=data), plan=SimpleNamespace(mesh=mesh))
    router = SimpleNamespace(local_shape=(3, 64), trainable=True, reduce_axes=("dp", "tp"))
    assert held_elements(share, router) == elements  # type: ignore[arg-type]
