"""One run at a time saves into a folder: a lock that ends with the process that holds it.

The lock is the operating system's (fcntl's record lock) on a file beside the checkpoints. The kernel, or the server of
a shared file system, frees it when its process ends, however that ends: a job that is started again after a kill finds
it free, and no timeout has to be guessed. A child process doesn't inherit it, so a data loader's worker that outlives
the first rank holds nothing.

Between two programs of one process, which the system's lock doesn't tell apart, the file itself decides: it says which
process and which run has signed it.

A file system without locks is told of, once; there two runs still never mix (each writes under a name of its own, and
replaces no other run's checkpoint), but the second isn't refused at its first save.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import IO

from autoplan.errors import CheckpointError
from autoplan.runtime.elastic.stderr_messages import note

PATIENCE_S = 10.0  # for a process on another machine whose end the file server hasn't seen yet
PAUSE_S = 0.1
TOKEN = uuid.uuid4().hex  # beside a process' number, which comes again: in a container that is started anew, at once
HELD = (errno.EACCES, errno.EAGAIN)  # what POSIX has for a lock that another process holds
LOCKLESS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FolderLock:
    """The right to save under some names in one folder. Held by the first rank, from its first save to its end.

    path   the lock's file; it says who holds it
    run    the run's identity
    works  whether the file system keeps locks
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run, self.works = path, run, True
        self.file: IO[str] | None = None

    def acquire(self) -> None:
        """Takes the lock, or sees that it is still held. CheckpointError where another process has it."""
        self.refuse_own()
        until = time.monotonic() + PATIENCE_S
        while self.works and not self.taken():
            holder = self.holder()
            if alive_here(holder) or time.monotonic() > until:
                raise CheckpointError(
                    self.path.parent, f"another run saves there: {described(holder)}",
                    "end it, or give each run a folder of its own",
                )  # fmt: skip
            time.sleep(PAUSE_S)

    def refuse_own(self) -> None:
        """CheckpointError where another program of this process has the lock."""
        said = self.holder()
        own = {"host": socket.gethostname(), "process": os.getpid(), "token": TOKEN}
        if said.get("run") != self.run and all(said.get(name) == value for name, value in own.items()):
            raise CheckpointError(
                self.path.parent, f"another program of this process saves there: {described(said)}",
                "close it, or give each a folder of its own",
            )  # fmt: skip

    def taken(self) -> bool:
        """Whether this process has the lock now."""
        if self.file is not None and not self.is_the_file():
            self.file.close()
            self.file = None
        if self.file is None:
            self.file = self.path.open("a+")
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in HELD + LOCKLESS:
                raise
            self.file.close()
            self.file = None
            if error.errno in LOCKLESS:
                self.works = False
                self.path.unlink(missing_ok=True)
                note(f"{self.path.parent}: no locks in this file system ({error}): see that one run alone saves there")
            return False
        if not self.is_the_file():
            return False
        self.sign()
        return True

    def is_the_file(self) -> bool:
        """Whether the open file is the one under the lock's name: who held it before has removed that one."""
        assert self.file is not None
        try:
            found, own = os.stat(self.path), os.fstat(self.file.fileno())
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def sign(self) -> None:
        """Says in the file who holds the lock."""
        assert self.file is not None
        self.file.seek(0)
        said = {"run": self.run, "host": socket.gethostname(), "process": os.getpid(), "token": TOKEN}
        if self.file.read() != json.dumps(said):
            self.file.truncate(0)
            self.file.write(json.dumps(said))
            self.file.flush()

    def __del__(self) -> None:
        """Of a program that was never closed: the lock ends with it."""
        self.release()

    def holder(self) -> dict[str, object]:
        """Who holds the lock, as far as its file says."""
        try:
            said = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}

    def release(self) -> None:
        """Frees the lock and removes its file."""
        if self.file is None:
            return
        with contextlib.suppress(OSError):
            if self.taken():
                self.path.unlink(missing_ok=True)
        if self.file is not None:
            self.file.close()
            self.file = None


def alive_here(holder: dict[str, object]) -> bool:
    """Whether the holder is a process of this machine that lives: waiting is of no use."""
    process = holder.get("process")
    if holder.get("host") != socket.gethostname() or not isinstance(process, int) or process == os.getpid():
        return False
    return (Path("/proc") / str(process)).exists() if Path("/proc/self").exists() else True


def described(holder: dict[str, object]) -> str:
    if not holder:
        return "it doesn't say which"
    return f"run {str(holder.get('run'))[:8]}, process {holder.get('process')} on {holder.get('host')}"
