"""The order of each rank's actions, as exported programs run them; torch.distributed.pipelining's where it has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from cost_models.pipeline.schedule import ASYNCHRONOUS, ROUNDS, SPLIT, behind, check, round_size, warm_up

KINDS = "FBIW"


class Action(NamedTuple):
    """What a rank does with one microbatch on one of its stages.

    kind  F forward, B backward; where that is split I the inputs' gradients and W the weights' (torch's letters; Qi et
          al. call them B and W)
    """

    stage: int
    kind: Literal["F", "B", "I", "W"]
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


def actions(
    schedule: str, rank: int, ranks: int, microbatches: int, virtual_stages: int | None = None
) -> tuple[Action, ...]:
    """A rank's actions in order.

    Those without a flush have 1f1b's order, and ``microbatches`` are then those of the whole run (``next_actions`` has
    one step's).
    """
    rows = orders(schedule, ranks, microbatches, virtual_stages)[rank].tolist()
    return tuple(Action(stage, KINDS[kind], microbatch) for stage, kind, microbatch in rows)  # type: ignore[arg-type]


def next_actions(schedule: str, rank: int, ranks: int, microbatches: int, before: int) -> Iterator[Action]:
    """A step's actions on a rank of a schedule without a flush, microbatches numbered since the pipeline was empty.

    before  forwards that the rank has run since then
    """
    late = behind(schedule, rank, ranks)
    for number in range(before, before + microbatches):
        forward = Action(rank, "F", number)
        back = [Action(rank, "B", number - late)] if number >= late else []
        yield from [*back, forward] if schedule == "pipedream-2bw" else [forward, *back]


def last_actions(schedule: str, rank: int, ranks: int, before: int) -> tuple[Action, ...]:
    """What drains the pipeline after so many forwards: the backwards that are left."""
    late = min(before, behind(schedule, rank, ranks))
    return tuple(Action(rank, "B", number) for number in range(before - late, before))


def orders(schedule: str, ranks: int, microbatches: int, virtual_stages: int | None = None) -> np.ndarray:
    """The same of every rank as integers: [rank, action, (stage, place in KINDS, microbatch)]."""
    count = check(schedule, ranks, microbatches, virtual_stages)
    if schedule == "zbv":
        return np.stack([_v_shaped(rank, ranks, microbatches) for rank in range(ranks)])
    return _in_turns(schedule, ranks, microbatches, count)


def _in_turns(schedule: str, ranks: int, microbatches: int, count: int) -> np.ndarray:
    """In turn t = 0, 1, … a forward, a backward, the weights' gradients of an earlier backward.

    Backward n runs in turn n, forward n ``warm_up`` turns earlier, weights n on rank r r turns later: with that each
    rank holds the same at its peak, and the last ones fill the drain.
    """
    size = round_size(schedule, ranks, microbatches) if schedule in ROUNDS else microbatches
    rank, number = np.arange(ranks)[:, None], np.arange(count * microbatches)
    chunk, microbatch = number // size % count, number // size // count * size + number % size
    there, back = chunk * ranks + rank, (count - 1 - chunk) * ranks + rank
    warm = np.array([[warm_up(schedule, r, ranks, microbatches, count)] for r in range(ranks)])
    if schedule == "zero-bubble":
        parts = [("F", there, number - warm), ("I", back, number + 0 * rank), ("W", back, number + rank)]
    else:
        parts = [("F", there, number - warm), ("B", back, number + 0 * rank)]
    rows = [np.stack(np.broadcast_arrays(stage, KINDS.index(kind), microbatch), -1) for kind, stage, _ in parts]
    turn = np.concatenate([turn for _, _, turn in parts], 1)
    places = np.argsort(turn, axis=1, kind="stable")
    return np.take_along_axis(np.concatenate(rows, 1), places[:, :, None], 1)


def _v_shaped(rank: int, ranks: int, microbatches: int) -> np.ndarray:
    """ZBV: forward, inputs' and weights' gradients on the way down (stage r; 0, 1, 2) and up (stage 2d-1-r; 3, 4, 5),
    each counting its microbatches.

    Enough forwards down for the first to have come back up; then each forward is paid for by a backward of the same
    way; at the end what was put off of the weights' gradients. Laid out for 2d-1 microbatches or more; of fewer, those
    too many are left out.
    """
    count, behind = max(microbatches, 2 * ranks - 1), ranks - rank
    forward_down, back_down = [0], [1, 2]
    forward_up, back_up = [3], [4, 5]
    pattern = forward_down * (2 * behind - 1) + (forward_up + forward_down) * rank
    pattern += (forward_up + back_up) * behind
    pattern += (forward_down + back_down + forward_up + back_up) * (count - ranks - behind + 1)
    pattern += (back_down + forward_up + back_up) * (behind - 1)
    pattern += [1, 4] * rank + back_down * behind + [5] * rank + [2] * rank
    sign, microbatch = np.array(pattern), np.empty(len(pattern), dtype=int)
    for each in range(6):
        microbatch[sign == each] = np.arange(count)
    stage = np.where(sign < 3, rank, 2 * ranks - 1 - rank)
    kind = np.array([KINDS.index(name) for name in "FIW"])[sign % 3]
    return np.stack([stage, kind, microbatch], 1)[microbatch < microbatches]


def in_flight(schedule: str, ranks: int, microbatches: int, virtual_stages: int | None = None) -> tuple[int, ...]:
    """For each rank, the most activations it holds at once, each that of one microbatch on one of its v stages.

    Held from a stage's forward to its backward, where that is split to the pass for the weights' gradients. gpipe: m;
    1f1b: min(m, d-r); without a flush d-r; interleaved: one more than warm it up; zero-bubble: d + (v-1) rounds, the
    same on every rank, for rank r puts off the weights' gradients by r microbatches (Qi et al. 2023: no more than the
    first rank of 1f1b holds); zbv: 2d, or 2m, halves.
    """
    count = check(schedule, ranks, microbatches, virtual_stages)
    everything = count * microbatches
    if schedule in ASYNCHRONOUS:
        return tuple(range(ranks, 0, -1))
    if schedule in SPLIT:
        kind = orders(schedule, ranks, microbatches, virtual_stages)[:, :, 1]
        held = np.cumsum((kind == KINDS.index("F")) * 1 - (kind == KINDS.index("W")), axis=1)
        return tuple(held.max(axis=1).tolist())
    warm = (warm_up(schedule, rank, ranks, microbatches, count) for rank in range(ranks))
    return tuple(min(everything, forwards + 1) for forwards in warm)


def most_sending(schedule: str, ranks: int, microbatches: int, virtual_stages: int) -> int:
    """Messages that a rank has on their way at most: before another it waits for the oldest (``runtime.pipeline``).

    A send ends once its receive is posted, an action before the message is read. Where neighbours read what is sent in
    about the turn in which it is sent, two at a time take no longer than any number, however uneven the stages and long
    the messages; one would, where stages are uneven. They are behind by turns where a rank with several stages splits
    the backward, or has rounds of more microbatches than there are ranks. A test runs all orders that way.
    """
    if virtual_stages == 1 or not (schedule in SPLIT or round_size("interleaved", ranks, microbatches) > ranks):
        return 2
    return 3 * ranks
