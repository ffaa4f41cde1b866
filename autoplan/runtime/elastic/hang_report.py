"""Who is behind where all ranks stand still: from what each said last.

1. whoever says nothing any more: its process is stopped, holds Python's lock for good, or its machine is gone;
2. else whoever has entered the fewest phases: all ranks go through the same ones;
3. of several, whoever isn't waiting for others: its main thread is outside of torch.distributed and this runtime.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from autoplan.errors import LostRankError
from autoplan.runtime.elastic.rendezvous import ranks_text

BETWEEN = "the script between steps"
TORCH, RUNTIME = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
WAITING = (f"{TORCH}/distributed/", f"{RUNTIME}/")


@dataclass(frozen=True)
class Heartbeat:
    """What a rank says of itself.

    beats    how often it has
    entered  how many phases it has entered
    step     optimizer steps it has taken
    since_s  seconds in the phase, by its own clock
    place    where its main thread stands, outside of torch
    waits    whether that thread is in torch.distributed or in this runtime
    """

    beats: int
    entered: int
    step: int
    phase: str
    since_s: float
    place: str
    waits: bool

    @property
    def where(self) -> str:
        at = f"after step {self.step}" if self.phase == BETWEEN else f"step {self.step + 1}"
        return f"{at}, {self.phase}"


def stack_position(innermost: FrameType | None) -> tuple[str, bool]:
    """A thread's file, line and function outside of torch, and whether it waits for other ranks."""
    if innermost is None:
        return "its end", False
    waits = innermost.f_code.co_filename.startswith(WAITING)
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    shown = innermost if frame is None else frame
    return f"{shown.f_code.co_filename}:{shown.f_lineno} ({shown.f_code.co_name})", waits


def stalled_ranks(before: Sequence[Heartbeat | None], after: Sequence[Heartbeat | None]) -> tuple[list[int], bool]:
    """The ranks that the others wait for, and whether these say nothing any more.

    before, after  each rank's beat at two moments far enough apart for a new one; None where it never had one
    """
    silent = [r for r, (old, new) in enumerate(zip(before, after, strict=True)) if new is None or new == old]
    if silent:
        return silent, True
    beats = [beat for beat in after if beat is not None]
    least = min(beat.entered for beat in beats)
    last = [r for r, beat in enumerate(beats) if beat.entered == least]
    busy = [r for r in last if not beats[r].waits]
    return busy or last, False


def lost_rank(before: Sequence[Heartbeat | None], after: Sequence[Heartbeat | None], timeout_s: float) -> LostRankError:
    """The error that names who is behind, and says where all stand."""
    ranks, silent = stalled_ranks(before, after)
    beats = [old if new is None else new for old, new in zip(before, after, strict=True)]
    one = len(ranks) == 1
    if silent:
        cause = f"{'it says' if one else 'they say'} nothing any more: stopped, out of memory, or the machine is gone"
        remedy = "see what its node says of the process"
    elif len(ranks) == len(beats):
        cause = f"no step has ended for {timeout_s:g} s, and all of them wait for one another"
        remedy = "see that every rank calls the same methods of the program, in the same order"
    else:
        cause = f"the others have waited for {'it' if one else 'them'} for {timeout_s:g} s"
        remedy = "see what it does there; train.py --timeout and plan.program(timeout_s=…) say how long others wait"
    return LostRankError(f"{ranks_text(ranks)} of {len(beats)}", f"{cause}. {table(ranks, beats)}", remedy)


def table(ranks: Sequence[int], beats: Sequence[Heartbeat | None]) -> str:
    """What each is in, and of those that are behind the line; who is alike in one entry, who is behind first."""
    said: dict[str, list[int]] = {}
    for rank in [*ranks, *(r for r in range(len(beats)) if r not in set(ranks))]:
        beat = beats[rank]
        where = "before its first word" if beat is None else beat.where
        at = f", at {beat.place}" if beat is not None and rank in ranks else ""
        said.setdefault(where + at, []).append(rank)
    return "; ".join(f"{ranks_text(alike)}: {where}" for where, alike in said.items())
