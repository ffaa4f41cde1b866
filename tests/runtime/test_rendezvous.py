"""Processes find one another, whatever earlier ones left in the store; who doesn't come is named."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from autoplan.errors import LaunchError, LostRankError
from autoplan.runtime.elastic import rendezvous
from autoplan.runtime.elastic.rendezvous import RankInfo, connect, ranks_text, wait_for_ranks

PATIENT_S = 30.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody ends the ranks that leave the telling to another."""
    monkeypatch.setattr(rendezvous, "PATIENCE_S", 0.0)


def place(rank: int, size: int = 4, attempt: str = "0", port: int = 0) -> RankInfo:
    return RankInfo(rank, size, "127.0.0.1", port, True, attempt)


def meeting_of(
    store: dist.Store, places: Sequence[RankInfo], timeout_s: float = PATIENT_S
) -> list[str | LostRankError]:
    def one(where: RankInfo) -> str | LostRankError:
        try:
            return wait_for_ranks(store, where, timeout_s)
        except LostRankError as error:
            return error

    with ThreadPoolExecutor(len(places)) as threads:
        return list(threads.map(one, places))


def test_all_ranks_are_given_one_mark_and_every_start_another() -> None:
    store = dist.HashStore()
    first = meeting_of(store, [place(r) for r in range(4)])
    second = meeting_of(store, [place(r) for r in range(4)])
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]


def test_nodes_that_count_their_restarts_differently_meet() -> None:
    found = meeting_of(dist.HashStore(), [place(r, attempt=str(r // 2)) for r in range(4)])
    assert len(set(found)) == 1 and isinstance(found[0], str)


def test_what_a_process_left_that_died_while_it_waited_is_not_waited_for() -> None:
    """A first rank that died after its invitations, and a rank that died after it came."""
    store = dist.HashStore()
    gone = meeting_of(store, [place(0), place(1), place(2)], timeout_s=0.3)
    assert all(isinstance(error, LostRankError) for error in gone)
    assert len(set(meeting_of(store, [place(r) for r in range(4)]))) == 1


def test_a_rank_that_is_started_again_while_the_others_wait_comes_in_its_own_place() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(wait_for_ranks, store, place(r), PATIENT_S) for r in (0, 1, 2)]
        early = threads.submit(meeting_of, store, [place(3, attempt="gone")], 0.0)  # comes, and is ended at once
        assert isinstance(early.result()[0], LostRankError)
        late = threads.submit(wait_for_ranks, store, place(3), PATIENT_S)
        assert len({future.result() for future in (*waiting, late)}) == 1


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ((0, 1, 2), "rank 3 of 4: it didn't start within 0.3 s; ranks 0-2 did. "),
        ((0, 2), "ranks 1, 3 of 4: they didn't start within 0.3 s; ranks 0, 2 did. "),
    ],
)
def test_who_does_not_come_is_named(there: tuple[int, ...], said: str) -> None:
    found = meeting_of(dist.HashStore(), [place(r) for r in there], timeout_s=0.3)
    assert all(str(error).startswith(said) for error in found), found


def test_without_the_first_rank_it_is_the_one_that_is_missed() -> None:
    for error in meeting_of(dist.HashStore(), [place(1), place(2)], timeout_s=0.3):
        assert str(error).startswith("rank") and " 0" in str(error).split(" of ")[0]


def test_one_rank_tells_and_the_others_give_it_time(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    nap = rendezvous.time.sleep
    monkeypatch.setattr(rendezvous, "PATIENCE_S", 7.0)
    monkeypatch.setattr(rendezvous.time, "sleep", lambda s: naps.append(s) if s == 7.0 else nap(s))
    meeting_of(dist.HashStore(), [place(r) for r in (0, 1, 3)], timeout_s=0.3)
    assert naps == [7.0] * 2


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_a_store_that_nobody_keeps_is_told() -> None:
    port = free_port()
    with pytest.raises(LostRankError, match=f"rank 0: nobody answers at 127.0.0.1:{port} within 1 s"):
        connect(place(1, port=port), 1.0)


def test_the_first_rank_keeps_the_store_where_torchrun_does_not() -> None:
    port = free_port()
    places = [RankInfo(r, 3, "127.0.0.1", port, False, "0") for r in range(3)]
    stores: dict[int, dist.Store] = {}

    def one(where: RankInfo) -> str:
        stores[where.rank] = connect(where, PATIENT_S)  # kept open: it ends with the first rank's
        return wait_for_ranks(stores[where.rank], where, PATIENT_S)

    with ThreadPoolExecutor(3) as threads:
        assert len(set(threads.map(one, places))) == 1


def test_an_environment_that_is_not_torchrun_s_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "", "MASTER_PORT": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"WORLD_SIZE is set, MASTER_ADDR and MASTER_PORT not\. start it with"):
        RankInfo.of_environment()


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((2,), "rank 2"), ((0, 1, 2, 5), "ranks 0-2, 5"), ((3, 1), "ranks 1, 3"), ((0, 1), "ranks 0-1")],
)
def test_ranks_are_named_by_runs(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text
