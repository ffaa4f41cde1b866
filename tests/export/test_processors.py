"""Which plans run on processors, whatever accelerator is beside them."""

from __future__ import annotations

import pytest

from autoplan import ClusterSpec
from autoplan.export.folder import on_processors


@pytest.mark.parametrize(
    ("cluster", "found"), [("1x4 cpu", True), ("1x8 h100-sxm", False), ("1x2 cpu + 1x2 h100-sxm", False)]
)
def test_a_cluster_of_processors_alone_runs_on_them(cluster: str, found: bool) -> None:
    assert on_processors(ClusterSpec.of(cluster)) is found
