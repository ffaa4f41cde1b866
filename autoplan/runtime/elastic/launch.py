"""Starting and ending the processes' world, and how a script meets a user's mistake."""

import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from autoplan.errors import AutoplanError, InputsError, LaunchError
from autoplan.ir.mesh import Mesh
from autoplan.runtime.elastic.rendezvous import RankInfo, connect, wait_for_ranks
from autoplan.runtime.elastic.stderr_messages import tell_once, wait_for_words
from autoplan.runtime.elastic.watchdog import Watchdog

TIMEOUT_S = 1800.0  # a rank may compile or read weights for long while the others wait
START_S = 600.0     # between the first process and the last, at most
MARGIN_S = 60.0     # by which the engines' own timeout, which names nobody, comes after the watch's
VISIBLE = {
    "cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK", "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "hpu": "HABANA_VISIBLE_MODULES", "mlu": "MLU_VISIBLE_DEVICES", "musa": "MUSA_VISIBLE_DEVICES",
}  # fmt: skip
LOST = re.compile(r"Connection (closed|reset) by peer|Broken pipe|Socket closed|remote process exited")


@dataclass(frozen=True)
class World:
    """This process among the others.

    owned   whether the process group was started here, and is to be ended here
    watch   where this rank notes what it does; the others' process group is not watched
    others  the process groups that stood before this program made its own
    groups  this program's own, once it is made
    """

    device: torch.device
    device_mesh: DeviceMesh
    owned: bool
    watch: Watchdog
    others: frozenset[ProcessGroup] = frozenset()
    groups: list[ProcessGroup] = field(default_factory=list)

    def made(self) -> None:
        """The program is complete: the groups that came with it are its own, to be ended with it."""
        self.groups.extend(standing() - self.others)

    def close(self, meshes: Iterable[DeviceMesh] = ()) -> None:
        """Ends the process group that was started here, and in another's the groups that the program made.

        meshes  the program's others, beside ``device_mesh``
        """
        if self.owned and dist.is_initialized():
            dist.destroy_process_group()
        elif dist.is_initialized():
            end_groups(self.groups, (self.device_mesh, *meshes))
        self.groups.clear()
        self.watch.stop()


def standing() -> frozenset[ProcessGroup]:
    """The process groups that this process is in. torch lists them nowhere else."""
    return frozenset(dist.distributed_c10d._world.pg_map)


def end_groups(groups: Iterable[ProcessGroup], meshes: Iterable[DeviceMesh]) -> None:
    """Ends groups: each has threads and sockets of its own until nothing refers to it.

    Their meshes live on in torch's caches, and would keep them.
    """
    known = standing()
    ended = {group.group_name for group in groups}
    for group in groups:
        if group in known:
            dist.destroy_process_group(group)
    for mesh in meshes:
        kept = getattr(mesh._get_root_mesh(), "_pg_registry", {})
        for name in kept.keys() & ended:
            del kept[name]


def join(mesh: Mesh, timeout_s: float = TIMEOUT_S, on_processors: bool = False) -> World:
    """Joins the plan's processes: those that torchrun started, or the process group that already stands.

    timeout_s      longest that a rank may be in one phase of its work before it is told to hang, and all end
    on_processors  on the CPU, whatever accelerator is here

    LaunchError where their number isn't the mesh's number of devices, a node has more of them than accelerators, or a
    group that stands can't send from where the plan runs; LostRankError where one doesn't come.
    """
    owned, others = not dist.is_initialized(), frozenset[ProcessGroup]()
    if owned:
        check_count(mesh.devices, int(os.environ.get("WORLD_SIZE", "1")), torchrun="WORLD_SIZE" in os.environ)
        device, watch = start(timeout_s, on_processors)
    else:
        check_count(mesh.devices, dist.get_world_size(), torchrun="WORLD_SIZE" in os.environ)
        device = device_of(str(dist.get_backend()), on_processors)
        watch = Watchdog(None, dist.get_rank(), mesh.devices, timeout_s)
        others = standing()
    names, sizes = zip(*((a.name, a.size) for a in mesh.device_axes), strict=True)
    return World(device, dist.init_device_mesh(device.type, sizes, mesh_dim_names=names), owned, watch, others)


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


def own_device(on_processors: bool) -> torch.device:
    """This rank's own accelerator; the CPU where there is none, or where the plan is one for processors."""
    found = None if on_processors else torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return torch.device("cpu")
    if found.type == "mps":
        cause = "Apple's GPU is one a machine, and torch has no collective library for its tensors"
        raise LaunchError("an accelerator of mps", cause, "plan for processes of the CPU, as '1x4 cpu'")
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.accelerator.device_count()
    number = 0 if count == 1 and shows_one_each() else number
    if number >= count:
        remedy = f"start at most {count} on a machine"
        if (variable := variable_of(found.type)) is not None:
            remedy += f", or have {variable} show more"
        if found.type == "cuda":
            remedy += f"; {variable}= (empty) runs on its CPU"
        raise LaunchError(
            f"local rank {number}",
            f"each needs a device of its own, and this machine shows {count} of {found.type}",
            remedy,
        )
    torch.accelerator.set_device_index(number)
    return torch.device(found.type, number)


def variable_of(device_type: str) -> str | None:
    """The environment's variable that says which devices of a type a process sees, as far as known."""
    if device_type == "cuda" and torch.version.hip:
        return "HIP_VISIBLE_DEVICES"
    return VISIBLE.get(device_type)


def shows_one_each() -> bool:
    """Whether the launcher shows each process one device, its own: Slurm, asked for one accelerator a task, where this
    process is a task by itself. Processes that torchrun, or a script, starts inside of a task would share its one."""
    asked = os.environ.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]  # "1", or "a100:1"
    is_task = os.environ.get("SLURM_LOCALID") == os.environ.get("LOCAL_RANK", "0")
    return asked == "1" and is_task and "TORCHELASTIC_RUN_ID" not in os.environ


def start(timeout_s: float, on_processors: bool) -> tuple[torch.device, Watchdog]:
    """The default process group, gloo for tensors on the CPU and the accelerator's own library for those on it; and
    the watch over its ranks, which sees already whether one hangs while they connect."""
    device = own_device(on_processors)
    backend = dist.get_default_backend_for_device(device.type)
    if device.type != "cpu":
        backend = f"cpu:{dist.get_default_backend_for_device('cpu')},{device.type}:{backend}"
    longest = timedelta(seconds=timeout_s + MARGIN_S)
    if "WORLD_SIZE" not in os.environ:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=longest)
        return device, Watchdog(None, 0, 1, timeout_s)
    info, start_s = RankInfo.of_environment(), min(timeout_s, START_S)
    store = connect(info, start_s)
    run_id = wait_for_ranks(store, info, start_s)
    store.set_timeout(longest)
    watch = watched(info, run_id, timeout_s)
    own = dist.PrefixStore(f"{run_id}/group", store)
    dist.init_process_group(backend, store=own, rank=info.rank, world_size=info.size, timeout=longest)
    return device, watch


def watched(info: RankInfo, run_id: str, timeout_s: float) -> Watchdog:
    """A watch over all ranks, by a connection of its own."""
    store = connect(info, MARGIN_S, host=False)
    return Watchdog(dist.PrefixStore(f"{run_id}/watch", store), info.rank, info.size, timeout_s)


def device_of(backend: str, on_processors: bool) -> torch.device:
    """Where tensors live in a process group that somebody else started. LaunchError where that takes none of the CPU's
    and the plan is one for processors."""
    if on_processors and "cpu:" not in dist.get_backend_config():
        raise LaunchError(
            f"a process group of {backend}",
            "the plan is one for CPUs, whose tensors this backend doesn't send",
            'call init_process_group() without a backend, or with "cpu:gloo,…", or plan for the accelerators',
        )
    device = torch.accelerator.current_accelerator(check_available=True)
    if backend == "gloo" or on_processors or device is None:
        return torch.device("cpu")
    return torch.device(device.type, torch.accelerator.current_device_index())


def run_script(main: Callable[[], None]) -> None:
    """Runs a script's main; a user's mistake ends it with its text, no traceback and exit status 2.

    A mistake that several processes make is told by one of them (``messages.tell_once``). Where another rank has gone,
    one line says so: what ended it that rank tells, or torchrun.
    """
    try:
        main()
    except Exception as error:
        if lost_connection(error):
            wait_for_words()
            print(f"[rank {os.environ.get('RANK', '0')}] another rank has ended", file=sys.stderr, flush=True)
            os._exit(1)  # at once: what still runs in the background may wait for it, and others for this process
        tell_once(mistake_of(error))
        sys.exit(2)


def mistake_of(error: Exception) -> AutoplanError:
    """The error as a user's mistake; raises it where it is none. A file that can't be had is one."""
    if isinstance(error, AutoplanError):
        return error
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return InputsError(error.filename, error.strerror, "see that it is there, and yours")
    raise error


def lost_connection(error: BaseException | None) -> bool:
    """Whether an exception is, or came of, a connection that another rank's end has closed."""
    while error is not None:
        if isinstance(error, RuntimeError) and LOST.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
