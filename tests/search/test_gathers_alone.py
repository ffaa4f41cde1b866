"""What ZeRO's collectives leave in the open of a chain that is one stage: each runs under a segment next to its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autoplan.cluster.spec import ClusterSpec
from autoplan.cost import DataAxis, Prices
from autoplan.ir.mesh import Mesh
from autoplan.search.inter_op.chain import late_alone

SIZE, TINY = 4e8, 1.0
LONG = 10.0


def data_axis(zero: int) -> DataAxis:
    topology = ClusterSpec.parse("1x4 h100-sxm").topology()
    return DataAxis(zero, 4, Prices(Mesh.of(dp=4, mb=1), topology, True, True, 1))


def block(size: float, seconds: float) -> SimpleNamespace:
    return SimpleNamespace(parameters={(): size}, frozen={}, forward_s=seconds, backward_s=seconds)


def in_the_open(data: DataAxis, blocks: list[SimpleNamespace]) -> tuple[float, float]:
    """Seconds of a microbatch's (forward, backward): what segments count by themselves, and what comes to that."""
    order = list(range(len(blocks)))
    late = late_alone(order, blocks, data)  # type: ignore[arg-type]
    ahead = [data.exposed_forward_s(b.forward_s, b.parameters) for b in blocks]
    back = [data.exposed_backward_s(b.backward_s, b.parameters, last=n == order[-1]) for n, b in enumerate(blocks)]
    late_s = late["opens_s"][0] + late["follows_s"][1:].sum()
    late_back_s = late["opens_back_s"][-1] + late["follows_back_s"][:-1].sum()
    return sum(ahead) + late_s, sum(back) + late_back_s


def test_a_segment_with_all_parameters_hides_its_gather_under_the_one_before() -> None:
    """As a recommender's tables: their own lookups hide nothing of it, however long."""
    data = data_axis(3)
    gather_s, scatter_s = data.gather_s(SIZE), data.scatter_s(SIZE)
    under_none = in_the_open(data, [block(TINY, 0.0), block(SIZE, LONG), block(TINY, 0.0)])
    assert under_none == (pytest.approx(gather_s, rel=0.2), pytest.approx(gather_s + scatter_s, rel=0.2))
    under_long = in_the_open(data, [block(TINY, LONG), block(SIZE, 0.0), block(TINY, LONG)])
    slowdown = data.prices.device.overlap_slowdown
    ahead_s, back_s = (slowdown / (1 + slowdown) * busy_s for busy_s in (gather_s, gather_s + scatter_s))
    assert under_long == (pytest.approx(ahead_s, rel=0.3), pytest.approx(back_s, rel=0.3))


def test_the_first_gather_and_the_last_scatter_are_in_the_open() -> None:
    data, blocks = data_axis(3), [block(SIZE, LONG), block(TINY, LONG), block(TINY, LONG)]
    ahead_s, back_s = in_the_open(data, blocks)
    assert ahead_s >= data.gather_s(SIZE) and back_s >= data.scatter_s(SIZE)


def test_what_is_gathered_once_a_step_is_scattered_under_the_segment_in_front() -> None:
    data = data_axis(2)
    late_s, _ = in_the_open(data, [block(TINY, 0.0), block(SIZE, LONG), block(TINY, 0.0)])
    assert late_s == 0.0
    assert in_the_open(data, [block(TINY, 0.0), block(SIZE, LONG)])[1] == pytest.approx(data.scatter_s(SIZE), rel=0.2)
