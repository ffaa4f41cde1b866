"""Seconds of a checkpoint's save beside ``dcp.save`` of the same tensors, in turns on the same ranks and disk.

    python -m tests.bench.checkpoint [--hidden 1024] [--rounds 5] [--folder DIR]

Ours looks whether values are finite, takes a checksum of every byte, and moves what is whole to its place; both bring
their files to the disk. An asynchronous save is timed until it returns, beside a plain copy of the tensors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from transformers import LlamaConfig, LlamaForCausalLM

import autoplan
from autoplan.runtime.checkpoint.keys import model_state, optimizer_state, spoken_for
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.support.planning import parallelize_alone

NAMES = ("saved", "dcps", "returned", "dcps_returned", "copied", "worked", "dcps_worked")
RANKS, LAYERS, VOCABULARY, LENGTH, LIMIT_S = 2, 4, 4096, 8, 900.0


@dataclass(frozen=True)
class Times:
    """Seconds of one rank: whole saves, dcp's, asynchronous saves until they return, dcp's, and a copy's.

    worked, dcps_worked  of the processor, that the calling thread had until an asynchronous save returned
    """

    saved: tuple[float, ...]
    dcps: tuple[float, ...]
    returned: tuple[float, ...]
    dcps_returned: tuple[float, ...]
    copied: tuple[float, ...]
    worked: tuple[float, ...]
    dcps_worked: tuple[float, ...]
    size_bytes: int

    @property
    def ratio(self) -> float:
        return statistics.median(a / b for a, b in zip(self.saved, self.dcps, strict=True))

    @property
    def ratio_returned(self) -> float:
        return statistics.median(a / b for a, b in zip(self.returned, self.dcps_returned, strict=True))

    @property
    def ratio_worked(self) -> float:
        return statistics.median(a / b for a, b in zip(self.worked, self.dcps_worked, strict=True))


def measured(hidden: int, rounds: int, folder: Path) -> Times:
    """The first rank's."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=LAYERS,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    batch = {name: torch.zeros(RANKS, LENGTH, dtype=torch.int64) for name in ("input_ids", "labels")}
    plan = parallelize_alone(
        model, f"1x{RANKS} cpu", batch, parallelism=autoplan.Parallelism(dp=1, tp=RANKS, pp=1, micro_batch=RANKS)
    )
    with RankPool(RANKS, timeout_s=LIMIT_S) as pool:
        return pool.run(times, str(plan.export(folder / "out")), str(folder), rounds)[0]


def times(rank: int, ranks: int, exported: str, where: str, rounds: int) -> Times:
    folder = Path(where)
    with autoplan.load(exported).program() as program:
        program.init_weights()
        program.step({name: torch.ones(RANKS, LENGTH, dtype=torch.int64) for name in ("input_ids", "labels")})
        program.optimizer.step()
        tensors = tensors_of(program)
        done: dict[str, list[float]] = {name: [] for name in NAMES}
        for j in range(1 + rounds):
            taken = one_round(program, tensors, folder / f"round-{j}", j % 2 == 0)
            if rank == 0:
                shutil.rmtree(folder / f"round-{j}")
            for name, seconds in taken.items() if j else ():  # the first round makes process groups and folders
                done[name].append(seconds)
    sizes = (x.numel() * x.element_size() for x in copies(tensors))
    return Times(**{name: tuple(found) for name, found in done.items()}, size_bytes=sum(sizes))


def tensors_of(program: Program) -> dict[str, Tensor]:
    """What a checkpoint of ours holds."""
    snapshot = program._snapshot()
    return model_state(snapshot, spoken_for(snapshot)) | optimizer_state(snapshot)


def copies(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [local(x.detach()).clone() for x in tensors.values()]


def local(x: Tensor) -> Tensor:
    return x.to_local() if hasattr(x, "to_local") else x


class Cloning(BlockingAsyncStager):
    """Stages by one copy of each tensor. Torch's own stagers break off: one knows storages by an identity that may be
    another's by then, the other copies DTensors of the host deep, whose storages Python may have let go of."""

    def stage(self, state_dict: dict) -> dict:
        return {name: value.detach().clone() for name, value in state_dict.items()}


def one_round(program: Program, tensors: dict[str, Tensor], folder: Path, turned: bool) -> dict[str, float]:
    """turned: dcp's come first; what was written before may still be on its way to the disk."""
    futures: list = []
    acts: dict[str, Callable[[], object]] = {
        "saved": lambda: program.save_checkpoint(folder / "ours"),
        "dcps": lambda: dcp.save(tensors, checkpoint_id=folder / "dcp"),
        "returned": lambda: program.save_checkpoint(folder / "ours-later", asynchronous=True),
        "dcps_returned": lambda: futures.append(
            dcp.async_save(
                tensors,
                checkpoint_id=folder / "dcp-later",
                process_group=program.saver.peers(),
                async_stager=Cloning(),
            )
        ),
        "copied": lambda: copies(tensors),
    }
    order = ("dcps", "saved", "dcps_returned", "returned", "copied") if turned else tuple(acts)
    found, worked = {}, {"returned": "worked", "dcps_returned": "dcps_worked"}
    for name in order:
        os.sync()
        found[name], found[worked.get(name, "")] = seconds(acts[name])
        program.saver.wait()
        while futures:
            futures.pop().result()
    found.pop("")
    return found


def seconds(act: Callable[[], object]) -> tuple[float, float]:
    """On the clock, and of the processor in this thread."""
    dist.barrier()
    start, thread = time.monotonic(), time.thread_time()
    act()
    return time.monotonic() - start, time.thread_time() - thread


def text(t: Times) -> str:
    def middle(found: tuple[float, ...]) -> str:
        return f"{statistics.median(found):.2f} s"

    return (
        f"{t.size_bytes / 1e6:.0f} MB a rank, {RANKS} ranks\n"
        f"save             {middle(t.saved)}, dcp.save {middle(t.dcps)}: ratio {t.ratio:.2f}\n"
        f"asynchronous, until it returns  {middle(t.returned)}, dcp.async_save {middle(t.dcps_returned)}: "
        f"ratio {t.ratio_returned:.2f}; a copy {middle(t.copied)}\n"
        f"  of the processor, in the calling thread  {middle(t.worked)}, dcp.async_save {middle(t.dcps_worked)}: "
        f"ratio {t.ratio_worked:.2f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.checkpoint")
    parser.add_argument("--hidden", type=int, default=1024, help="of the model: 1024 is 450 MB a rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write, on the disk that is measured")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        print(text(measured(given.hidden, given.rounds, Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
