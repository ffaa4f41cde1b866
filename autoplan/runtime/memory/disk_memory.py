"""Tensors on the node's disks, mapped into memory: their bytes come from the disk and go there as they are used.

A tensor's file has no name any more once it is mapped, so that nothing is left of it where the process ends, however it
does: what training goes on from is a checkpoint. Its room is taken when the tensor is made, so that a full disk is told
then and not in the middle of an update. The kernel's page cache is the host's: ``read_ahead`` fills it in a thread,
where a disk that fails is seen, too; ``write_behind`` writes a tensor back, and takes its pages from this process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from autoplan.arguments.environment import NVME
from autoplan.errors import DiskError

IN_MEMORY = ("tmpfs", "ramfs")
PIECE = 1 << 23   # bytes that are read at a time
MS_SYNC = 4       # of <sys/mman.h> on Linux; mmap has no name for it
GB = 1e9


class DiskMemory:
    """Of one rank. ``close`` it, or let the process end.

    folder  on a local disk; None: as the environment says
    """

    def __init__(self, folder: str | os.PathLike | None = None) -> None:
        self.folder = Path(folder or os.environ.get(NVME) or tempfile.gettempdir())
        self.library = ctypes.CDLL(None, use_errno=True)
        self.scratch = os.memfd_create("autoplan-read-ahead")
        self.reader = ThreadPoolExecutor(1, "autoplan-disk-read")
        self.writer = ThreadPoolExecutor(1, "autoplan-disk-write")

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor on the disk; DiskError where there is no room, or the folder is none of a disk.

        In a rehearsal, whose tensors are fake, it is one of those.
        """
        elements = torch.Size(shape).numel()
        if not elements or isinstance(torch.empty(0), FakeTensor):
            return torch.zeros(shape, dtype=dtype)
        self.check_folder()
        size = elements * dtype.itemsize
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix="autoplan-") as file:
                os.posix_fallocate(file.fileno(), 0, size)
                return torch.from_file(file.name, shared=True, size=elements, dtype=dtype).view(torch.Size(shape))
        except OSError as error:
            cause = f"{size / GB:.2f} GB more of tables, or of the optimizer's state, don't fit there: {error.strerror}"
            raise DiskError(self.folder, cause, f"make room, or name another disk's folder in {NVME}") from None

    def check_folder(self) -> None:
        if not self.folder.is_dir():
            raise DiskError(self.folder, "there is no such folder", f"name one on a local disk in {NVME}")
        if (kind := file_system_of(self.folder)) in IN_MEMORY:
            cause = f"it is a {kind}: what lies there takes the host's memory"
            raise DiskError(self.folder, cause, f"name a folder on a local disk in {NVME}")

    def read_ahead(self, tensors: Sequence[Tensor]) -> Future[None]:
        """Starts to bring tensors into memory; what it returns raises DiskError where the disk fails."""
        return self.reader.submit(self.each, self.read, [t for t in tensors if on_disk(t)], "read")

    def write_behind(self, tensors: Sequence[Tensor]) -> Future[None]:
        """Starts to write tensors to the disk, and takes their pages from this process once they are there."""
        return self.writer.submit(self.each, self.write, [t for t in tensors if on_disk(t)], "written")

    def each(self, act: Callable[[Tensor], None], tensors: Iterable[Tensor], done: str) -> None:
        try:
            for tensor in tensors:
                act(tensor)
        except OSError as error:
            remedy = f"go on from the last checkpoint on another disk, whose folder {NVME} names"
            raise DiskError(self.folder, f"the optimizer's state can't be {done}: {error.strerror}", remedy) from None

    def read(self, tensor: Tensor) -> None:
        """Has the kernel copy it: where a page can't be had that is an error, and not a signal to this process."""
        content = memoryview(tensor.view(-1).view(torch.uint8).numpy().data)
        for begin in range(0, len(content), PIECE):
            os.pwrite(self.scratch, content[begin : begin + PIECE], 0)

    def write(self, tensor: Tensor) -> None:
        """The pages are this process' alone, from the tensor's first byte on: a mapping begins with a page."""
        address, size = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
        for failed in (
            self.library.msync(address, size, MS_SYNC), self.library.madvise(address, size, mmap.MADV_DONTNEED),
        ):  # fmt: skip
            if failed:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))

    def close(self) -> None:
        """Ends the threads. The files go with the tensors over them."""
        self.reader.shutdown(wait=True, cancel_futures=True)
        self.writer.shutdown(wait=True, cancel_futures=True)
        os.close(self.scratch)


def on_disk(tensor: Tensor) -> bool:
    """Whether a tensor's memory is a file's."""
    return not isinstance(tensor, FakeTensor) and tensor.untyped_storage().filename is not None


def file_system_of(folder: Path) -> str:
    """The kind of file system that a folder lies on, "" where that can't be told."""
    path, found = str(folder.resolve()), ("", "")
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for _, place, kind, *_ in (line.split() for line in lines):
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(found[0]):
            found = place, kind
    return found[1]
