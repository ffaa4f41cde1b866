"""What has to hold of any model on any cluster, each law as two step times of which the first isn't above the second.

More memory, more bandwidth and more devices are never slower; twice the batch takes at most twice the time; no named
system is quicker than what the search finds; nor is anything that is pinned.
"""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from autoplan.cluster import ClusterSpec
from autoplan.ir.graph import Model
from autoplan.report.words import parallelism_text
from autoplan.search.space.systems import ASYNCHRONOUS, SYSTEMS
from tests.bench.laws.cells import LONG, MIXTURES, SUBJECTS, more_memory, planned, seconds
from tests.bench.laws.pins import drawn

TOLERANCE = 1.005
MEMORY, BANDWIDTH = 1.25, 2.0  # times what the cluster has
REDRAWN = 8  # pins drawn for each that is planned, at most
TIME_LIMIT_S = 1800


@dataclass(frozen=True)
class Finding:
    """One comparison: ``least_s`` isn't above ``other_s``, but for the tolerance."""

    model: str
    cluster: str
    law: str
    least_s: float
    other_s: float

    @property
    def holds(self) -> bool:
        return self.least_s <= TOLERANCE * self.other_s

    def __str__(self) -> str:
        told = "" if self.holds else "   BROKEN"
        ratio = self.least_s / self.other_s if math.isfinite(self.other_s) else 0.0
        figures = f"{self.least_s:10.5g} {self.other_s:10.5g} {ratio:8.4f}"
        return f"{self.model:<20} {self.cluster:<18} {figures}  {self.law}{told}"


def laws(model: str, cluster: str, systems: bool = True) -> Iterator[Finding]:
    """The comparisons of a cell: those of resources and of the batch, then each named system."""
    traced, spec = SUBJECTS[model].traced(), ClusterSpec.parse(cluster)
    auto_s = seconds(traced, spec)

    def found(law: str, least_s: float, other_s: float) -> Finding:
        return Finding(model, cluster, law, least_s, other_s)

    yield found("more memory", seconds(traced, more_memory(spec, MEMORY)), auto_s)
    yield found("more bandwidth", seconds(traced, replace(spec, bandwidth=BANDWIDTH)), auto_s)
    yield found("more devices", seconds(traced, spec.with_nodes(2 * spec.nodes)), auto_s)
    yield found("twice the batch", seconds(SUBJECTS[model].traced(2), spec), 2 * auto_s)
    for name in SYSTEMS if systems else ():
        if name != "auto" and name not in ASYNCHRONOUS:
            yield found(name, auto_s, seconds(traced, spec, name))


def pinned(model: str, cluster: str, count: int, seed: int) -> Iterator[Finding]:
    """So many pins that plan and fit, drawn at random; none where auto finds nothing."""
    traced, spec = SUBJECTS[model].traced(), ClusterSpec.parse(cluster)
    yield from pinned_of(traced, spec, (model, cluster), axes_of(model), count, seed)


def axes_of(model: str) -> tuple[str, ...]:
    """The axes that sizes are drawn for: the experts' of mixtures, the context's of long rows."""
    return ("dp", "tp", "pp", *(("ep",) if model in MIXTURES else ()), *(("cp",) if model in LONG else ()))


def pinned_of(
    traced: Model, spec: ClusterSpec, names: tuple[str, str], axes: tuple[str, ...], count: int, seed: int
) -> Iterator[Finding]:
    """The same of a graph."""
    auto, random = planned(traced, spec), Random(f"{names} {seed}")
    if auto is None:
        return
    pins = dict.fromkeys(drawn(random, spec.devices, auto.parallelism, axes) for _ in range(REDRAWN * count))
    each_s = ((one, seconds(traced, spec, one)) for one in pins)
    there = ((one, other_s) for one, other_s in each_s if math.isfinite(other_s))
    for one, other_s in itertools.islice(there, count):
        yield Finding(*names, parallelism_text(one), auto.predicted.step_time_s, other_s)


def chosen(model: str, cluster: str) -> str:
    """What auto chooses, to the last digit."""
    auto = planned(SUBJECTS[model].traced(), ClusterSpec.parse(cluster))
    return "nothing fits" if auto is None else f"{parallelism_text(auto.parallelism)} {auto.predicted.step_time_s!r}"


def same_in_two_processes(model: str, cluster: str) -> bool:
    """Whether two processes, whose hashes of text differ, choose the same."""
    told = []
    for hashes in ("1", "2"):
        command = [sys.executable, "-W", "ignore", "-m", "tests.bench.laws", "--chosen", model, cluster]
        environment = {"PYTHONHASHSEED": hashes}
        done = subprocess.run(
            ["env", *(f"{k}={v}" for k, v in environment.items()), *command],
            capture_output=True, text=True, timeout=TIME_LIMIT_S, check=True,
        )  # fmt: skip
        told.append(json.loads(done.stdout.splitlines()[-1]))
    return told[0] == told[1]
