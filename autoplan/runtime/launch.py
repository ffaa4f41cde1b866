"""Starting and ending the processes' world, and how a script meets a user's mistake."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autoplan.errors import AutoplanError, LaunchError
from autoplan.mesh import Mesh

TIMEOUT = timedelta(minutes=30)  # a rank may compile or read weights for long while the others wait
PATIENCE_S = 60  # for the first process to import torch and tell a mistake that all make


@dataclass(frozen=True)
class World:
    """This process among the others.

    owned  whether the process group was started here, and is to be ended here
    """

    device: torch.device
    device_mesh: DeviceMesh
    owned: bool

    def close(self) -> None:
        if self.owned and dist.is_initialized():
            dist.destroy_process_group()


def join(mesh: Mesh) -> World:
    """Joins the plan's processes: those that torchrun started, or the process group that already stands.

    LaunchError where their number isn't the mesh's number of devices.
    """
    owned = not dist.is_initialized()
    if owned:
        check_count(mesh.devices, int(os.environ.get("WORLD_SIZE", "1")), torchrun="WORLD_SIZE" in os.environ)
        device = start_processes()
    else:
        check_count(mesh.devices, dist.get_world_size(), torchrun="WORLD_SIZE" in os.environ)
        device = device_of(str(dist.get_backend()))
    names, sizes = zip(*((a.name, a.size) for a in mesh.device_axes), strict=True)
    return World(device, dist.init_device_mesh(device.type, sizes, mesh_dim_names=names), owned)


def check_count(wanted: int, found: int, torchrun: bool) -> None:
    if wanted == found:
        return
    who = f"torchrun started {found}" if torchrun else f"there {'is' if found == 1 else 'are'} {found}"
    raise LaunchError(
        f"{found} process{'es' if found != 1 else ''}",
        f"the plan needs {wanted} process{'es' if wanted != 1 else ''}, {who}",
        f"start it with torchrun --nproc-per-node {wanted} {script()} (or --nnodes N --nproc-per-node {wanted}/N)",
    )


def script() -> str:
    return sys.argv[0] if sys.argv and sys.argv[0].endswith(".py") else "train.py"


def start_processes() -> torch.device:
    """The default process group, gloo for tensors on the CPU and the accelerator's own library for those on it.

    Keys go under a prefix of torchrun's attempt: after a restart gloo would otherwise find those of the processes
    that died, and fail to connect.
    """
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    if device.type != "cpu":
        device = torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))
        torch.accelerator.set_device_index(device.index)
    backend = dist.get_default_backend_for_device(device.type)
    if device.type != "cpu":
        backend = f"cpu:{dist.get_default_backend_for_device('cpu')},{device.type}:{backend}"
    if "WORLD_SIZE" in os.environ:
        store, rank, size = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    else:
        store, rank, size = dist.HashStore(), 0, 1
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    return device


def device_of(backend: str) -> torch.device:
    """Where tensors live in a process group that somebody else started."""
    device = torch.accelerator.current_accelerator()
    if backend == "gloo" or device is None:
        return torch.device("cpu")
    return torch.device(device.type, torch.accelerator.current_device_index())


def run_script(main: Callable[[], None]) -> None:
    """Runs a script's main; a user's mistake ends it with its text, no traceback and exit status 2.

    Mistakes that every process makes are told by the first one only. Under torchrun the others then wait for it to
    end: torchrun kills all processes as soon as one has failed, the first one too, before it has told.
    """
    try:
        main()
    except AutoplanError as error:
        rank = os.environ.get("RANK", "0")
        if rank == "0":
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        elif not isinstance(error, LaunchError):
            print(f"[rank {rank}] {type(error).__name__}: {error}", file=sys.stderr)
        elif "TORCHELASTIC_RUN_ID" in os.environ:
            time.sleep(PATIENCE_S)  # ended by torchrun's signal as soon as the first process has failed
        sys.exit(2)
