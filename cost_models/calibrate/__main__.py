"""``torchrun --nproc-per-node 4 -m cost_models.calibrate --out mine.toml``: measures a machine, writes its profile."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console

from cost_models.calibrate import collectives, operators, sizes
from cost_models.calibrate.bursts import measure_burst
from cost_models.calibrate.cases import Collective, Operator, Sample, split
from cost_models.calibrate.fit_device import blank_device, fit_device
from cost_models.calibrate.fit_links import fit_links, predict, with_start_delay
from cost_models.calibrate.measure import measure
from cost_models.calibrate.overlap import measure_overlap, measure_sharing, measure_start_delay
from cost_models.calibrate.report import error_table, held_out_errors, mean_error, rows
from cost_models.calibrate.world import Machine, World, join, machine
from cost_models.calibrate.write import Origin, check_writable, profile_text, table_text, write_profile, write_text
from cost_models.errors import ProfileError

SECONDS, QUICK_SECONDS = 90.0, 15.0
_OPERATORS, _SHARED = 0.40, 0.08      # shares of the budget; the rest is the collectives'
_MEETING = 0.10                      # of the budget too, where devices share processors
_BURSTS = 0.03                       # of the budget too, where there are several nodes
_LONGEST = 0.004                     # of the budget, that one run of a case may take
_LARGEST_BYTES = 2**26
_DTYPES = ("float32", "bfloat16", "float64", "float16")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        world = join()
    except ProfileError as error:
        return _told(error)
    try:
        return _calibrate(options, world)
    finally:
        dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cost_models.calibrate",
        description="Measures the operators of this machine's devices and the links between them, on all processes at "
        "once, and writes the profile that plans are priced with: ClusterSpec.of('mine.toml').",
        epilog="Start it on every node as a training would be: torchrun --nnodes 2 --nproc-per-node 8 ... -m "
        "cost_models.calibrate --out mine.toml",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="mine.toml", help="the profile to write; beside it "
                        "every measured point as mine.csv")  # fmt: skip
    parser.add_argument("--seconds", type=_positive, help=f"time to measure for (default {SECONDS:.0f})")
    parser.add_argument("--quick", action="store_true", help=f"measure for {QUICK_SECONDS:.0f} seconds only")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time: give seconds, such as 90")
    return value


def _told(error: ProfileError) -> int:
    """Tells a user's mistake, on the first rank only; the exit status."""
    if os.environ.get("RANK", "0") == "0":
        print(error, file=sys.stderr, flush=True)
    return 2


def _calibrate(options: argparse.Namespace, world: World) -> int:
    refused = None
    if world.rank == 0:
        try:
            check_writable(options.out)
        except ProfileError as error:
            refused = _told(error)
    if world.largest([float(refused or 0)])[0]:
        return 2
    budget_s = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    console = Console(width=None if sys.stdout.isatty() else 100, quiet=world.rank != 0, highlight=False)
    known = machine(world)
    console.print(f"{world.nodes}x{world.devices_per_node} {world.device.type} ({known.name}), {budget_s:.0f} s")
    measured_operators = _operators(world, known, budget_s, console)
    shared = _shared(world, budget_s, console)
    measured_collectives = _collectives(world, budget_s, console)
    burst = measure_burst(world, budget_s * _BURSTS)
    if world.rank == 0:
        _write(options.out, world, known, measured_operators, measured_collectives, shared, burst, console)
    return 0


def _operators(world: World, known: Machine, budget_s: float, console: Console) -> list[Sample[Operator]]:
    cases = sizes.operators(_DTYPES, "bfloat16" if known.accelerated else "float32", known.accelerated)
    began = time.perf_counter()
    samples, rounds = measure(
        cases, lambda case: operators.start(case, world.device), operators.calls, world,
        budget_s * _OPERATORS, budget_s * _LONGEST,
    )  # fmt: skip
    _tell("operators", samples, len(cases), rounds, began, console)
    return samples


@dataclass(frozen=True)
class _Shared:
    """What devices take from one another.

    figures    of ``Device``
    start_delay_s  by which a collective between computing starts later, and by which a send does
    """

    figures: dict[str, Any]
    start_delay_s: tuple[float, float] = (0.0, 0.0)


def _shared(world: World, budget_s: float, console: Console) -> _Shared:
    began = time.perf_counter()
    slowdown = measure_overlap(world, budget_s * _SHARED / 2)
    sharers, alone = measure_sharing(world, budget_s * _SHARED / 2)
    found = _Shared({"overlap_slowdown": slowdown, "sharers": sharers, "alone": alone})
    told = "no devices share"
    if sharers > 1:
        each_s = budget_s * _MEETING / 2
        collective_s, send_s = (measure_start_delay(world, kind, each_s) for kind in ("all-reduce", "send"))
        found = replace(found, start_delay_s=(collective_s, send_s))
        told = f"{sharers} devices share, one alone is {alone:.1f} times as fast; between computing collectives start "
        told += f"{collective_s * 1e3:.1f} ms later, sends {send_s * 1e3:.1f} ms"
    console.print(
        f"processors: {told}; an all-reduce slows compute by {slowdown:.0%}, {time.perf_counter() - began:.0f} s"
    )
    return found


def _collectives(world: World, budget_s: float, console: Console) -> list[Sample[Collective]]:
    """Over each axis in its share of what is left of the budget."""
    found: list[Sample[Collective]] = []
    share_s = budget_s * (1 - _OPERATORS - _SHARED - _MEETING - _BURSTS) / len(world.axes)
    for axis in world.axes:
        cases, began = sizes.collectives([axis], _LARGEST_BYTES), time.perf_counter()
        samples, rounds = measure(
            cases, lambda case: collectives.start(case, world.group(case.axis), world.device), lambda _: 1, world,
            share_s, budget_s * 2 * _LONGEST,
        )  # fmt: skip
        _tell(f"collectives over {axis.name}", samples, len(cases), rounds, began, console)
        found += samples
    return found


def _tell(
    phase: str, samples: Sequence[object], cases: int, rounds: int, began: float, console: Console
) -> None:
    left = f", {cases - len(samples)} left out as too slow" if cases > len(samples) else ""
    took_s = time.perf_counter() - began
    console.print(f"{phase}: {len(samples)} cases, median of {rounds} rounds, {took_s:.0f} s{left}")


def _write(
    path: Path, world: World, known: Machine, measured_operators: list[Sample[Operator]],
    measured_collectives: list[Sample[Collective]], shared: _Shared, burst: float, console: Console,
) -> None:  # fmt: skip
    """Fits, tells the error, and writes the profile and the table of all points."""
    operator_points, collective_points = split(measured_operators), split(measured_collectives)
    blank = blank_device(path.stem, known.memory_bytes, known.reserved_bytes, known.multiprocessors, known.accelerated)
    device = replace(fit_device(blank, operator_points.fitted), **shared.figures)
    links = fit_links(collective_points.fitted)
    operator_errors = held_out_errors(operator_points, lambda case: case.predict(device))
    collective_errors = held_out_errors(collective_points, lambda case: predict(case, links))
    console.print(error_table([*operator_errors, *collective_errors]))
    where = f"{world.nodes}x{world.devices_per_node} processes at once on {known.name}, PyTorch {torch.__version__}"
    backend = dist.get_backend()
    startup_ms = " and ".join(f"{seconds * 1e3:.2f} ms" for seconds in shared.start_delay_s)
    turns = f"; startups hold {startup_ms} (sends) for ranks' turns" if any(shared.start_delay_s) else ""
    origin = Origin(
        title=f"Measured by cost_models.calibrate with {where}",
        date=date.today().isoformat(),
        operators=f"{where}: mean error {mean_error(operator_errors):.1%} on sizes not fitted",
        links=f"{where}, {backend}: mean error {mean_error(collective_errors):.1%} on sizes not fitted{turns}",
    )
    table = [
        *rows(operator_points, lambda case: case.predict(device)),
        *rows(collective_points, lambda case: predict(case, links)),
    ]
    met = with_start_delay(links, *shared.start_delay_s)
    if burst:
        console.print(f"between nodes {burst / 1e3:.0f} kB go at once after a pause")
        met["nic"] = replace(met["nic"], burst_bytes=burst / world.devices_per_node)  # a device's share, as bandwidth
    write_profile(path, profile_text(device, met, world.nodes, world.devices_per_node, origin))
    write_text(path.with_suffix(".csv"), table_text(table))
    console.print(f"wrote {path} and {path.with_suffix('.csv')}: ClusterSpec.of({str(path)!r})")


if __name__ == "__main__":
    sys.exit(main())
