"""A wish to stop, SIGTERM, heard at the end of a step by all ranks alike.

Schedulers and torchrun send it before they end a job for good: there is time to save what was reached.
"""

from __future__ import annotations

import signal
from types import FrameType

import torch
import torch.distributed as dist


class StopRequest:
    """Holds SIGTERM back while it is entered.

        with StopRequest() as stop:
            for step in …:
                …
                if stop.agreed():
                    break
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: signal._HANDLER = signal.SIG_DFL

    def __enter__(self) -> StopRequest:
        self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def agreed(self, device: torch.device | str = "cpu") -> bool:
        """Whether any rank was asked to stop; every rank calls it, and all are told the same. The first one says so.

        device  where the process group reduces
        """
        asked = torch.tensor(int(self.asked), dtype=torch.int32, device=device)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        if asked.item() and dist.get_rank() == 0:
            print("SIGTERM: this step is the last", flush=True)
        return bool(asked.item())
