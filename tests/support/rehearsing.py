"""One interpreter that rehearses for all tests of a process: starting one takes longer than most rehearsals."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from autoplan.rehearsal.rehearse import RANKS, Asked

Apart = Callable[[Sequence[Asked]], list]


@contextmanager
def rehearsing() -> Iterator[Apart]:
    """What answers as ``rehearse.each_apart`` does."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable, "-m", RANKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None

        def apart(asked: Sequence[Asked]) -> list:
            process.stdin.write(pickle.dumps(list(asked)))
            process.stdin.flush()
            return pickle.load(process.stdout)

        yield apart
        process.stdin.close()
        process.kill()  # ranks that were forked meanwhile hold its pipe open: it never reads the end
