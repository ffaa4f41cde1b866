"""One plan of each kind on the device against the module on the CPU, in float64; several ranks share the one device.

NCCL takes no two ranks of one device, so they meet in the host's memory (`staged`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from autoplan import Parallelism, Training
from autoplan.verify.reference import train_eagerly
from tests.bench.gpu.attempt import attempted, last_error
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import SMALL, Setting
from tests.support.planning import parallelize_alone

WORKER, WEIGHTS, LIMIT_S, STEPS = "tests.bench.gpu.worker", "weights.pt", 200.0, 3
BOUND = 1e-9  # of a parameter after the steps, beside its tensor's largest, in float64
TRAINING = Training(precision="fp64", learning_rate=1e-3)


@dataclass(frozen=True)
class Kind:
    model: str
    ranks: int
    pinned: Mapping[str, object]


def kind(model: str, ranks: int, **pinned: object) -> Kind:
    return Kind(model, ranks, {"dp": 1, "tp": 1, "pp": 1, "recompute": "none", **pinned})


KINDS: Mapping[str, Kind] = {
    "one rank": kind("Llama", 1),
    "recomputed": kind("GPT-2, dropout", 1, recompute="full"),
    "recomputed in part": kind("Llama", 1, recompute="selective"),
    "experts, one rank": kind("Mixtral", 1),
    "activations on the host": kind("Llama", 1, offload="activations"),
    "optimizer on the host": kind("Llama", 1, offload="optimizer"),
    "parameters on the host": kind("Llama", 2, dp=2, zero=3, offload="parameters"),
    "ddp": kind("Llama", 2, dp=2, zero=0),
    "zero1": kind("GPT-2, dropout", 2, dp=2, zero=1),
    "zero2": kind("Llama", 2, dp=2, zero=2),
    "zero3": kind("Llama", 2, dp=2, zero=3),
    "tensor": kind("Llama", 2, tp=2, sequence_parallel=False),
    "tensor, sequence": kind("GPT-2, dropout", 2, tp=2, sequence_parallel=True),
    "ring": kind("Llama", 2, cp=2, cp_attention="ring"),
    "heads": kind("Llama", 2, cp=2, cp_attention="heads"),
    "rows": kind("Llama", 2, cp=2, cp_attention="rows"),
    "experts over ranks": kind("Mixtral", 2, dp=2, ep=2),
    "1f1b": kind("Llama", 2, pp=2, pipeline_schedule="1f1b", micro_batch=1),
    "interleaved": kind("Llama", 2, pp=2, pipeline_schedule="interleaved", virtual_stages=2, micro_batch=1),
    "data x tensor": kind("Llama", 4, dp=2, tp=2, zero=0, sequence_parallel=False),
    "zero3 x tensor": kind("GPT-2, dropout", 4, dp=2, tp=2, zero=3, sequence_parallel=False),
    "pipeline x data": kind("Llama", 4, dp=2, pp=2, zero=0, pipeline_schedule="1f1b", micro_batch=1),
}
FEW = ("one rank", "ddp")


def run(setting: Setting) -> Result:
    """Plans are made one after another, their ranks run beside each other, three cores a plan."""
    names = FEW if setting.small else tuple(KINDS)
    wrong: list[str] = []
    made = {name: attempted(lambda name=name: started(setting, name), name, wrong) for name in names}
    found: dict[str, float | None] = {}
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 3)) as pool:
        ended = pool.map(lambda name: run_ranks(setting, KINDS[name], made[name]), names)
        for name, said in zip(names, ended, strict=True):
            folder, found[name] = made[name], None
            if folder is not None and said:
                wrong.append(f"{name}: {said}")
            elif folder is not None:
                found[name] = attempted(lambda name=name, folder=folder: error_of(setting, name, folder), name, wrong)
            print(name, shown(found[name]), said, flush=True)
    wrong += [f"{name}: {error:.1e}" for name, error in found.items() if error is not None and not error <= BOUND]
    rows = [(name, KINDS[name].model, str(KINDS[name].ranks), shown(error)) for name, error in found.items()]
    told = (
        f"A plan of each kind, three steps in float64, beside the module in eager mode on the CPU: the largest "
        f"difference of a parameter, as a share of its tensor's largest. Bound: {BOUND:g}."
    )
    return Result("Correctness", told, ("plan", "model", "ranks", "difference"), tuple(rows), tuple(wrong))


def shown(error: float | None) -> str:
    return f"{error:.1e}" if error is not None else "failed"


def prepare(setting: Setting) -> None:
    for name in FEW if setting.small else KINDS:
        exported(setting, name)


def started(setting: Setting, name: str) -> Path:
    """The plan's folder, with the module's values beside it."""
    folder = exported(setting, name)
    torch.save(setting.module(KINDS[name].model, SMALL).double().state_dict(), folder / WEIGHTS)
    return folder


def exported(setting: Setting, name: str) -> Path:
    """The plan's folder; it is made where it isn't there yet."""
    case, folder = KINDS[name], setting.folder / "kinds" / name.replace(" ", "-").replace(",", "")
    if folder.exists():
        return folder
    plan = parallelize_alone(
        setting.module(case.model, SMALL), setting.cluster(case.ranks), dict(setting.batch(SMALL)), training=TRAINING,
        parallelism=Parallelism(**case.pinned),  # type: ignore[arg-type]
    )  # fmt: skip
    return plan.export(folder)


def run_ranks(setting: Setting, case: Kind, folder: Path | None) -> str:
    """Trains on the device; how it failed in its last line, "" where it didn't."""
    if folder is None:
        return "no plan"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks),
        "-m", WORKER, setting.device, str(folder), str(folder / WEIGHTS), str(STEPS),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"didn't end within {LIMIT_S:g} s"
    print(f"{folder.name}, exit status {done.returncode}: {done.stderr[-30000:]}", file=sys.stderr)
    return last_error(done.stderr) if done.returncode else ""


def error_of(setting: Setting, name: str, folder: Path) -> float:
    module = setting.module(KINDS[name].model, SMALL).double()
    return largest_difference(torch.load(folder / WEIGHTS), trained(setting, module))


def trained(setting: Setting, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The module's parameters after the steps, on the CPU as ``plan.verify`` has it: all in float64, casts left out."""
    return dict(train_eagerly(module, None, dict(setting.batch(SMALL)), TRAINING, STEPS).parameters)


def largest_difference(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    def of(name: str) -> float:
        difference = (found[name].cpu() - wanted[name]).abs().max()
        return float(difference / wanted[name].abs().max().clamp(min=1e-300))

    return max(of(name) for name in wanted if wanted[name].is_floating_point() and name in found)


