"""One cluster measured: calibrated, every plan made, exported, run, and set beside its prediction."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import spearmanr

import autoplan
from autoplan import ClusterSpec, Plan
from tests.bench.live.cases import AUTO, COMPRESSED, PLANS, batch, small_llama, training_of
from tests.bench.live.clusters import Cluster

WORKER = Path(__file__).with_name("worker.py")
LIMIT_S = 900
NEAR = 1.2          # times the fastest: plans that are run again, since which is fastest is asked to 5%
NEAR_ROUNDS = 12    # further rounds of these: a step's time spreads by 10 to 20% on a machine of fewer cores than ranks

Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One plan: what it was predicted to take, and the seconds of each round."""

    name: str
    plan: Plan
    seconds: tuple[float, ...]

    @property
    def predicted_s(self) -> float:
        return self.plan.predicted.step_time_s

    @property
    def measured_s(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Measured:
    """All plans on one cluster; ``cluster`` as calibrated."""

    name: str
    cluster: ClusterSpec
    rows: tuple[Row, ...]

    @property
    def auto(self) -> Row:
        return next(row for row in self.rows if row.name == AUTO)

    @property
    def pinned(self) -> tuple[Row, ...]:
        """The plans that are compared; the one that auto chose may be one of them, and counts once."""
        return tuple(row for row in self.rows if row.name != AUTO)

    @property
    def correlation(self) -> float:
        """Spearman's, of predicted and measured times."""
        found = spearmanr([row.predicted_s for row in self.pinned], [row.measured_s for row in self.pinned])
        return float(found.statistic)

    @property
    def auto_over_fastest(self) -> float:
        """What auto chose takes, over the fastest of all whose steps are one device's."""
        return self.auto.measured_s / min(row.measured_s for row in self.rows if row.name not in COMPRESSED)


def measure(cluster: Cluster, folder: Path, rounds: int, calibrate_s: float, tool: Path, say: Say) -> Measured:
    """Everything on one cluster, in ``folder``: its profile, a folder for each plan, the times."""
    folder.mkdir(parents=True, exist_ok=True)
    profile = folder / "profile.toml"
    began = time.perf_counter()
    if calibrate_s:
        arguments = ["-m", "cost_models.calibrate", "--out", str(profile), "--seconds", f"{calibrate_s:g}"]
        cluster.start(arguments, tool, LIMIT_S)
    spec = ClusterSpec(cluster.nodes, cluster.processes, str(profile))
    say(f"{cluster.name}: calibrated in {time.perf_counter() - began:.0f} s")
    began = time.perf_counter()
    plans = make_plans(spec, folder)
    say(f"{cluster.name}: {len(plans)} plans in {time.perf_counter() - began:.0f} s")
    began = time.perf_counter()
    times = run(cluster, list(dict.fromkeys(path for path, _ in plans.values())), folder, rounds, tool)
    near = nearest(times)
    more = run(cluster, near, folder, NEAR_ROUNDS, tool)
    say(f"{cluster.name}: {rounds} rounds of them, {NEAR_ROUNDS} more of the fastest {len(near)}, in "
        f"{time.perf_counter() - began:.0f} s")  # fmt: skip
    rows = (Row(name, plan, (*times[path], *more.get(path, ()))) for name, (path, plan) in plans.items())
    return Measured(cluster.name, spec, tuple(rows))


def make_plans(spec: ClusterSpec, folder: Path) -> dict[str, tuple[str, Plan]]:
    """Every plan by name with the folder that it is exported to; an error where two turn out to be the same.

    Where auto chose a plan that is pinned, too, its program is that one's, and so are its times.
    """
    model, plans = small_llama(), {}
    for number, (name, parallelism) in enumerate(PLANS.items()):
        plan = autoplan.parallelize(model, spec, batch(), training=training_of(name), parallelism=parallelism)
        plans[name] = (str(plan.export(folder / f"{number:02d}")), plan)
    pinned = [str(plan) for name, (_, plan) in plans.items() if name != AUTO]
    twice = sorted({text for text in pinned if pinned.count(text) > 1})
    assert not twice, f"planned twice on {spec}: {twice}"
    path, chosen = plans[AUTO]
    same = [other for name, (other, _) in plans.items() if name != AUTO and program(other) == program(path)]
    return plans | {AUTO: (same[0] if same else path, chosen)}


def program(path: str) -> str:
    return (Path(path) / "program.py").read_text()


def nearest(times: Mapping[str, Sequence[float]]) -> list[str]:
    """Folders of the plans that may be the fastest."""
    medians = {path: statistics.median(seconds) for path, seconds in times.items()}
    return [path for path, median_s in medians.items() if median_s <= NEAR * min(medians.values())]


def run(
    cluster: Cluster, folders: Sequence[str], folder: Path, rounds: int, tool: Path
) -> Mapping[str, Sequence[float]]:
    """The seconds of each round, by the folder of the plan."""
    out = folder / "times.json"
    cluster.start([str(WORKER), str(out), str(rounds), *folders], tool, LIMIT_S)
    times: Mapping[str, Sequence[float]] = json.loads(out.read_text())
    return times
