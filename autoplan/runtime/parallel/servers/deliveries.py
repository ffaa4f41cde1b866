"""New values on their way from one server to workers that may be late, or gone.

A server waits for those who pull only where they are more than LATE updates behind: until then it keeps what it has
sent them. A worker whose process has ended is left out from then on, as long as there are backups for those lost.
"""

from collections import deque
from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from autoplan.errors import LostRankError
from autoplan.ir.buckets import LATE
from autoplan.runtime.parallel.servers.backups import Backups


class Deliveries:
    """Of one server. ``tell`` is told of each worker that is lost."""

    def __init__(self, group: ProcessGroup, backups: Backups, tell: Callable[[str], None]) -> None:
        self.group, self.backups, self.tell = group, backups, tell
        self.lost: set[int] = set()
        self.on_the_way: deque[list[tuple[int, dist.Work, Tensor]]] = deque()

    def updated(self) -> None:
        """An update begins to be sent, once those of LATE before it have come."""
        while len(self.on_the_way) > LATE:
            self.wait_for_oldest()
        self.on_the_way.append([])
        self.backups.updated()

    def send(self, flat: Tensor) -> None:
        """Values of the update that has begun, to every worker that is there."""
        for rank in range(self.group.size()):
            if rank != self.group.rank() and rank not in self.lost:
                try:
                    work = dist.isend(flat, group=self.group, group_dst=rank)
                except RuntimeError as error:
                    self.lose(rank, error)
                    continue
                if work is not None:
                    self.on_the_way[-1].append((rank, work, flat))

    def settle(self) -> None:
        """Waits until all workers have all of it."""
        while self.on_the_way:
            self.wait_for_oldest()

    def wait_for_oldest(self) -> None:
        for rank, work, _ in self.on_the_way.popleft():
            if rank not in self.lost:
                try:
                    work.wait()
                except RuntimeError as error:
                    self.lose(rank, error)
        self.backups.received()

    def lose(self, rank: int, error: Exception) -> None:
        """LostRankError where more workers are lost than there are backups."""
        self.lost.add(rank)
        spare, cause = self.backups.size - self.backups.first, str(error).partition("\n")[0][:200]
        if len(self.lost) > spare:
            raise LostRankError(
                f"workers {', '.join(map(str, sorted(self.lost)))}",
                f"they are gone ({cause}), and there are {spare} backups", "start it anew from a checkpoint",
            ) from error
        self.tell(
            f"worker {rank} is gone ({cause}): training goes on without it, until the next checkpoint, evaluation or "
            "other call that all ranks make, which fails"
        )
