"""A rank that hangs is told, by name, and everything ends, so that torchrun can start it again.

Every rank notes what it enters: a step's forward and backward, the update, a checkpoint, the script between two steps.
A thread of its own passes that on through the store every few moments, with the line at which the main thread stands.
When a rank has entered nothing for the timeout, one rank reads what all have said and tells who is behind. Then all
end with status EXIT, at once: their main threads may never return. Where ranks may be any number of steps apart, one
that has come to the end waits for longer: until none of the others has entered anything for the timeout, either.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch.distributed as dist

from autoplan.errors import LostRankError
from autoplan.runtime.elastic.hang_report import Heartbeat, lost_rank, stack_position
from autoplan.runtime.elastic.rendezvous import read
from autoplan.runtime.elastic.stderr_messages import PATIENCE_S, tell

EXIT = 3               # status of all processes where one hangs
BEATS = 40             # in a timeout
LONGEST_BEAT_S = 5.0
SILENT_BEATS = 4       # without a change, and a rank says nothing any more
SILENT_S = 2.0         # at least so long: a busy machine lets a thread wait


class Watchdog:
    """One rank's notes, and the thread that passes them on.

    store  a connection of the thread's own, for the main thread may hold another while it waits; None: a single
           process, for which nobody waits
    apart  whether ranks may be many steps behind one another
    end    ends the process at once, with a status
    say    tells the user
    """

    apart = False

    def __init__(
        self, store: dist.Store | None, rank: int, size: int, timeout_s: float, end: Callable[[int], object] = os._exit,
        say: Callable[[LostRankError], object] = tell,
    ) -> None:  # fmt: skip
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self.end, self.say = end, say
        self.beat_s = min(LONGEST_BEAT_S, timeout_s / BEATS)
        self.main = threading.get_ident()
        self.beats = self.entered = self.step = 0
        self.phase, self.since = "the start", time.monotonic()
        self.others: dict[int, tuple[int, float]] = {}  # what each has entered, and when this was seen to change
        self.stopped = threading.Event()
        self.thread: threading.Thread | None = None
        if store is not None:
            self.thread = threading.Thread(target=self._run, args=(store,), name="autoplan-watchdog", daemon=True)
            self.thread.start()

    def enter(self, phase: str, step: int) -> None:
        """Notes that the main thread goes on to something else, after so many optimizer steps."""
        self.entered, self.step, self.phase, self.since = self.entered + 1, step, phase, time.monotonic()

    def stop(self) -> None:
        """Ends the watch; what has begun to be told is told."""
        self.stopped.set()
        if self.thread is not None:
            self.thread.join()

    def _run(self, store: dist.Store) -> None:
        try:
            while not self.stopped.wait(self.beat_s):
                self._beat(store)
                if self._late() and not (self.apart and self._others_go_on(store)):
                    self._tell(store)
                elif not store.check(["ended"]):
                    continue
                self.end(EXIT)
                return
        except RuntimeError as error:  # the store has gone with the process that kept it
            self._go_on_alone(error)

    def _late(self) -> bool:
        return time.monotonic() - self.since > self.timeout_s

    def _others_go_on(self, store: dist.Store) -> bool:
        """Whether another rank has entered something within the timeout, as far as this one has looked."""
        now, alive = time.monotonic(), False
        for rank, beat in enumerate(self._all(store)):
            if rank != self.rank and beat is not None:
                entered, when = self.others.get(rank, (-1, now))
                self.others[rank] = (beat.entered, now if beat.entered != entered else when)
                alive |= now - self.others[rank][1] <= self.timeout_s
        return alive

    def _beat(self, store: dist.Store) -> None:
        self.beats += 1
        store.set(f"beat/{self.rank}", json.dumps(asdict(self._now())))

    def _now(self) -> Heartbeat:
        place, waits = stack_position(sys._current_frames().get(self.main))
        return Heartbeat(self.beats, self.entered, self.step, self.phase, time.monotonic() - self.since, place, waits)

    def _tell(self, store: dist.Store) -> None:
        """One rank tells for all; the others end when it has."""
        if store.add("telling", 1) == 1:
            before = self._all(store)
            for _ in range(max(SILENT_BEATS, round(SILENT_S / self.beat_s))):
                time.sleep(self.beat_s)
                self._beat(store)
            self.say(lost_rank(before, self._all(store), self.timeout_s))
            store.set("ended", "1")
        else:
            self._wait_until_told(store)

    def _wait_until_told(self, store: dist.Store) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not store.check(["ended"]) and time.monotonic() < deadline:
            time.sleep(self.beat_s)
            self._beat(store)

    def _all(self, store: dist.Store) -> Sequence[Heartbeat | None]:
        said = (read(store, f"beat/{rank}") for rank in range(self.size))
        return [None if text is None else Heartbeat(**json.loads(text)) for text in said]

    def _go_on_alone(self, error: Exception) -> None:
        """Without a store the others can't be asked: this rank's own clock is left."""
        while not self.stopped.wait(self.beat_s):
            if self._late():
                now = self._now()
                self.say(
                    LostRankError(
                        f"rank {self.rank} of {self.size}",
                        f"it has been in {now.where}, at {now.place}, for {self.timeout_s:g} s, and whoever kept the "
                        f"ranks' store has ended ({type(error).__name__})",
                        "see what rank 0 and its node say",
                    )
                )
                self.end(EXIT)
                return
