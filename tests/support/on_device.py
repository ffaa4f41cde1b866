"""What test_device.py starts twice, on the fake accelerator and on the CPU: each exported folder trains on two ranks.

    python -m tests.support.on_device RANKS BATCH RESULTS FOLDER [FOLDER ...]

torch takes up the fake accelerator where PYTHONPATH has its folder (``tests.fixtures.npu.build``): the ranks' code says
nothing of it. They are forks of this process.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import autoplan
from autoplan.runtime.inference.inference_program import InferenceProgram
from autoplan.runtime.program import Program

STEPS = 3


def launch(ranks: int, *given: str) -> None:
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=ranks, start_method="fork", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", run_id="device", max_restarts=0,
    )  # fmt: skip
    elastic_launch(config, main)(*given)


def main(batch_file: str, results: str, *folders: str) -> None:
    torch.set_num_threads(1)
    torch.backends.cuda.enable_flash_sdp(False)  # attention in products, as a device without kernels for it runs it
    batch = load_file(batch_file)
    for folder in folders:
        gc.collect()  # else memory of the program before counts
        place = Path(results) / Path(folder).name
        found = taken(autoplan.load(folder), batch, place)
        if os.environ["RANK"] == "0":
            torch.save(found, f"{place}.pt")


def taken(plan: autoplan.Plan, batch: dict[str, torch.Tensor], place: Path) -> dict[str, Any]:
    """What a plan's program does, on this rank: values on the CPU."""
    with plan.program() as program:
        program.init_weights(seed=0)
        if isinstance(program, InferenceProgram):
            return {"device": str(program.device), "output": program({"input_ids": batch["input_ids"]}).cpu()}
        return trained(plan, program, batch, place)


def trained(plan: autoplan.Plan, program: Program, batch: dict[str, torch.Tensor], place: Path) -> dict[str, Any]:
    losses, own = [], torch.Generator(program.device).manual_seed(3)
    for step in range(STEPS):
        losses.append(program.step(batch).item())
        program.optimizer.step()
        if step == 0:
            torch.manual_seed(7)  # what a script draws itself, whose state the checkpoint holds
            program.save_checkpoint(place, asynchronous=True)
            drawn = torch.randn(4, device=program.device).cpu()
    evaluated = program.evaluate(batch).item()
    state = dict(program.full_state_dict())
    program.load_checkpoint(place)
    again = torch.randn(4, device=program.device).cpu()
    repeated = program.step(batch).item()
    gradients = program.full_grads()
    program.optimizer.step()  # from the state that was read
    stepped = program.step(batch).item()
    program.optimizer.zero_grad()
    held = torch.accelerator.memory_allocated() if program.device.type != "cpu" else 0
    measured = plan.measure(program, batch, steps=1)
    return {
        "device": str(program.device), "backend": dist.get_backend_config(), "losses": losses, "evaluated": evaluated,
        "state": state, "drawn": (drawn, again), "repeated": repeated, "gradients": gradients,
        "stepped": stepped, "held": [held],
        "peaks": [peak.measured_bytes for peak in measured.peaks], "name": measured.device,
        "own": torch.rand(2, generator=own, device=program.device).cpu(),
    }  # fmt: skip


if __name__ == "__main__":
    if torch.accelerator.is_available():
        told = autoplan.load(sys.argv[4]).rehearse()  # in processes of its own
        print(f"rehearsed: {'ok' if told.passed else told}", file=sys.stderr)
    launch(int(sys.argv[1]), *sys.argv[2:])
