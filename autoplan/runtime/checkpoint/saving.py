"""One program's saves, one after another; one may run behind the training's back."""

import contextlib
import dataclasses
import errno
import mmap
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

from autoplan.errors import CheckpointError, DivergedError
from autoplan.runtime.checkpoint.folders import Lineage, begin, clear, lock_file, staging, tidy
from autoplan.runtime.checkpoint.lock import FolderLock
from autoplan.runtime.checkpoint.state_json import CheckpointState
from autoplan.runtime.checkpoint.store import CheckpointWriter
from autoplan.runtime.collectives.objects import from_all, from_first, together
from autoplan.runtime.elastic.rendezvous import ranks_text
from autoplan.runtime.parallel.sharded_parameter import local

LINE_BYTES = 64

ALIKE = {
    "folder": "the folder", "step": "the number of steps", "keep": "keep", "asynchronous": "asynchronous",
    "extra": "extra",
}  # fmt: skip
"""What every rank has to say alike of a save, and how an error has it."""


class Copied(AsyncStager):
    """For ``dcp.async_save``: what it is given are copies already.

    torch's own stagers leave a scalar DTensor uncopied, or copy storages whole by an identity that may be another's
    by then.
    """

    @property
    def should_synchronize_after_execute(self) -> bool:
        """No: nothing is under way."""
        return False

    def stage(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return state_dict

    def synchronize_staging(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing is kept."""


class HostCopies:
    """Copies of this moment in the host's memory, which training doesn't touch.

    A copy into fresh memory takes the system's time too, page by page. So the memory is kept for the next save,
    which needs it again: as torch keeps the pinned memory that an accelerator's tensors are copied into.
    """

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)

    def of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies by the same keys; what was copied before is overwritten."""
        host = {key: local(value.detach()) for key, value in tensors.items() if value.device.type == "cpu"}
        size = sum(map(room, host.values()))
        if self.memory.nbytes < size:
            self.memory = large_pages(size)
        # from an accelerator all at once, into pinned memory
        copies = {
            key: value.detach().to("cpu", non_blocking=True, copy=True)
            for key, value in tensors.items()
            if key not in host
        }
        start = 0
        for key, part in host.items():
            copy = self.memory[start : start + part.nbytes].view(part.dtype).view(part.shape).copy_(part)
            copies[key], start = like(tensors[key], copy), start + room(part)
        if len(host) < len(tensors):
            torch.accelerator.synchronize()
        return copies


def large_pages(size: int) -> Tensor:
    """Memory of the host's, as bytes, in pages as large as the system has them for who asks."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def room(part: Tensor) -> int:
    """The bytes that a copy takes up: whole cache lines."""
    return -(-part.nbytes // LINE_BYTES) * LINE_BYTES


def like(value: Tensor, copy: Tensor) -> Tensor:
    """The copy of a DTensor's part as the DTensor that it is part of."""
    if not isinstance(value, DTensor):
        return copy
    return DTensor.from_local(
        copy, value.device_mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride()
    )


@dataclass(frozen=True)
class Saving:
    """A save that is under way: its writer, and what comes of it."""

    writer: CheckpointWriter
    future: Future


class Saver:
    """Saves of one program. Every method is called on every rank.

    A process group of its own, on the CPU, so that a save in the background and training never share one.

    lineage  where this run comes from: its identity is drawn by the first rank, at the first save or load
    count    saves so far, those that failed included
    landed   the checkpoint that was saved or loaded last, but for one in the background
    copies   what the save in the background writes
    """

    def __init__(self) -> None:
        self.group: ProcessGroup | None = None
        self.running: Saving | None = None
        self.lineage: Lineage | None = None
        self.locks: dict[Path, FolderLock] = {}
        self.count = 0
        self.landed: Path | None = None
        self.copies = HostCopies()

    def peers(self) -> ProcessGroup:
        """The process group; the first call, on every rank, makes it."""
        if self.group is None:
            self.group = dist.new_group(backend="gloo")
        return self.group

    def known(self) -> Lineage:
        if self.lineage is None:
            drawn = from_first(uuid.uuid4().hex, self.peers())
            self.lineage = Lineage(run=drawn, root=drawn)
        return self.lineage

    @property
    def last(self) -> Path | None:
        """The checkpoint that was saved or loaded last. It waits for a save in the background: where that one comes to
        its place, the one before may be removed for it (``keep``), and where it fails there is no such folder."""
        if self.running is not None and self.running.future.exception() is None:
            return self.running.writer.target
        return self.landed

    def came_from(self, state: CheckpointState, folder: Path) -> None:
        """After a load: what is saved from here on goes back to that checkpoint."""
        root = state.root or self.known().root
        self.lineage, self.landed = Lineage(self.known().run, root, state.id, state.written_s), folder

    def agree(self, **said: object) -> None:
        """CheckpointError, on every rank, where the ranks don't say the same of a save."""
        everyone = from_all(said, self.peers())
        for name in said:
            values: dict[str, list[int]] = {}
            for rank, each in enumerate(everyone):
                values.setdefault(str(each[name]), []).append(rank)
            if len(values) > 1:
                told = "; ".join(f"{value} on {ranks_text(ranks)}" for value, ranks in values.items())
                raise CheckpointError(
                    str(everyone[0]["folder"]), f"ranks don't agree on {ALIKE[name]}: {told}"[:1000],
                    "give every rank the same: a checkpoint is one, in one folder that all ranks see",
                )  # fmt: skip

    def save(
        self, tensors: Mapping[str, Tensor], target: Path, state: CheckpointState, keep: int | None,
        asynchronous: bool, look: Callable[[], None],
    ) -> None:  # fmt: skip
        """Writes a checkpoint, once the one before is written.

        tensors  this rank's, by key; an asynchronous save's are copies
        look     raises where they aren't to be written
        CheckpointError, on every rank, where another run saves there, the folder holds something else, or any rank
        couldn't write, and what ``look`` raises: now, or at the next call of an asynchronous one's.
        """
        self.wait()
        lineage, self.count = self.known(), self.count + 1
        state = dataclasses.replace(
            state, id=f"{lineage.run}-{self.count}", run=lineage.run, root=lineage.root, parent=lineage.parent,
            written_s=max(time.time(), lineage.parent_s + 1e-3),
        )  # fmt: skip
        together(lambda: self.prepare(target, lineage))
        writer = CheckpointWriter(staging(target, lineage.run), target, state, lineage, keep, look)
        with told(writer):
            if not asynchronous:
                dcp.save(dict(tensors), storage_writer=writer, process_group=self.peers())
            else:
                future = dcp.async_save(
                    dict(tensors), storage_writer=writer, process_group=self.peers(), async_stager=Copied()
                )
                assert isinstance(future, Future)
                self.running = Saving(writer, future)
                return
        self.saved(writer)

    def prepare(self, target: Path, lineage: Lineage) -> None:
        """On the first rank: takes the folder's lock, and makes the folder to write into."""
        if dist.get_rank() != 0:
            return
        try:
            made(target.parent)
            path = lock_file(target)
            lock = self.locks.setdefault(path, FolderLock(path, lineage.run))
            lock.acquire()
            if lock.works:
                tidy(target)
            begin(target, lineage, dist.get_world_size())
        except OSError as error:
            raise CheckpointError(target, f"rank 0: {type(error).__name__}: {error}", REMEDY) from error

    def saved(self, writer: CheckpointWriter) -> None:
        """After a save went through."""
        state = writer.state
        self.lineage, self.landed = Lineage(state.run, state.root, state.id, state.written_s), writer.target

    def wait(self) -> None:
        """Until the save in the background has ended, if there is one; CheckpointError where it failed."""
        if self.running is None:
            return
        saving, self.running = self.running, None
        with told(saving.writer):
            saving.future.result()
        self.saved(saving.writer)

    def close(self) -> None:
        """Lets other runs save where this one did. Once nothing is under way."""
        for lock in self.locks.values():
            lock.release()
        self.locks, self.copies = {}, HostCopies()


def made(folder: Path) -> None:
    """Makes a folder, and those above it. NotADirectoryError where a file is in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error


REMEDY = "what was saved before is whole; see why, and save again"


@contextmanager
def told(writer: CheckpointWriter) -> Iterator[None]:
    """torch's error, which isn't an Exception, as a CheckpointError, or as the DivergedError that a rank met; what was
    written in vain is removed."""
    try:
        yield
    except CheckpointException as error:
        if dist.get_rank() == 0:
            clear(writer.folder)
        for cause, _ in error.failures.values():
            if isinstance(cause, DivergedError):
                raise cause from None
        raise CheckpointError(writer.target, failures(error), REMEDY) from error


def failures(error: CheckpointException) -> str:
    """What failed on which rank: "rank 2: OSError: [Errno 28] No space left on device"."""
    told = {rank: f"{type(cause).__name__}: {cause}" for rank, (cause, _) in sorted(error.failures.items())}
    rank, first = next(iter(told.items()))
    others = f" (and on ranks {[r for r in told if r != rank]})" if len(told) > 1 else ""
    return f"rank {rank}: {first}{others}"
