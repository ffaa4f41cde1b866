"""One interpreter that rehearses for all tests of a process: starting one takes longer than most rehearsals.

It has loaded everything and run nothing, so that its forks can take a fake device, which torch allows only where
autograd hasn't run: ``python -m tests.support.rehearsing``, asked and answering by pickles in a pipe.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from autoplan.rehearsal import rank_workers

Forks = Callable[[Callable[[Any], Any], Sequence[Any]], list]
"""What a function, by its name, gives for each of what is asked, in a fork each."""
__all__ = ["Forks", "rank_workers", "rehearsing"]


@contextmanager
def rehearsing() -> Iterator[Forks]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable, "-m", "tests.support.rehearsing"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None

        def forks(function: Callable[[Any], Any], asked: Sequence[Any]) -> list:
            process.stdin.write(pickle.dumps((function, list(asked))))
            process.stdin.flush()
            return pickle.load(process.stdout)

        yield forks
        process.stdin.close()
        process.kill()  # ranks that were forked meanwhile hold its pipe open: it never reads the end


def main() -> None:
    torch.set_num_threads(1)
    told, sys.stdout = sys.stdout.buffer, sys.stderr  # what a program prints isn't the answer
    while True:
        try:
            function, asked = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        told.write(pickle.dumps(rank_workers.in_forks(function, asked)))
        told.flush()


if __name__ == "__main__":
    main()
