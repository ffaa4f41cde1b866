"""Several ranks on this machine, for verification and tests: processes that live on between runs.

    with RankPool(4) as pool:
        losses = pool.run(train_on_one_rank, arguments)      # [rank 0's result, rank 1's, …]

The workers are forked, which takes a tenth of a second; where a fork would carry an accelerator's context or a process
group along (neither survives it), fresh interpreters are started instead. Each run has a gloo process group of its
own over a file store. Functions, arguments and results go through pipes as pickles, between these processes alone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

import torch
from torch import distributed

from autoplan.errors import AutoplanError

END = b""  # in a job's place: the worker is to end
GRACE_S = 0.5  # time for the end of a killed process, or for a stack dump, to be seen
MOST_THREADS = 96  # of a forked rank: each of gloo's groups has three, one of which wakes 100 times a second


class RankError(RuntimeError):
    """A rank failed, died or hung. ``ranks`` names it, or those that had not finished; ``text`` has its traceback."""

    def __init__(self, ranks: Sequence[int], what: str, text: str):
        self.ranks, self.text = tuple(ranks), text
        names = ", ".join(map(str, ranks))
        super().__init__(f"rank {names} {what}\n{text}" if len(self.ranks) == 1 else f"ranks {names} {what}\n{text}")


@dataclass(frozen=True)
class _Outcome:
    """What a rank sends back: a result, or an error as text (and as itself, where it is one of autoplan's own).

    threads  how many it has by then
    ended_s  on the clock that all processes share
    """

    result: object = None
    error: str = ""
    cause: AutoplanError | None = None
    threads: int = 1
    ended_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class _Worker:
    """One process: the pipe to it, where its stacks are dumped, how to end it (returning its exit code)."""

    pid: int
    connection: Connection
    stacks: Path
    kill: Callable[[], None]
    join: Callable[[float], int | None]


class RankPool:
    """``size`` local ranks.

    timeout_s  longest a run may take before the ranks that have not finished are named and ended
    fork       None: fork unless torch is built for an accelerator, or torch.distributed is already in use here

    After a failed run the workers are ended; the next run starts new ones.
    """

    def __init__(self, size: int, timeout_s: float = 60.0, fork: bool | None = None):
        assert size >= 1, f"a pool of {size} ranks"
        self.size, self.timeout_s = size, timeout_s
        self.fork = can_fork() if fork is None else fork
        self._workers: list[_Worker] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._runs = 0

    def __enter__(self) -> RankPool:
        self._folder = tempfile.TemporaryDirectory(prefix="autoplan-ranks-")
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def run(self, function: Callable[..., object], *args: object, timeout_s: float | None = None) -> list:
        """``function(rank, size, *args)`` on every rank, under a process group; the results in the order of ranks.

        The function is found by its module and name on the other side, so it stands at a module's top level.
        RankError where a rank raises, dies, or doesn't finish within ``timeout_s``.
        """
        assert self._folder is not None, "use the pool in a with statement"
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        if not self._workers:
            self._start(Path(self._folder.name))
        self._runs += 1
        job = pickle.dumps((function, args, str(Path(self._folder.name) / f"store-{self._runs}"), timeout_s))
        try:
            for rank, worker in enumerate(self._workers):
                self._send(rank, worker, job)
            outcomes = self._collect(time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            self._end(kill=True)
            raise
        if self.fork and max(outcome.threads for outcome in outcomes) > MOST_THREADS:
            self._end()  # torch's caches hold meshes, and so groups that were destroyed; forks are quickly made again
        return [outcome.result for outcome in outcomes]

    def _start(self, folder: Path) -> None:
        start = _start_forked if self.fork else _start_fresh
        for rank in range(self.size):
            others = [worker.connection for worker in self._workers]
            self._workers.append(start(rank, self.size, folder / f"stacks-{rank}", others))

    def _send(self, rank: int, worker: _Worker, job: bytes) -> None:
        try:
            worker.connection.send_bytes(job)
        except BrokenPipeError:
            raise self._died(rank) from None

    def _collect(self, deadline: float, timeout_s: float) -> list[_Outcome]:
        """Every rank's outcome, as they come; the first failure ends the wait."""
        found: dict[int, _Outcome] = {}
        while len(found) < self.size:
            waiting = {w.connection: rank for rank, w in enumerate(self._workers) if rank not in found}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._hung(sorted(waiting.values()), timeout_s)
            for connection in ready:
                assert isinstance(connection, Connection)
                found[waiting[connection]] = self._receive(waiting[connection], connection)
        return [found[rank] for rank in range(self.size)]

    def _receive(self, rank: int, connection: Connection) -> _Outcome:
        try:
            outcome = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise self._died(rank) from None
        if outcome.error:
            first, outcome = self._first_failure(rank, outcome)
            raise RankError([first], "failed:", outcome.error) from outcome.cause
        return outcome

    def _first_failure(self, failed: int, outcome: _Outcome) -> tuple[int, _Outcome]:
        """A rank that fails or dies makes its peers fail, whose words may be heard first: the rank that failed before
        all others, with what it says. RankError where one has died."""
        failures = {failed: outcome}
        peers = {w.connection: rank for rank, w in enumerate(self._workers) if rank != failed}
        deadline = time.monotonic() + GRACE_S
        while peers and (ready := wait(list(peers), max(0.0, deadline - time.monotonic()))):
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    said = pickle.loads(connection.recv_bytes())
                except (EOFError, ConnectionResetError):
                    raise self._died(peers[connection]) from None
                failures |= {peers[connection]: said} if said.error else {}
                del peers[connection]
        first = min(failures, key=lambda rank: failures[rank].ended_s)
        return first, failures[first]

    def _died(self, rank: int) -> RankError:
        code = self._workers[rank].join(2.0)
        end = f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exited with {code}"
        return RankError([rank], end, "It left no traceback: a crash in native code, sys.exit, or too little memory.")

    def _hung(self, ranks: list[int], timeout_s: float) -> RankError:
        """Names the ranks that did not finish, each with its stack: one that waits for another shows a collective."""
        for rank in ranks:
            os.kill(self._workers[rank].pid, signal.SIGUSR1)
        time.sleep(GRACE_S)
        stacks = (f"rank {rank} stood at\n{self._workers[rank].stacks.read_text()}" for rank in ranks)
        return RankError(ranks, f"did not finish within {timeout_s:g} s", "\n".join(stacks))

    def _end(self, kill: bool = False) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):  # it has died
                worker.connection.send_bytes(END)
            worker.connection.close()  # no end by itself: a worker of another pool, forked later, holds a copy of it
            if kill:
                worker.kill()
        for worker in self._workers:
            if worker.join(5.0) is None:
                worker.kill()
                worker.join(5.0)
        self._workers = []


def can_fork() -> bool:
    """Whether a child can use torch after a fork: not inside a process group, nor where torch is built for an
    accelerator: with a device, or with fake tensors in its place, autograd has threads, which no fork takes along."""
    return torch.accelerator.current_accelerator() is None and not distributed.is_initialized()


def _start_forked(rank: int, size: int, stacks: Path, others: list[Connection]) -> _Worker:
    ours, theirs = Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_serve, args=(rank, size, theirs, stacks, [*others, ours]), daemon=True
    )
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads: the child uses one thread and none of the parent's locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    assert process.pid is not None

    def join(seconds: float) -> int | None:
        process.join(seconds)
        return process.exitcode

    return _Worker(process.pid, ours, stacks, process.kill, join)


def _start_fresh(rank: int, size: int, stacks: Path, others: list[Connection]) -> _Worker:
    """A new interpreter that never runs the user's main module, so a script needs no ``if __name__`` guard."""
    ours, theirs = Pipe()
    told = f"{rank}, {size}, {theirs.fileno()}, {str(stacks)!r}"
    code = f"from autoplan.verify.local_ranks import serve_fd; serve_fd({told})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], env=environment)
    theirs.close()

    def join(seconds: float) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    return _Worker(process.pid, ours, stacks, process.kill, join)


def serve_fd(rank: int, size: int, fd: int, stacks: str) -> None:
    """The worker's loop in a fresh interpreter, over an inherited pipe."""
    _serve(rank, size, Connection(fd), Path(stacks), [])


def _serve(rank: int, size: int, connection: Connection, stacks: Path, inherited: list[Connection]) -> None:
    """Takes jobs until it is told to end, or the pipe closes.

    inherited  the parent's ends, closed here so that its end is noticed
    """
    torch.set_num_threads(1)  # first of all: the parent's OpenMP threads don't exist after a fork
    gc.freeze()  # what the parent holds stays: a collection that looked at it would copy every page of it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt goes to the parent, who ends the workers
    for other in inherited:
        other.close()
    if "lo" in (name for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with stacks.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file, all_threads=False)
        while True:
            try:
                job = connection.recv_bytes()
            except (EOFError, ConnectionResetError):
                return
            if job == END:
                return
            connection.send_bytes(_perform(rank, size, job))
            if distributed.is_initialized():
                distributed.destroy_process_group()
            gc.collect()  # cycles hold meshes, and so groups whose threads go on waking; the parent's things are frozen


def _threads() -> int:
    """Of this process, native ones included; 1 where the system doesn't say."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 1


def _perform(rank: int, size: int, job: bytes) -> bytes:
    """One job's outcome, pickled. After a failure the group is left open until the outcome is sent: the peers, who
    fail when it closes, must not be heard first."""
    try:
        function, args, path, timeout_s = pickle.loads(job)
        distributed.init_process_group(
            "gloo",
            store=distributed.FileStore(path, size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s + 30),  # the parent, who can name the rank that hangs, speaks first
        )
        result = function(rank, size, *args)
        distributed.barrier()
        distributed.destroy_process_group()
        return pickle.dumps(_Outcome(result, threads=_threads()))
    except Exception as error:
        cause = error if isinstance(error, AutoplanError) else None
        return pickle.dumps(_Outcome(error=traceback.format_exc(), cause=cause))
