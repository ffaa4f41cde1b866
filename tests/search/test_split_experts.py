"""Of a mixture's experts every weight is split where a tensor axis is pinned."""

from __future__ import annotations

from autoplan.cluster import ClusterSpec
from autoplan.cost import Prices
from autoplan.ir.mesh import Mesh
from autoplan.search.intra_op.operator_options import formulate
from autoplan.search.intra_op.problem_inputs import prepare
from autoplan.trace.pipeline import trace
from tests.support.expert_routers import Router, batch


def test_they_are_split_by_experts_or_by_each_ones_inner_dim() -> None:
    """The last products' features alone would leave the first products to every rank."""
    mesh = Mesh.of(dp=1, tp=4, mb=1)
    prices = Prices(mesh, ClusterSpec.parse("1x4 cpu").topology(), True, True, 1, 7.0, direct=True)
    prepared = prepare(trace(Router(bias=True), batch(), training=True), (), fuses=True, training=True)
    form = formulate(prepared, mesh, prices, split_weights=True)
    found = {s.on("tp") for (_, name), ways in form.options.items() if name == "experts" for s in ways}
    assert {(way.factor, way.body) for way in found} == {("f", ""), ("", "local_experts"), ("", "routed_experts")}
