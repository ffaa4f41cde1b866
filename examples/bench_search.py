"""Seconds, memory and plans of whole searches, tracing included: ``make bench-search``.

    python examples/bench_search.py [--only 405b]

Each case is planned in a process of its own, so that its peak memory and its imports are its own; the model is built
before the clock starts. ``--only`` takes a part of a case's name. The sweeps over depth and over devices end with the
ratio of their slowest search to that of their smallest case, in seconds of the processor: what else runs on the machine
lengthens those of the clock.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import autoplan
from autoplan.models.named import resolve_model

HERE = Path(__file__).parent
TIME_LIMIT_S = 600


@dataclass(frozen=True)
class Case:
    """One search: a model as ``--model`` names it, a cluster, the rows of a step (None: the model says which) and the
    tokens of a row."""

    name: str
    model: str
    cluster: str
    batch: int | None
    seq: int | None = None
    settings: tuple[str, ...] = ()
    effort: str = "full"


RESNET, UNET = f"{HERE}/resnet.py:make_model", f"{HERE}/unet.py:make_model"
MODELS = (
    Case("llama-3.1-405b", "hf:llama-3.1-405b", "2048x8 h100-sxm", 2048, 8192),
    Case("llama-3-70b", "hf:llama-3-70b", "64x8 h100-sxm", 512, 8192),
    Case("llama-3-8b", "hf:llama-3-8b", "8x8 h100-sxm", 512, 8192),
    Case("llama-3-8b fast", "hf:llama-3-8b", "8x8 h100-sxm", 512, 8192, effort="fast"),
    Case("gpt3-175b", "hf:gpt3-175b", "128x8 a100-sxm-80gb", 1536, 2048),
    Case("mixtral-8x22b", "hf:mixtral-8x22b", "32x8 h100-sxm", 512, 4096),
    Case("vit-22b", "hf:vit-22b", "32x8 h100-sxm", 4096, None, ("num_labels=29593",)),
    Case("resnet-50", RESNET, "1x8 a100-sxm-80gb", 2048),
    Case("resnet-50 on 64", RESNET, "8x8 a100-sxm-80gb", 8192),
    Case("unet", UNET, "1x8 a100-sxm-80gb", 128),
    Case("t5-11b", "hf:t5-11b", "8x8 a100-sxm-80gb", 512, 512),
)
DEPTHS = tuple(
    Case(f"depth {layers}", "hf:llama-3-8b", "8x8 h100-sxm", 512, 8192, (f"num_hidden_layers={layers}",))
    for layers in (8, 16, 32, 64, 128)
)
DEVICES = tuple(
    Case(f"devices {8 * nodes}", "hf:llama-3-8b", f"{nodes}x8 h100-sxm", 16384, 8192)
    for nodes in (1, 8, 64, 512, 2048)
)
SWEEPS = {"8 to 128 layers": DEPTHS, "8 to 16,384 devices": DEVICES}
CASES = {case.name: case for case in (*MODELS, *DEPTHS, *DEVICES)}


def measure(case: Case) -> dict[str, object]:
    """Plans one case in this process."""
    torch.set_num_threads(1)
    request = resolve_model(case.model, case.settings, batch=case.batch, seq=case.seq)
    effort = {} if case.effort == "full" else {"effort": case.effort}
    start, before = time.perf_counter(), time.process_time()
    plan = autoplan.parallelize(
        request.model,
        case.cluster,
        request.example_inputs,
        loss_fn=request.loss_fn,
        training=autoplan.Training(precision="bf16-mixed"),
        **effort,
    )
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - before
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # Linux counts it in KiB
        "plan": str(plan),
        "step_time_s": plan.predicted.step_time_s,
        "gap": plan.search.optimality_gap,
        "variables": plan.search.variables,
        "phases": dict(plan.search.seconds),
    }


def in_fresh_process(case: Case) -> dict[str, object]:
    """The measurement, or what went wrong under "error"."""
    command = [sys.executable, "-W", "ignore", __file__, "--case", case.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {TIME_LIMIT_S} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def row(case: Case, found: dict) -> str:
    where = f"{case.name:<18} {case.cluster:<22}"
    if "error" in found:
        return f"{where} {found['error']}"
    spent = f"{found['seconds']:8.1f} {found['cpu_s']:6.1f} {found['peak_bytes'] / 2**30:6.2f}"
    told = f"{found['step_time_s']:10.4g} {found['gap']:8.3%} {found['variables']:10,}  {found['plan']}"
    return f"{where} {spent} {told}"


def run(names: list[str], phases: bool) -> dict[str, dict]:
    """Prints the table row by row; what was found by case."""
    print(f"{'model':<18} {'cluster':<22} {'seconds':>8} {'CPU s':>6} {'GiB':>6}", end=" ")
    print(f"{'step s':>10} {'gap':>8} {'variables':>10}  plan")
    found = {}
    for name in names:
        found[name] = in_fresh_process(CASES[name])
        print(row(CASES[name], found[name]), flush=True)
        if phases and "phases" in found[name]:
            print("    " + "  ".join(f"{phase} {spent:.2f}" for phase, spent in found[name]["phases"].items()))
    return found


def print_ratios(found: dict[str, dict]) -> None:
    for title, sweep in SWEEPS.items():
        seconds = [found.get(case.name, {}).get("cpu_s") for case in sweep]
        known = [s for s in seconds if s is not None]
        if seconds[0] is not None and len(known) > 1:
            print(f"{title}: at most {max(known) / seconds[0]:.2f} times the processor's time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a part of a case's name; may be given again")
    parser.add_argument("--phases", action="store_true", help="seconds by phase under each row")
    parser.add_argument("--case", help="plan this one here and print what was measured as JSON")
    given = parser.parse_args()
    if given.case:
        print(json.dumps(measure(CASES[given.case])))
        return
    names = [name for name in CASES if not given.only or any(part in name for part in given.only)]
    print_ratios(run(names, given.phases))


if __name__ == "__main__":
    main()
