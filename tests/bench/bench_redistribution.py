"""The figures of docs/redistribution.md: every engine over every pair of layouts. ``make bench-redistribution``

A mesh of 2x2x2, tensors of three dims whose sizes divide, every layout in which S and R alone occur. All plans are
executed on all ranks by one simulator, which counts what arrives and checks that the result is the tensor in its new
layout. The seconds on a cluster are the price list's.

    python -m tests.bench.bench_redistribution [--write docs/redistribution.md]
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from autoplan.cost.mesh_links import ClusterLinks
from autoplan.ir.graph import TensorType
from autoplan.ir.layout import Layout
from autoplan.ir.mesh import Mesh
from autoplan.redistribution import UNIFORM, Planner
from autoplan.redistribution.exchange.boxes import Dims
from autoplan.redistribution.exchange.messages import parse_spec
from cost_models.hardware import Topology, load_device
from tests.bench.rivals import dtensor, mindspore
from tests.bench.rivals.engines import OURS, Engine, Run, Setting, engines, priced
from tests.bench.rivals.steps import held, ordered_layouts, pairs, receive_bound
from tests.oracles.redistribution import deal, execute

MESH = Mesh.of(x=2, y=2, z=2)
SIZES = {axis.name: axis.size for axis in MESH.axes}
SMALL = TensorType((8, 8, 8), "uint8")  # one byte an element: elements counted are bytes
LARGE = {
    "256 MiB": TensorType((64, 1024, 2048), "bfloat16"),
    "1 MiB": TensorType((8, 64, 1024), "bfloat16"),
}
PROFILE, NODES = "h100-sxm", 2
ROUNDS = 3
MOST_NAMED = 8  # sequences of steps that are counted out
START, END = "<!-- figures -->\n", "<!-- end of figures -->\n"

EVERY = ordered_layouts(3, SIZES)
ONE_AXIS_A_DIM = tuple(dims for dims in EVERY if all(len(axes) <= 1 for axes in dims))
IN_MESH_ORDER = tuple(dims for dims in EVERY if dtensor.in_mesh_order(dims, SIZES))

Pair = tuple[Dims, Dims]


@dataclass(frozen=True)
class Result:
    """What the simulator saw of one plan.

    received     elements, by the busiest device of each step, added up
    over         a device held more than the larger of its parts before and after
    collectives  that communicate
    """

    received: float
    over: bool
    collectives: int


class Simulator:
    """Executes plans on a tensor of distinct elements; what is dealt out is kept."""

    def __init__(self, type: TensorType, mesh: Mesh):
        self.mesh = mesh
        self.whole = np.arange(float(type.elements))
        self.parts: dict[tuple[tuple[int, ...], Dims], list[np.ndarray]] = {}

    def deal(self, shape: tuple[int, ...], dims: Dims) -> list[np.ndarray]:
        key = (shape, dims)
        if key not in self.parts:
            self.parts[key] = deal(self.whole.reshape(shape), Layout.ordered(dims, self.mesh), self.mesh)
        return self.parts[key]

    def result(self, run: Run) -> Result:
        before, after = self.deal(run.shape, run.source), self.deal(run.shape, run.target)
        done = execute(run.collectives, before, self.mesh)
        assert all(np.array_equal(a, b) for a, b in zip(done.parts, after, strict=True)), run
        over = done.held > max(part.size for part in (*before, *after))
        return Result(done.received_elements, over, sum(1 for step in run.collectives if step.forward))


def results(engine: Engine, chosen: Iterable[Pair]) -> dict[Pair, Result]:
    simulator = Simulator(SMALL, MESH)
    return {pair: simulator.result(engine(*pair)) for pair in chosen}


def bytes_table(chosen: Sequence[Pair]) -> list[str]:
    """Every engine over these pairs, in units of the tensor's bytes n."""
    elements = SMALL.elements
    bounds = {pair: float(receive_bound(*pair, SIZES)) * elements for pair in chosen}
    lines = [
        "| engine | received by each device, over all pairs | × the bound | pairs above the bound "
        "| pairs that hold more than both ends | collectives |",
        "|---|---:|---:|---:|---:|---:|",
        f"| receive bound | {sum(bounds.values()) / elements:,.2f} n | 1.00 | | | |",
    ]
    for name, engine in engines(Setting(SMALL, MESH)).items():
        found = results(engine, chosen)
        received = sum(result.received for result in found.values())
        above = sum(result.received > bounds[pair] for pair, result in found.items())
        over, collectives = (sum(getattr(r, what) for r in found.values()) for what in ("over", "collectives"))
        ratio = received / sum(bounds.values())
        lines.append(
            f"| {name} | {received / elements:,.2f} n | {ratio:.2f} | {above:,} | {over:,} | {collectives:,} |"
        )
    return lines


def within_ends(run: Run) -> bool:
    """Whether no device holds more on the way than at the larger end: parts grow and shrink by the sizes of axes."""
    share = held(run.source, SIZES)
    limit = max(share, held(run.target, SIZES))
    for step in run.collectives:
        ways = math.prod(SIZES[axis] for axis in step.axes)
        if step.op.startswith("exchange"):
            before, after = parse_spec(step.spec)
            share *= held(after, SIZES) / held(before, SIZES)
        share *= {"shard": Fraction(1, ways), "all_gather": Fraction(ways)}.get(step.op, 1)
        if share > limit:
            return False
    return True


def seconds_table(type: TensorType, chosen: Sequence[Pair]) -> list[str]:
    """Every engine's seconds on a cluster."""
    setting = Setting(type, MESH, cluster_links())
    runs = {name: [engine(*pair) for pair in chosen] for name, engine in engines(setting).items()}
    seconds = {name: np.array([sum(priced(run.collectives, setting)) for run in runs[name]]) for name in runs}
    ours = seconds[OURS]
    lines = [
        "| engine | mean, ms | × ours | pairs slower than ours | pairs faster than ours "
        "| of these, holding no more than both ends | worst pair, × ours |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in seconds.items():
        slower, faster = found > ours * (1 + 1e-9), found < ours * (1 - 1e-9)
        lean = sum(within_ends(runs[name][number]) for number in np.flatnonzero(faster))
        worst = np.max(found[ours > 0] / ours[ours > 0])
        mean = f"{found.mean() * 1e3:.3f} | {found.mean() / ours.mean():.2f}"
        lines.append(f"| {name} | {mean} | {slower.sum():,} | {faster.sum():,} | {lean:,} | {worst:.1f} |")
    return lines


def cluster_links() -> ClusterLinks:
    """Two nodes of four devices: x lies across them, y and z inside one."""
    device, interconnect = load_device(PROFILE)
    return ClusterLinks(Topology(device, interconnect.levels(NODES, MESH.devices // NODES)))


def steps_used(chosen: Iterable[Pair], setting: Setting) -> str:
    """Our plans by the steps that they consist of, the most frequent first."""
    ours = engines(setting)[OURS]
    found = Counter(", ".join(step.op for step in ours(*pair).collectives) for pair in chosen)
    others = sum(count for _, count in found.most_common()[MOST_NAMED:])
    named = [f"{steps} {count:,}" for steps, count in found.most_common(MOST_NAMED)]
    return "; ".join([*named, *([f"{others:,} others"] if others else [])])


def planning_s(chosen: Sequence[Pair]) -> float:
    """Seconds of one core to plan these pairs from nothing."""
    layouts = {dims: Layout.ordered(dims, MESH) for pair in chosen for dims in pair}
    start = time.process_time()
    planner = Planner(SMALL, MESH, carries_gradient=False, links=UNIFORM)
    for source, target in chosen:
        planner.plan(layouts[source], layouts[target])
    return time.process_time() - start


def misordered(all_to_all: bool) -> tuple[int, int, int]:
    """Comparisons of two redistributions to one layout by MindSpore's first-slice price: how many there are whose bytes
    differ, in how many the dearer one is priced no higher, in how many lower."""
    compared = equal = inverted = 0
    for target in ONE_AXIS_A_DIM:
        sources = [source for source in ONE_AXIS_A_DIM if source != target]
        plans = [mindspore.plan(source, target, all_to_all) for source in sources]
        ends = list(zip(sources, plans, strict=True))
        moved = [(mindspore.true_price(*e, SIZES), mindspore.first_slice_price(*e, SIZES)) for e in ends]
        for (true, price), (other_true, other_price) in itertools.combinations(moved, 2):
            compared += true != other_true
            equal += true != other_true and price == other_price
            inverted += (true - other_true) * (price - other_price) < 0
    return compared, equal + inverted, inverted


def report() -> str:
    one_axis, mesh_order, every = (pairs(layouts) for layouts in (ONE_AXIS_A_DIM, IN_MESH_ORDER, EVERY))
    lines = [f"MindSpore's layouts, each dim split by one axis at most: {len(one_axis):,} pairs.", ""]
    lines += [
        *bytes_table(one_axis),
        "",
        f"Axes in the mesh's order, DTensor's default: {len(mesh_order):,} pairs.",
        "",
    ]
    lines += [*bytes_table(mesh_order), "", f"Every ordered layout: {len(every):,} pairs.", "", *bytes_table(every), ""]
    lines += [f"The steps of ours: {steps_used(every, Setting(SMALL, MESH))}.", ""]
    spent = [planning_s(every) for _ in range(ROUNDS)]
    lines += [
        f"Planning all {len(every):,} pairs: {statistics.median(spent):.2f} s of one core, median of {ROUNDS}.",
        "",
    ]
    for name, type in LARGE.items():
        lines += [f"On {NODES} nodes of {PROFILE}, x across the nodes, a tensor of {name}, {len(every):,} pairs:", ""]
        lines += [*seconds_table(type, every), ""]
        lines += [f"The steps of ours: {steps_used(every, Setting(type, MESH, cluster_links()))}.", ""]
    for all_to_all, words in ((True, "with all-to-all on"), (False, "by default")):
        compared, wrong, inverted = misordered(all_to_all)
        lines.append(
            f"MindSpore's price of the first slice, {words}: of {compared:,} comparisons between two redistributions to"
            f" one layout whose bytes differ, {wrong:,} ({wrong / compared:.0%}) aren't ordered by it,"
            f" {inverted:,} of them inverted."
        )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the document whose figures are to be replaced")
    arguments = parser.parse_args()
    text = report()
    print(text)
    if arguments.write:
        before, _, rest = arguments.write.read_text().partition(START)
        arguments.write.write_text(before + START + "\n" + text + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
