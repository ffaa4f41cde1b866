"""A script run in a fork of this process instead of a new interpreter, which would import all again for ten seconds."""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


def run_script(
    script: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """What ``python script arguments`` does: its exit status, and what it said.

    environment  variables beside those of this process
    subprocess.TimeoutExpired where it doesn't end; it is killed then.
    """
    (found,) = _finished([_Script(script, arguments, environment or {})], timeout_s)
    return found


def run_ranks(
    script: Path, ranks: int, arguments: Sequence[str] = (), timeout_s: float = 120
) -> list[subprocess.CompletedProcess[str]]:
    """The same on several ranks, which have the variables that torchrun gives them; in the order of ranks."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": 0}
    known |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    each = [{**known, "RANK": rank, "LOCAL_RANK": rank} for rank in range(ranks)]
    scripts = [_Script(script, arguments, {name: str(value) for name, value in own.items()}) for own in each]
    return _finished(scripts, timeout_s)


def in_fork(test: Callable[..., None]) -> Callable[..., None]:
    """A test whose body runs in a fork: what it starts, threads and process groups, other tests never see."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        context = multiprocessing.get_context("fork")
        told, tell = context.Pipe(duplex=False)

        def body() -> None:
            try:
                test(*args, **kwargs)
                tell.send("")
            except BaseException:
                tell.send(traceback.format_exc())
            os._exit(0)

        process = context.Process(target=body)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, of forks beside threads
            process.start()
        assert told.poll(120), "it doesn't end"
        said = told.recv()
        process.join()
        assert not said, said

    return run


@dataclass(frozen=True)
class _Script:
    file: Path
    arguments: Sequence[str]
    environment: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        return [str(self.file), *self.arguments]

    def stream(self, name: str) -> Path:
        """The file that standard output or error goes to."""
        return self.file.with_name(f"{name}-{self.environment.get('RANK', 0)}.txt")

    def done(self, status: int) -> subprocess.CompletedProcess[str]:
        said, erred = (self.stream(name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(self.command, status, said, erred)


def _finished(scripts: Sequence[_Script], timeout_s: float) -> list[subprocess.CompletedProcess[str]]:
    processes = [multiprocessing.get_context("fork").Process(target=_run, args=(one,)) for one in scripts]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, of forks beside threads
        for process in processes:
            process.start()
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    late = [process for process in processes if process.exitcode is None]
    for process in late:
        process.kill()
        process.join()
    found = [one.done(process.exitcode or 0) for one, process in zip(scripts, processes, strict=True)]
    if late:
        raise subprocess.TimeoutExpired(scripts[0].command, timeout_s, found[0].stdout, found[0].stderr)
    return found


def _run(script: _Script) -> None:
    """In the fork: the script as an interpreter runs it, which waits for its threads before it ends."""
    for stream, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(script.stream(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", closefd=False) for stream in (1, 2))
    warnings.resetwarnings()
    os.environ.update(script.environment)
    sys.argv = script.command
    status = _status(str(script.file))
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _status(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
