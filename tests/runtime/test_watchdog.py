"""Four ranks, as threads, each under its watch: one hangs, one rank tells, all end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from autoplan.errors import LostRankError
from autoplan.runtime.elastic.hang_report import BETWEEN
from autoplan.runtime.elastic.stderr_messages import tell
from autoplan.runtime.elastic.watchdog import EXIT, Watchdog

TIMEOUT_S = 1.0


class Ranks:
    """Watches over one store, each made by a thread of its own, which waits until all is over."""

    def __init__(self, size: int, timeout_s: float = TIMEOUT_S, store: dist.Store | None = None) -> None:
        self.store = store or dist.HashStore()
        self.ends: dict[int, int] = {}
        self.said: list[str] = []
        self.watches: dict[int, Watchdog] = {}
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.rank, args=(r, size, timeout_s), daemon=True) for r in range(size)]
        for thread in self.threads:
            thread.start()
        while len(self.watches) < size:
            time.sleep(0.01)

    def rank(self, rank: int, size: int, timeout_s: float) -> None:
        def end(status: int) -> None:
            self.ends[rank] = status

        say = lambda error: self.said.append(str(error))  # noqa: E731
        self.watches[rank] = Watchdog(self.store, rank, size, timeout_s, end, say)
        self.over.wait(60)

    def wait(self, ends: int) -> None:
        """Until so many ranks have ended, at most a minute."""
        deadline = time.monotonic() + 60
        while len(self.ends) < ends and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        self.over.set()
        for watch in self.watches.values():
            watch.stop()
        for thread in self.threads:
            thread.join()


def test_the_rank_that_hangs_is_told_once_and_all_end() -> None:
    ranks = Ranks(4)
    for rank, watch in ranks.watches.items():
        watch.enter("forward and backward", 0)
        watch.enter(BETWEEN, 1)
        if rank != 2:
            watch.enter("forward and backward", 1)
    ranks.wait(4)
    ranks.close()
    assert ranks.ends == dict.fromkeys(range(4), EXIT)
    [said] = ranks.said
    assert said.startswith("rank 2 of 4: the others have waited for it for 1 s. rank 2: after step 1, the script")


@pytest.mark.slow
def test_a_rank_that_says_nothing_any_more_is_told() -> None:
    ranks = Ranks(3)
    ranks.watches[1].stop()
    for rank in (0, 2):
        ranks.watches[rank].enter("forward and backward", 4)
    ranks.wait(2)
    ranks.close()
    assert set(ranks.ends) == {0, 2}  # what doesn't run can't end itself: that is torchrun's part
    [said] = ranks.said
    assert said.startswith("rank 1 of 3: it says nothing any more")


def test_nothing_is_told_while_every_rank_goes_on() -> None:
    ranks = Ranks(3)
    for step in range(20):
        for watch in ranks.watches.values():
            watch.enter("forward and backward", step)
        time.sleep(0.1)
    ranks.close()
    assert not ranks.said and not ranks.ends


def test_where_ranks_may_be_steps_apart_one_waits_while_another_goes_on() -> None:
    ranks = Ranks(2)
    for watch in ranks.watches.values():
        watch.apart = True
    ranks.watches[0].enter("saving a checkpoint", 9)
    for step in range(20):
        ranks.watches[1].enter("forward and backward", step)
        time.sleep(0.1)
    assert not ranks.said and not ranks.ends
    ranks.wait(2)
    ranks.close()
    assert ranks.ends == dict.fromkeys(range(2), EXIT) and len(ranks.said) == 1


class Gone(dist.HashStore):
    """A store whose keeper has ended."""

    def set(self, *_: object) -> None:
        raise dist.DistNetworkError("Connection reset by peer")


def test_without_the_store_each_rank_has_its_own_clock() -> None:
    ranks = Ranks(2, timeout_s=0.5, store=Gone())
    ranks.watches[0].enter("saving a checkpoint", 3)
    for _ in range(20):
        ranks.watches[1].enter("forward and backward", 3)
        time.sleep(0.05)
    ranks.close()
    assert ranks.ends == {0: EXIT}
    [said] = ranks.said
    assert said.startswith("rank 0 of 2: it has been in step 4, saving a checkpoint")
    assert "whoever kept the ranks' store has ended (DistNetworkError)" in said


def test_a_single_process_is_not_watched() -> None:
    alone = Watchdog(None, 0, 1, 0.01)
    alone.enter("forward and backward", 0)
    time.sleep(0.1)
    alone.stop()
    assert alone.thread is None


def test_the_error_goes_to_stderr_and_to_torchrun(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    tell(LostRankError("rank 1 of 2", "a", "b"))
    assert capsys.readouterr().err == "autoplan: error: rank 1 of 2: a. b.\n"
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=EXIT, error_file=str(tmp_path / "error.json"))
    assert "autoplan: error: rank 1 of 2: a. b." in ChildFailedError("train.py", {0: failure}).format_msg()
