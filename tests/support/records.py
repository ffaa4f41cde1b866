"""Plan records of hand-made graphs, for tests that need a whole plan and no tracing."""

from __future__ import annotations

from autoplan.cluster import ClusterSpec
from autoplan.export.folder import checked, plan_data
from autoplan.ir.graph import Model
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.search.entry import search
from tests.support.planning import alone


def record_of(model: Model, cluster: str, training: Training | None = None, **pinned: object) -> PlanRecord:
    """The searched plan of a model, no alternatives beside it, with the fields of Parallelism that are given pinned."""
    spec, training = ClusterSpec.of(cluster), training or Training()
    with alone():
        chosen, _, report = search(model, spec, training, Parallelism(**pinned), ())  # type: ignore[arg-type]
    return PlanRecord(spec, training, model, chosen, (), report, None)


def parse_plan(text: str, where: str) -> PlanRecord:
    """The plan that a plan.json holds."""
    return checked(plan_data(text, where), where)[0]
