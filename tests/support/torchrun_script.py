"""What test_torchrun.py starts under torchrun: each exported folder given takes a step, as a user's script would.

    torchrun --nproc-per-node 4 tests/support/torchrun_script.py BATCH WEIGHTS RESULTS FOLDER [FOLDER ...]

``launch_forks`` is torchrun's own agent and rendezvous, whose ranks are forks: a new interpreter imports for seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import autoplan


def launch_forks(processes: int, *given: str) -> None:
    """``main`` on as many ranks of this machine. ChildFailedError where one fails."""
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, start_method="fork", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", run_id="forks", max_restarts=0,
    )  # fmt: skip
    elastic_launch(config, main)(*given)


def main(batch_file: str, weights: str, results: str, *folders: str) -> None:
    torch.set_num_threads(1)
    batch = load_file(batch_file)
    for folder in folders:
        program = autoplan.load(folder).program()
        program.load_weights(weights)
        loss = program.step(batch)
        gradients = program.full_grads()
        program.optimizer.step()
        program.optimizer.zero_grad()
        state = dict(program.full_state_dict())
        if dist.get_rank() == 0:
            found = {"loss": loss.cpu(), "gradients": gradients, "state": state}
            torch.save(found, Path(results) / f"{Path(folder).name}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
