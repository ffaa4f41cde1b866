"""Step times on two nodes: gradients summed by a ring, on a tree, or in nodes and between them; compressed; pushed to
one, two or four parameter servers; or kept by replicas that step by themselves for a while.

Calibrates the two nodes, plans one small Llama (``tests.bench.live.cases``) in each way under that profile, and times
the exported programs round by round. Its batch is small, so that what a step waits for is the link.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

import autoplan
from autoplan import ClusterSpec, Parallelism, Training
from autoplan.emit.source import size_text
from autoplan.ir.buckets import ONE_BIT
from autoplan.search.space.one_line import COMPRESSION_WORDS as WORDS
from tests.bench.live.cases import TRAINING, small_llama
from tests.bench.live.clusters import Cluster
from tests.bench.live.measured import LIMIT_S, Row, run
from tests.bench.live.table import places

RATE = "200mbit"
ROUNDS, CALIBRATE_S = 6, 180  # so long that messages of several MiB are sent, beyond what a link takes at once
ROWS, LENGTH = 4, 32
HARDLY = 1e-12  # a learning rate
LOCAL_STEPS = 4  # of a round, which is timed whole: from one outer step to the next
ALIKE = Parallelism(dp=4, tp=1, pp=1, zero=0, micro_batch=1, recompute="none")
PLANS: Mapping[str, Parallelism] = {
    "ring": replace(ALIKE, all_reduce="ring"),
    "tree": replace(ALIKE, all_reduce="tree"),
    "hierarchical": replace(ALIKE, all_reduce="hierarchical"),
    "by size": ALIKE,
    "DiLoCo": replace(ALIKE, local_steps=LOCAL_STEPS, outer_optimizer="nesterov"),
    **{f"{n} server{'s' * (n > 1)}": Parallelism(micro_batch=1, recompute="none", servers=n) for n in (1, 2, 4)},
    "4 servers, stale": Parallelism(micro_batch=1, recompute="none", servers=4, staleness=1),
    "4 servers, as they arrive": Parallelism(micro_batch=1, recompute="none", servers=4, ahead="unbounded"),
    "4 servers, 1 backup": Parallelism(micro_batch=1, recompute="none", servers=4, backups=1),
    "PowerSGD": replace(ALIKE, compression="powersgd"),
    **{
        f"{words}, between nodes": replace(ALIKE, compression=kind, compression_within=2)
        for kind, words in WORDS.items()
    },
}


HEADER = """## Step times

The same two nodes with a link of {rate}, calibrated there for {calibrate} s: a small Llama's step of {rows} rows of
{length} tokens, whose {size} of gradients are summed, compressed between all ranks or between the nodes alone, or
pushed to parameter servers and pulled from them as weights. `by size` is what is planned where nothing says how they
are summed. DiLoCo has an outer step after every {local} of a replica, of which a step has its share. Seconds; of the
measured ones the median of {rounds} rounds, and in brackets the least and the greatest. Measured on {date}, with a
load of {load:.1f} on {cores} cores before it began.

| plan | parallelism | predicted | measured | predicted / measured | place predicted | place measured |
|---|---|---|---|---|---|---|
"""


def timed(root: Path, tool: Path, say: Callable[[str], None], only: Sequence[str] = ()) -> list[Row]:
    """A row for each plan, predicted and measured; ``only``: of these by their names, where there are any."""
    cluster, profile = Cluster("two nodes", 2, 2, RATE), root / "profile.toml"
    root.mkdir(parents=True, exist_ok=True)
    if not profile.exists():
        arguments = ["-m", "cost_models.calibrate", "--out", str(profile), "--seconds", str(CALIBRATE_S)]
        cluster.start(arguments, tool, LIMIT_S)
    batch = {name: torch.zeros(ROWS, LENGTH, dtype=torch.int64) for name in ("input_ids", "labels")}
    spec, model = ClusterSpec(cluster.nodes, cluster.processes, str(profile)), small_llama()
    plans = {
        name: autoplan.parallelize(model, spec, batch, training=training_of(given), parallelism=given)
        for name, given in PLANS.items()
        if not only or name in only
    }
    folders = {name: str(plan.export(root / name.replace(" ", "-"))) for name, plan in plans.items()}
    times = run(cluster, list(folders.values()), root, ROUNDS, tool)
    rows = [Row(name, plan, tuple(times[folders[name]])) for name, plan in plans.items()]
    for row in rows:
        say(f"{row.name}: predicted {row.predicted_s:.3f} s, measured {row.measured_s:.3f} s")
    return rows


def training_of(given: Parallelism) -> Training:
    """1-bit Adam's and LAMB's only step of warm-up isn't timed. The variance of one step is no divisor to train by: at
    a usual learning rate the next few diverge, so theirs hardly moves the parameters."""
    if given.compression not in ONE_BIT:
        return TRAINING
    optimizer = "lamb" if given.compression == "1bit-lamb" else TRAINING.optimizer
    return replace(TRAINING, compression_start=1, optimizer=optimizer, learning_rate=HARDLY)


def section(rows: Sequence[Row], load: float) -> str:
    """The rows as a part of docs/appendix/two_nodes.md, in the order of what was measured; "" of none.

    load  of the machine before, in processes that run or wait
    """
    if not rows:
        return ""
    size = size_text(max(c.bytes for c in rows[0].plan.predicted.collectives))
    header = HEADER.format(
        rate=RATE, calibrate=CALIBRATE_S, rows=ROWS, length=LENGTH, size=size, local=LOCAL_STEPS,
        rounds=max(len(r.seconds) for r in rows), date=date.today(), load=load, cores=os.cpu_count(),
    )  # fmt: skip
    told, seen = places([row.predicted_s for row in rows]), places([row.measured_s for row in rows])
    lines = []
    for at in sorted(range(len(rows)), key=lambda at: rows[at].measured_s):
        row = rows[at]
        spread = f"{row.measured_s:.2f} ({min(row.seconds):.2f}–{max(row.seconds):.2f})"
        cells = (row.name, str(row.plan), f"{row.predicted_s:.2f}", spread, f"{row.predicted_s / row.measured_s:.2f}")
        lines.append(f"| {' | '.join((*cells, str(told[at]), str(seen[at])))} |")
    return header + "\n".join(lines)
