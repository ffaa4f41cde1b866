"""Ranks rehearsed side by side: ``python -m autoplan.rehearsal.rank_workers``, asked and answering by pickles in a
pipe, as often as it is asked.

Each rank runs in a fork of this process, which has loaded everything and run nothing.
"""

import logging
import multiprocessing
import os
import pickle
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from autoplan.errors import AutoplanError
from autoplan.rehearsal.rank import rehearse_rank
from autoplan.rehearsal.records import RankTrace


def main() -> None:
    told, sys.stdout = sys.stdout.buffer, sys.stderr  # what a program prints isn't the answer
    while True:
        try:
            asked = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        told.write(pickle.dumps(side_by_side(asked)))
        told.flush()


def side_by_side(asked: Sequence[tuple[Path, int, int | None, bool]]) -> list[RankTrace | str]:
    return in_forks(alone, asked)


def in_forks(function: Callable[[Any], Any], asked: Sequence[Any]) -> list[Any]:
    """What a function gives for each of what is asked, in a fork each, as many at once as there are processors. Of one
    that ended without an answer the text says how: a pool would wait for it for ever."""
    context, workers = multiprocessing.get_context("fork"), len(os.sched_getaffinity(0))
    waiting = deque(enumerate(asked))
    found: list[Any] = [None] * len(asked)
    running: dict[object, tuple[int, Connection, BaseProcess]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            number, one = waiting.popleft()
            reads, writes = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(target=answer, args=(function, one, writes))
            process.start()
            writes.close()  # the fork's alone is left, so that its end is seen
            running[reads] = (number, reads, process)
        for ended in wait([reads for _, reads, _ in running.values()]):
            number, reads, process = running.pop(ended)
            try:
                found[number] = reads.recv()
            except EOFError:
                process.join()
                found[number] = f"its process ended with exit status {process.exitcode}, and said nothing"
            process.join()
            reads.close()
    return found


def answer(function: Callable[[Any], Any], asked: Any, writes: Connection) -> None:
    writes.send(function(asked))


def alone(asked: tuple[Path, int, int | None, bool]) -> RankTrace | str:
    """One rank's trace, or what broke it off."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)  # engines print their whole schedule where a rank breaks off
    try:
        return rehearse_rank(*asked)
    except Exception as error:  # whatever it is, the other ranks' findings are worth having
        return explained(error)


def explained(error: Exception) -> str:
    """An error with the line of the program, or of the runtime, at which it came. Engines wrap what they meet."""
    while error.__cause__ is not None and not isinstance(error, AutoplanError):
        error = error.__cause__  # type: ignore[assignment]
    if isinstance(error, AutoplanError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.endswith("program.py") or "/autoplan/" in f.filename]
    place = next((f for f in reversed(own) if f.filename.endswith("program.py")), own[-1] if own else None)
    where = f" at {Path(place.filename).name}:{place.lineno}" if place else ""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}{where}: {first}"


if __name__ == "__main__":
    main()
