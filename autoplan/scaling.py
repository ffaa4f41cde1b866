"""``Plan.scaling``: the plan's model and batch on fewer and more devices, and over narrower and wider links."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from autoplan.cluster import ClusterSpec
from autoplan.errors import ClusterError, DoesNotFitError, ParallelismError
from autoplan.ir.choice import Predicted
from autoplan.ir.record import PlanRecord
from autoplan.replan import Change, replan
from autoplan.report.table import table
from autoplan.report.words import elements_of, headline, seconds_text

TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)  # as many devices, and as wide links


@dataclass(frozen=True)
class ScalingPoint:
    """One plan of the curve.

    cluster     in one line
    devices     in all
    bandwidth   how many times as wide the links are
    plan        its headline, "" where there is none
    why_not     why there is no plan; "" where there is
    """

    cluster: str
    devices: int
    bandwidth: float
    plan: str = ""
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Scaling:
    """The same batch on other clusters; its text is two tables.

    plan       the headline of the plan that it is around
    elements   what ``tokens`` are: "tokens", or "rows" where the first batch input holds no ids
    link       whose bandwidth is changed: "nic" of the network between nodes, "node" of the links inside one
    devices    by number of devices, bandwidth by factor; the plan itself is in both
    """

    plan: str
    elements: str
    link: str
    devices: tuple[ScalingPoint, ...]
    bandwidth: tuple[ScalingPoint, ...]

    def to_dict(self) -> dict:
        """As plain data."""
        return asdict(self)

    def __str__(self) -> str:
        header = ["devices", "cluster", "step time", f"{self.elements}/s", "of ideal", "MFU", "plan"]
        own = next(p for p in self.devices if p.plan == self.plan and p.tokens_per_s)
        rows = [[f"{p.devices}", p.cluster, *cells(p, (own.tokens_per_s or 0.0) * p.devices / own.devices)]
                for p in self.devices]  # fmt: skip
        first = table(header, rows, right=(0, 2, 3, 4, 5))
        named = {"nic": "network between nodes", "node": "links inside the node"}[self.link]
        header = [named, "step time", f"{self.elements}/s", "of the plan's", "MFU", "plan"]
        rows = [[f"x{p.bandwidth:g}", *cells(p, own.tokens_per_s or 0.0)] for p in self.bandwidth]
        return f"{first}\n\n{table(header, rows, right=(0, 1, 2, 3, 4))}"


def cells(point: ScalingPoint, expected: float) -> list[str]:
    if point.step_time_s is None or point.tokens_per_s is None or point.mfu is None:
        return ["-", "-", "-", "-", point.why_not]
    share = f"{100 * point.tokens_per_s / expected:.0f}%"
    step = seconds_text(point.step_time_s)
    return [step, f"{point.tokens_per_s:,.0f}", share, f"{100 * point.mfu:.1f}%", point.plan]


def scaling(record: PlanRecord) -> Scaling:
    """Plans the model anew, by the quick search, on each cluster around the plan's: see ``Plan.scaling``."""
    cluster, link = record.cluster, "nic" if record.cluster.nodes > 1 else "node"
    own = point(cluster, 1.0, record.chosen.predicted, headline(record))

    def planned(other: ClusterSpec, factor: float) -> ScalingPoint:
        if other == cluster:
            return own
        try:
            found = replan(record, Change(cluster_spec=other, effort="fast"))
        except (DoesNotFitError, ParallelismError, ClusterError) as error:
            return ScalingPoint(str(other), other.devices, factor, why_not=str(error))
        return point(other, factor, found.chosen.predicted, headline(found))

    devices = tuple(planned(other, 1.0) for other in around(cluster))
    widths = ((cluster if factor == 1.0 else cluster.with_bandwidth({link: factor}), factor) for factor in TIMES)
    bandwidth = no_slower([planned(*each) for each in widths])
    return Scaling(headline(record), elements_of(record), link, devices, bandwidth)


def no_slower(points: Sequence[ScalingPoint]) -> tuple[ScalingPoint, ...]:
    """The points, the narrowest links first. A plan is no slower over wider links: where the search found none as quick
    as that of narrower links, that one stands, with its time, which is then the most that it takes."""
    found: list[ScalingPoint] = []
    for own in points:
        best = min(found, key=lambda p: p.step_time_s or math.inf, default=own)
        slower = (own.step_time_s or math.inf) > (best.step_time_s or math.inf)
        found.append(replace(best, cluster=own.cluster, bandwidth=own.bandwidth) if slower else own)
    return tuple(found)


def point(cluster: ClusterSpec, factor: float, predicted: Predicted, plan: str) -> ScalingPoint:
    rate = predicted.tokens_per_s
    return ScalingPoint(str(cluster), cluster.devices, factor, plan, predicted.step_time_s, rate, predicted.mfu)


def around(cluster: ClusterSpec) -> list[ClusterSpec]:
    """The cluster among smaller and larger ones of its kind: of one node a part of it, of several fewer nodes."""
    found = {}
    for factor in TIMES:
        if factor < 1 and cluster.nodes == 1 and not cluster.groups:
            inside = cluster.devices_per_node * factor
            other = replace(cluster, devices_per_node=int(inside)) if inside == int(inside) else None
        else:
            nodes = cluster.nodes * factor
            other = cluster.with_nodes(int(nodes)) if nodes == int(nodes) else None
        if factor == 1.0:
            other = cluster
        if other is not None:
            found[other.devices] = other
    return [found[count] for count in sorted(found)]
