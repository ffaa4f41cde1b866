"""What test_torchrun.py starts under torchrun: each exported folder given takes a step, as a user's script would.

    torchrun --nproc-per-node 4 tests/support/torchrun_script.py BATCH WEIGHTS RESULTS FOLDER [FOLDER ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file

import autoplan


def main(batch_file: str, weights: str, results: str, folders: list[str]) -> None:
    batch = load_file(batch_file)
    for folder in folders:
        program = autoplan.load(folder).program()
        program.load_weights(weights)
        loss = program.step(batch)
        gradients = program.full_grads()
        program.optimizer.step()
        program.optimizer.zero_grad()
        state = program.full_state_dict()
        if dist.get_rank() == 0:
            found = {"loss": loss.cpu(), "gradients": gradients, "state": state}
            torch.save(found, Path(results) / f"{Path(folder).name}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
