"""``compare``: one model on several clusters, traced once, as a table."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from torch import nn

from autoplan.api import Source, check_model, plan_of, source_of
from autoplan.arguments.keywords import keywords
from autoplan.arguments.synonyms import ARGUMENT_NAMES
from autoplan.cluster import ClusterSpec
from autoplan.compile import asked_of, check_arguments, check_precision
from autoplan.emit.source import size_text
from autoplan.errors import ClusterError, DoesNotFitError, InputsError, ParallelismError
from autoplan.ir.graph import Model
from autoplan.options import Inference, Parallelism, Training
from autoplan.plan import Plan
from autoplan.report.table import table
from autoplan.report.words import elements_of, fullest_stage, seconds_text
from autoplan.rules.constraints import Constraint

Cluster = ClusterSpec | str | Mapping | os.PathLike
HOUR_S = 3600.0
NAMES = {**dict.fromkeys(("cluster", "clusters", "cluster_spec"), "cluster_specs"), "batch_size": "batch"}


@dataclass(frozen=True)
class Row:
    """One cluster.

    plan             its headline, "" where there is none
    tokens_per_s     tokens a second where the first batch input holds ids, rows otherwise
    memory_bytes     of the fullest stage's device, of ``wall_bytes``
    why_not          why there is no plan, with what would be one; "" where there is
    found            the plan itself
    """

    cluster: str
    devices: int
    wall_bytes: int
    plan: str = ""
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    why_not: str = ""
    found: Plan | None = field(default=None, repr=False, compare=False)

    @property
    def tokens_per_device_s(self) -> float | None:
        return None if self.tokens_per_s is None else self.tokens_per_s / self.devices

    @property
    def tokens_per_device_hour(self) -> float | None:
        return None if self.tokens_per_device_s is None else self.tokens_per_device_s * HOUR_S

    def to_dict(self) -> dict:
        told = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "found"}
        names = ("tokens_per_device_s", "tokens_per_device_hour")
        return told | {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Comparison:
    """One model on several clusters; its text is a table.

    elements  what ``tokens`` are: "tokens", or "rows" where the first batch input holds no ids
    rows      by tokens a second, the most first; those without a plan last
    """

    model: str
    elements: str
    rows: tuple[Row, ...]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans, in the order of the rows that have one."""
        return tuple(row.found for row in self.rows if row.found is not None)

    def to_dict(self) -> dict:
        """As plain data."""
        return {"model": self.model, "elements": self.elements, "rows": [row.to_dict() for row in self.rows]}

    def __str__(self) -> str:
        one = self.elements
        header = ["cluster", "step time", f"{one}/s", f"{one}/s/device", "/device-hour", "MFU", "memory", "plan"]
        lines = [f"{self.model} on {len(self.rows)} cluster{'s' if len(self.rows) > 1 else ''}"]
        return "\n".join([*lines, table(header, [cells(row) for row in self.rows], right=range(1, 7))])


def cells(row: Row) -> list[str]:
    """One line of the table."""
    if row.found is None or row.step_time_s is None or row.mfu is None or row.memory_bytes is None:
        return [row.cluster, "-", "-", "-", "-", "-", "-", row.why_not]
    assert row.tokens_per_s is not None
    assert row.tokens_per_device_s is not None and row.tokens_per_device_hour is not None
    memory = f"{size_text(row.memory_bytes)} of {size_text(row.wall_bytes)}"
    hourly, rate = count_text(row.tokens_per_device_hour), f"{row.tokens_per_device_s:,.0f}"
    step, mfu = seconds_text(row.step_time_s), f"{100 * row.mfu:.1f}%"
    return [row.cluster, step, f"{row.tokens_per_s:,.0f}", rate, hourly, mfu, memory, row.plan]


def count_text(count: float) -> str:
    """ "12.3 M", "4.56 k"; three digits."""
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= factor:
            return f"{count / factor:.3g}{unit}"
    return f"{count:.3g}"


@keywords(InputsError, {**ARGUMENT_NAMES, **NAMES})
def compare(
    model: nn.Module | Callable[[], nn.Module] | Plan,
    cluster_specs: Sequence[Cluster],
    example_inputs: object = None,
    *,
    loss_fn: Callable | None = None,
    training: Training | Inference | None = None,
    parallelism: str | Parallelism | None = None,
    constraints: Sequence[Constraint] | None = None,
    effort: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
) -> Comparison:
    """One model and batch on several clusters, by step time, throughput and throughput of a device.

    model          a module, with ``parallelize``'s arguments; or a plan, which gives model, batch, and what isn't given
    cluster_specs  each whatever ``ClusterSpec.of`` takes
    batch, seq     of a plan, as ``Plan.what_if`` takes them

    The model is traced once for each precision that the clusters compute in: once, where ``training`` is given. A
    cluster on which nothing fits, or what is pinned can't be, has a row that says why.

    Raises ClusterError for what is no cluster, and what ``parallelize`` raises for the model itself.
    """
    if isinstance(cluster_specs, str | Mapping | os.PathLike | ClusterSpec) or not isinstance(cluster_specs, Iterable):
        remedy = 'Give one, such as ["1x8 h100-sxm", "2x8 l40s"]'
        raise ClusterError(repr(cluster_specs), "expected a list of clusters", remedy)
    specs = [ClusterSpec.of(cluster) for cluster in cluster_specs]
    if not specs:
        raise ClusterError("cluster_specs=[]", "there is nothing to compare", "Give at least one cluster")
    if isinstance(model, Plan):
        if example_inputs is not None or loss_fn is not None:
            said = "a plan has its own inputs and loss"
            raise InputsError("example_inputs or loss_fn beside a plan", said, "give batch or seq, or the module")
        how = (batch, seq, None, parallelism, constraints, training, effort)
        rows, name = rows_of(specs, lambda cluster: model.what_if(cluster, *how)), model.record.model.name
    else:
        check_model(model, loss_fn)
        if (batch, seq) != (None, None):
            raise InputsError(f"batch={batch} seq={seq}", "a module's batch is its example_inputs", "give those")
        pinned, own = "auto" if parallelism is None else parallelism, () if constraints is None else constraints
        check_arguments(training, own)
        source = source_of(model, example_inputs, loss_fn, max(spec.devices for spec in specs))
        rows = rows_of(specs, planner_of(source, training, pinned, own, effort or "full"))
        name = type(source.made.module).__name__
    rows.sort(key=lambda row: -(row.tokens_per_s or 0.0))
    return Comparison(name, counted(rows), tuple(rows))


def planner_of(
    source: Source, training: Training | Inference | None, parallelism: str | Parallelism,
    constraints: Sequence[Constraint], effort: str,
) -> Callable[[ClusterSpec], Plan]:  # fmt: skip
    """Plans a source for one cluster after the other; it is traced once for each precision."""
    traced: dict[str, Model] = {}

    def planned(cluster: ClusterSpec) -> Plan:
        own = training or Training(precision=cluster.default_precision)
        asked = asked_of(parallelism, constraints, own, effort)
        check_precision(own.precision, cluster)
        if own.precision not in traced:
            traced[own.precision] = source.traced(own)
        return plan_of(source, traced[own.precision], cluster, own, asked)

    return planned


def rows_of(specs: Sequence[ClusterSpec], planner: Callable[[ClusterSpec], Plan]) -> list[Row]:
    """A row for each cluster; ParallelismError where what is asked can be on none of them."""
    rows, refused = [], []
    for spec in specs:
        try:
            rows.append(row_of(spec, planner(spec)))
        except (DoesNotFitError, ParallelismError) as error:
            said = f"{error}" if isinstance(error, ParallelismError) else f"{error.cause}. {error.remedy}"
            rows.append(Row(str(spec), spec.devices, spec.usable_bytes, why_not=said))
            refused += [error] if isinstance(error, ParallelismError) else []
    if len(refused) == len(specs):
        raise refused[0]
    return rows


def row_of(spec: ClusterSpec, plan: Plan) -> Row:
    predicted = plan.predicted
    memory = predicted.peak_bytes[fullest_stage(plan.record.chosen)].total
    return Row(
        str(spec), spec.devices, spec.usable_bytes, str(plan), predicted.step_time_s, predicted.tokens_per_s,
        predicted.mfu, memory, found=plan,
    )  # fmt: skip


def beside(*named: tuple[str, Plan]) -> str:
    """Plans under names of their own, one a line, each with its cluster and batch."""
    rows = [row_of(plan.record.cluster, plan) for _, plan in named]
    lines = []
    for (name, plan), row in zip(named, rows, strict=True):
        cluster, step, rate, _, _, _, memory, told = cells(row)
        batch = " x ".join(map(str, plan.record.model.batch[0].type.shape))
        lines.append([name, cluster, batch, step, rate, memory, told])
    header = ["", "cluster", "batch", "step time", f"{counted(rows)}/s", "memory", "plan"]
    return table(header, lines, right=(3, 4))


def unchanged(before: Plan, after: Plan) -> str:
    """Says so where a change touches nothing of the plan; "" where it does."""
    one, other = before.record.chosen, after.record.chosen
    if one != other:
        return ""
    crossing = {axis for c in one.predicted.collectives for axis in c.axis.split(",")}
    cluster = after.record.cluster
    inside = cluster.nodes == 1 and cluster != before.record.cluster
    network = "; the cluster is one node, so that nothing crosses a network" if inside else ""
    links = f"; what it sends goes over {', '.join(sorted(crossing))}" if crossing else "; nothing of it crosses a link"
    return f"no difference: the same plan, with the same predictions{network or links}"


def counted(rows: Iterable[Row]) -> str:
    plan = next((row.found for row in rows if row.found is not None), None)
    return "tokens" if plan is None else elements_of(plan.record)
