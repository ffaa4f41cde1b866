"""One process at a time has the lock of a folder, and nobody once it has ended."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from autoplan.errors import CheckpointError
from autoplan.runtime.checkpoint import lock as checkpoint_lock
from autoplan.runtime.checkpoint.lock import FolderLock


def hold(path: Path, pipe: Connection) -> None:
    """Takes the lock, and keeps it until the pipe is closed."""
    lock = FolderLock(path, "b" * 32)
    lock.acquire()
    pipe.send(True)
    with pipe:
        pipe.poll(60)
    lock.release()


@contextmanager
def holder(path: Path) -> Iterator[multiprocessing.Process]:
    """A process that has the lock."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(path, theirs))
    process.start()
    assert ours.poll(30) and ours.recv()
    try:
        yield process
    finally:
        ours.send(None)
        process.join(30)


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / ".step.lock", "a" * 32)
    with holder(lock.path) as process:
        said = f"another run saves there: run bbbbbbbb, process {process.pid} on {os.uname().nodename}"
        with pytest.raises(CheckpointError, match=said):
            lock.acquire()
    assert not lock.path.exists()  # who ends well removes it
    lock.acquire()
    assert json.loads(lock.path.read_text())["run"] == "a" * 32


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / ".step.lock", "a" * 32)
    with holder(lock.path) as process:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(30)
        assert lock.path.exists()
        lock.acquire()
    lock.release()
    assert not lock.path.exists()


def test_a_child_that_outlives_its_parent_holds_nothing(tmp_path: Path) -> None:
    """As a data loader's worker does."""
    path, (ours, theirs) = tmp_path / ".step.lock", os.pipe()
    parent = os.fork()
    if not parent:
        FolderLock(path, "b" * 32).acquire()
        if not os.fork():
            os.close(theirs)
            os.read(ours, 1)  # until the test has ended
        os._exit(0)
    os.waitpid(parent, 0)
    lock = FolderLock(path, "a" * 32)
    lock.acquire()
    lock.release()
    os.close(theirs)
    os.close(ours)


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / ".step.lock", "a" * 32)
    lock.acquire()
    lock.path.unlink()
    with holder(lock.path), pytest.raises(CheckpointError, match="another run saves there"):
        lock.acquire()


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(checkpoint_lock.fcntl, "lockf", refuse)
    lock = FolderLock(tmp_path / ".step.lock", "a" * 32)
    lock.acquire()
    lock.acquire()
    lock.release()
    assert capsys.readouterr().err.count("no locks in this file system") == 1
    assert not any(tmp_path.iterdir())
