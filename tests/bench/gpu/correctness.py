"""One plan of each kind on the device against the module on the CPU, in float64; several ranks share the one device.

NCCL takes no two ranks of one device, so they meet by gloo, which stages the device's tensors through the host.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from autoplan import Parallelism, Training
from autoplan.verify.reference import train_eagerly
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import SMALL, Setting
from tests.support.planning import parallelize_alone

WORKER, LIMIT_S, STEPS = "tests.bench.gpu.worker", 100.0, 3
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
    "ddp": kind("Llama", 2, dp=2, zero=0),
    "zero1": kind("GPT-2, dropout", 2, dp=2, zero=1),
    "zero2": kind("Llama", 2, dp=2, zero=2),
    "zero3": kind("Llama", 2, dp=2, zero=3),
    "tensor": kind("Llama", 2, tp=2, sequence_parallel=False),
    "tensor, sequence": kind("GPT-2, dropout", 2, tp=2, sequence_parallel=True),
    "experts over ranks": kind("Mixtral", 2, dp=2, ep=2),
    "1f1b": kind("Llama", 2, pp=2, pipeline_schedule="1f1b", micro_batch=1),
    "interleaved": kind("Llama", 2, pp=2, pipeline_schedule="interleaved", virtual_stages=2, micro_batch=1),
    "data x tensor": kind("Llama", 4, dp=2, tp=2, zero=0, sequence_parallel=False),
    "zero3 x tensor": kind("GPT-2, dropout", 4, dp=2, tp=2, zero=3, sequence_parallel=False),
    "pipeline x data": kind("Llama", 4, dp=2, pp=2, zero=0, pipeline_schedule="1f1b", micro_batch=1),
}
FEW = ("one rank", "ddp")


def run(setting: Setting) -> Result:
    found = {name: error_of(setting, name) for name in (FEW if setting.small else KINDS)}
    wrong = [f"{name}: {found[name]}" for name in found if not isinstance(found[name], float) or found[name] > BOUND]
    rows = [(name, KINDS[name].model, str(KINDS[name].ranks), shown(error)) for name, error in found.items()]
    told = (
        f"A plan of each kind, three steps in float64, beside the module in eager mode on the CPU: the largest "
        f"difference of a parameter, as a share of its tensor's largest. Bound: {BOUND:g}."
    )
    return Result("Correctness", told, ("plan", "model", "ranks", "difference"), tuple(rows), tuple(wrong))


def shown(error: float | str) -> str:
    return f"{error:.1e}" if isinstance(error, float) else "failed"


def error_of(setting: Setting, name: str) -> float | str:
    """The difference, or how it failed in its last line."""
    case, folder = KINDS[name], setting.folder / name.replace(" ", "-").replace(",", "")
    plan = parallelize_alone(
        setting.module(case.model, SMALL), setting.cluster(case.ranks), dict(setting.batch(SMALL)), training=TRAINING,
        parallelism=Parallelism(**case.pinned),  # type: ignore[arg-type]
    )  # fmt: skip
    exported = plan.export(folder)
    weights = folder / "weights.pt"
    module = setting.module(case.model, SMALL).double()
    torch.save(module.state_dict(), weights)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks),
        "-m", WORKER, setting.device, str(exported), str(weights), str(STEPS),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"didn't end within {LIMIT_S:g} s"
    if done.returncode:
        return last_error(done.stderr)
    return largest_difference(torch.load(weights), trained(setting, module))


def last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "Error" in line]
    own = [line for line in lines if "ChildFailedError" not in line]
    return (own or lines or ["no word"])[0][-200:]


def trained(setting: Setting, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The module's parameters after the steps, on the CPU as ``plan.verify`` has it: all in float64, casts left out."""
    return dict(train_eagerly(module, None, dict(setting.batch(SMALL)), TRAINING, STEPS).parameters)


def largest_difference(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    def of(name: str) -> float:
        difference = (found[name].cpu() - wanted[name]).abs().max()
        return float(difference / wanted[name].abs().max().clamp(min=1e-300))

    return max(of(name) for name in wanted if wanted[name].is_floating_point() and name in found)


