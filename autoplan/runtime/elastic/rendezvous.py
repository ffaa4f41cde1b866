"""The processes of one start of a program find one another, and an error says who is missing.

torchrun keeps one store over its restarts, in which a new process group would find the addresses of processes that
have died; and its count of restarts, which could tell them apart, differs between nodes: a node that restarts because
another failed may count nothing. So the first rank draws a run id for each start, the prefix of every key that it
stores. A rank announces itself by a token of its own; the first rank invites the token; a rank that is alive accepts.
A token whose process has died since is never answered.

    run_id/<attempt>            the run id of the latest start
    announced/<rank>            the rank's token
    invited/<token>             the run id that this rank is invited to
    accepted/<run id>/<token>   the rank has accepted
    complete/<run id>           all ranks have
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from autoplan.errors import LaunchError, LostRankError
from autoplan.runtime.elastic.stderr_messages import PATIENCE_S

PAUSE_S = 0.02  # between two looks at the store


@dataclass(frozen=True)
class RankInfo:
    """Where a process stands among the others, as torchrun tells it by the environment.

    by_agent  whether torchrun's agent keeps the store; else the first rank does
    attempt   how often torchrun has restarted the processes of this node
    """

    rank: int
    size: int
    address: str
    port: int
    by_agent: bool
    attempt: str

    @staticmethod
    def of_environment() -> RankInfo:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        lacking = [name for name in names if not os.environ.get(name)]
        if lacking:
            raise LaunchError(
                "the environment", f"WORLD_SIZE is set, {' and '.join(lacking)} not", "start it with torchrun"
            )
        rank, size, address, port = (os.environ[name] for name in names)
        by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return RankInfo(
            int(rank), int(size), address, int(port), by_agent, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        )


def connect(info: RankInfo, timeout_s: float, host: bool = True) -> dist.Store:
    """The store that all ranks share. LostRankError where nobody keeps one within the timeout.

    host  whether this process keeps it, where that is its part; not for a second connection
    """
    keeps = host and info.rank == 0 and not info.by_agent
    try:
        store = dist.TCPStore(
            info.address, info.port, is_master=keeps, wait_for_workers=False, multi_tenant=True,
            timeout=timedelta(seconds=timeout_s),
        )  # fmt: skip
        return dist.PrefixStore("autoplan", store)
    except dist.DistError as error:
        raise LostRankError(
            "rank 0",
            f"nobody answers at {info.address}:{info.port} within {timeout_s:g} s ({first_line(error)})",
            "see whether it was started, and whether this machine reaches its address",
        ) from None


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def wait_for_ranks(store: dist.Store, info: RankInfo, timeout_s: float) -> str:
    """Waits until every rank has come; returns the run id of this start, a prefix that no other start uses.

    LostRankError after the timeout, naming the ranks that came and those that didn't; under torchrun one rank raises
    it at once, the others give torchrun the time to end them.
    """
    deadline = time.monotonic() + timeout_s
    run_id = invite_ranks(store, info, deadline) if info.rank == 0 else accept_invitation(store, info, deadline)
    if run_id is None:
        raise missing_ranks(store, info, timeout_s)
    return run_id


def invite_ranks(store: dist.Store, info: RankInfo, deadline: float) -> str | None:
    """The first rank's part: invites every token that is announced, until all have come. The run id; None: not all."""
    run_id = uuid.uuid4().hex
    store.set(f"run_id/{info.attempt}", run_id)
    invited: dict[int, str] = {}
    while time.monotonic() < deadline:
        for rank in range(1, info.size):
            token = read(store, f"announced/{rank}")
            if token is not None and invited.get(rank) != token:
                store.set(f"invited/{token}", run_id)
                invited[rank] = token
        if len(invited) == info.size - 1 and all(store.check([f"accepted/{run_id}/{t}"]) for t in invited.values()):
            store.set(f"complete/{run_id}", "1")
            return run_id
        time.sleep(PAUSE_S)
    return None


def accept_invitation(store: dist.Store, info: RankInfo, deadline: float) -> str | None:
    """Any other rank's part: comes where it is last invited to, until that is complete."""
    token, run_id = uuid.uuid4().hex, ""
    store.set(f"announced/{info.rank}", token)
    while time.monotonic() < deadline:
        invitation = read(store, f"invited/{token}")
        if invitation is not None and invitation != run_id:
            run_id = invitation
            store.set(f"accepted/{run_id}/{token}", "1")
        if run_id and store.check([f"complete/{run_id}"]):
            return run_id
        time.sleep(PAUSE_S)
    return None


def read(store: dist.Store, key: str) -> str | None:
    """A value, or None: a store's own get waits for one."""
    return store.get(key).decode() if store.check([key]) else None


def missing_ranks(store: dist.Store, info: RankInfo, timeout_s: float) -> LostRankError:
    """The error of a rendezvous that timed out; returned late to all ranks but one, which is to report it."""
    run_id = read(store, f"run_id/{info.attempt}")
    tokens = {rank: read(store, f"announced/{rank}") for rank in range(1, info.size)}
    came = [rank for rank, token in tokens.items() if run_id and token and store.check([f"accepted/{run_id}/{token}"])]
    came = sorted({*came, info.rank, *([0] if run_id else [])})
    told = f"told/{info.attempt}/{run_id}"
    if store.add(told, 1) > 1 and info.by_agent:
        time.sleep(PATIENCE_S)
    if info.rank == 0 and not info.by_agent:  # who keeps the store: the others, whose time began later, read it too
        until = time.monotonic() + timeout_s
        while store.add(told, 0) < len(came) and time.monotonic() < until:
            time.sleep(PAUSE_S)
    lost = [rank for rank in range(info.size) if rank not in came]
    return LostRankError(
        f"{ranks_text(lost)} of {info.size}",
        f"{'it' if len(lost) == 1 else 'they'} didn't start within {timeout_s:g} s; {ranks_text(came)} did",
        "see what their node says, whether all nodes were given the same --nnodes, --nproc-per-node and address, and "
        "whether their imports end",
    )


def ranks_text(ranks: Sequence[int]) -> str:
    """(0, 1, 2, 5) -> "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    spans = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'' if len(ranks) == 1 else 's'} {spans}"
