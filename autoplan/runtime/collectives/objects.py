"""What ranks tell one another as Python objects. What goes wrong on one is raised on all: none is left waiting for one
that has given up."""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from autoplan.errors import AutoplanError

T = TypeVar("T")


def from_all(mine: T, group: ProcessGroup | None = None) -> list[T]:
    """What each rank gives, in their order; every rank of the group calls it."""
    found = [mine] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group=group)
    return found


def from_first(mine: T, group: ProcessGroup | None = None) -> T:
    """What the first rank gives."""
    found = [mine]
    dist.broadcast_object_list(found, src=0, group=group)
    return found[0]


def together(act: Callable[[], T]) -> T:
    """What ``act`` returns on this rank, once it has ended on all of them; every rank calls it.

    Where it raised an AutoplanError on some, every rank raises its own, or else the first of theirs. The operating
    system's error becomes one; another exception is raised as it is where it arose, and told as one on the others.
    """
    result: T | None = None
    own: Exception | None = None
    try:
        result = act()
    except OSError as error:
        own = AutoplanError(error.filename or f"rank {dist.get_rank()}", str(error), "see that it is there, and yours")
    except Exception as error:
        own = error
    if not on_any(own is not None):
        return result  # type: ignore[return-value]
    errors = from_all(own if own is None or isinstance(own, AutoplanError) else unforeseen(own))
    raise own or next(error for error in errors if error is not None)


def on_any(here: bool) -> bool:
    """Whether it is so on any rank: one number goes round, which costs a tenth of what objects do."""
    found = torch.tensor([here], dtype=torch.int32, device=meeting_place())
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found.item())


def meeting_place(device: torch.device | None = None) -> torch.device:
    """Where all ranks' numbers are reduced: with the host where the default process group reduces its tensors, too.

    device  of this rank; None: the process' current one
    """
    if "cpu:" in dist.get_backend_config():
        return torch.device("cpu")
    if device is not None:
        return device
    current = torch.accelerator.current_accelerator()
    assert current is not None  # without any, the group takes the host's tensors
    return torch.device(current.type, torch.accelerator.current_device_index())


def unforeseen(error: Exception) -> AutoplanError:
    return AutoplanError(f"rank {dist.get_rank()}", f"{type(error).__name__}: {error}", "see what that rank says")
