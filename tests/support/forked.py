"""A script run in a fork of this process instead of a new interpreter, which would import all again for ten seconds."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_script(
    script: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """What ``python script arguments`` does: its exit status, and what it said.

    environment  variables beside those of this process
    subprocess.TimeoutExpired where it doesn't end; it is killed then.
    """
    out, err = script.with_name("stdout.txt"), script.with_name("stderr.txt")
    command = [str(script), *arguments]
    process = multiprocessing.get_context("fork").Process(target=_run, args=(command, environment or {}, out, err))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, of forks beside threads
        process.start()
    process.join(timeout_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise subprocess.TimeoutExpired(command, timeout_s, out.read_text(), err.read_text())
    return subprocess.CompletedProcess(command, process.exitcode, out.read_text(), err.read_text())


def _run(command: list[str], environment: Mapping[str, str], out: Path, err: Path) -> None:
    """In the fork: the script as an interpreter runs it, which waits for its threads before it ends."""
    for stream, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", closefd=False) for stream in (1, 2))
    warnings.resetwarnings()
    os.environ.update(environment)
    sys.argv = command
    status = _status(command[0])
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
