"""One rank of a plan on a device that ranks share, started by torchrun: ``worker DEVICE FOLDER WEIGHTS STEPS``.

Trains some steps from the weights in a file and writes back what they are then.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import autoplan
from tests.bench.gpu import staged
from tests.bench.gpu.setting import SMALL, Setting


def main(device: str, folder: str, weights: str, steps: int) -> None:
    torch.set_num_threads(1)
    if device != "cpu":
        torch.accelerator.set_device_index(0)
    staged.join(device)
    batch = dict(Setting(device, True, Path(folder)).batch(SMALL))
    with autoplan.load(folder).program() as program:
        assert program.device.type == device, program.device
        program.load_weights(torch.load(weights))
        for _ in range(steps):
            program.optimizer.zero_grad()
            program.step(batch)
            program.optimizer.step()
        found = dict(program.full_state_dict())
        if dist.get_rank() == 0:
            torch.save(found, weights)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
