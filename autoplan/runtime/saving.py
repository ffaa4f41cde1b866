"""One program's saves, one after another; one may run behind the training's back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.staging import AsyncStager

from autoplan.errors import CheckpointError
from autoplan.runtime.checkpoint_files import CheckpointState, CheckpointWriter, clear, staging


class HostCopies(AsyncStager):
    """Copies of this moment in the host's memory, which training doesn't touch.

    torch's own stagers leave a scalar DTensor uncopied, or copy storages whole by an identity that may be another's
    by then.
    """

    @property
    def should_synchronize_after_execute(self) -> bool:
        """No: the copies are made once ``stage`` returns."""
        return False

    def stage(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: value.detach().to("cpu", copy=True) for key, value in state_dict.items()}

    def synchronize_staging(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing is kept."""


class Saver:
    """Saves of one program. Every method is called on every rank.

    A process group of its own, on the CPU, so that a save in the background and training never share one.
    """

    def __init__(self) -> None:
        self.group: ProcessGroup | None = None
        self.running: tuple[Path, Future] | None = None

    def save(
        self, tensors: Mapping[str, Tensor], target: Path, state: CheckpointState, keep: int | None, asynchronous: bool
    ) -> None:
        """Writes a checkpoint, once the one before is written.

        tensors  this rank's, by key: copied to the host's memory before an asynchronous save returns
        CheckpointError, on every rank, where any couldn't write: now, or at the next call of an asynchronous one's.
        """
        self.wait()
        if self.group is None:
            self.group = dist.new_group(backend="gloo")
        writer = CheckpointWriter(target, state, keep)
        with told(target):
            if not asynchronous:
                dcp.save(dict(tensors), storage_writer=writer, process_group=self.group)
                return
            future = dcp.async_save(
                dict(tensors), storage_writer=writer, process_group=self.group, async_stager=HostCopies()
            )
            assert isinstance(future, Future)
            self.running = target, future

    def wait(self) -> None:
        """Until the save in the background has ended, if there is one; CheckpointError where it failed."""
        if self.running is None:
            return
        (target, future), self.running = self.running, None
        with told(target):
            future.result()


@contextmanager
def told(target: Path) -> Iterator[None]:
    """torch's error, which isn't an Exception, as a CheckpointError; what was written in vain is removed."""
    try:
        yield
    except CheckpointException as error:
        if dist.get_rank() == 0:
            clear(staging(target))
        remedy = "what was saved before is whole; see why, and save again"
        raise CheckpointError(target, failures(error), remedy) from error


def failures(error: CheckpointException) -> str:
    """What failed on which rank: "rank 2: OSError: [Errno 28] No space left on device"."""
    told = {rank: f"{type(cause).__name__}: {cause}" for rank, (cause, _) in sorted(error.failures.items())}
    rank, first = next(iter(told.items()))
    others = f" (and on ranks {[r for r in told if r != rank]})" if len(told) > 1 else ""
    return f"rank {rank}: {first}{others}"
