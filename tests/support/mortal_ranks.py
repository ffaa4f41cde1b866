"""Ranks in processes of their own, whose group no pool ends when one of them dies."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autoplan.verify.local_ranks import can_fork


def in_processes(
    folder: Path, world: int, job: Callable[..., Any], *given: object, **further: object
) -> dict[int, Any]:
    """What those who came to the end found, by rank, of ``job(rank, world, ...)``; <rank>.log has what each told."""
    store = f"{tempfile.mkdtemp(dir=folder)}/store"
    context = get_context("fork" if can_fork() else "spawn")
    told = (world, str(folder), store, job, given, further)
    ranks = [context.Process(target=alone, args=(rank, *told)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        process.kill()
    files = {rank: folder / f"{rank}.pt" for rank in range(world)}
    return {rank: torch.load(file, weights_only=False) for rank, file in files.items() if file.exists()}


def alone(
    rank: int, world: int, folder: str, store: str, job: Callable[..., Any], given: tuple[object, ...],
    further: dict[str, object],
) -> None:  # fmt: skip
    """One of them."""
    shared = dist.FileStore(store, world)
    dist.init_process_group("gloo", store=shared, rank=rank, world_size=world, timeout=timedelta(seconds=20))
    with open(f"{folder}/{rank}.log", "w") as told, redirect_stderr(told):
        try:
            torch.save(job(rank, world, *given, **further), f"{folder}/{rank}.part")
        except Exception as error:
            told.write(f"{type(error).__name__}: {error}")
        else:
            os.replace(f"{folder}/{rank}.part", f"{folder}/{rank}.pt")
    os._exit(0)  # the groups' ends wait for whoever is gone
