"""A pipeline's times: of each stage, forward and backward, and of each message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.arithmetic import Number
from cost_models.pipeline.schedule import SPLIT, chunks, rank_of


@dataclass(frozen=True)
class Times:
    """Seconds of one microbatch, each a number, an array or a symbol.

    forward, backward  of each of the v·d stages; the backward with what it computes again
    weight             the part of the backward that is the weights' gradients; zeros where a schedule doesn't split it
    send, back         of a message over each border: between stages s and s+1 forward, between s+1 and s backward
    """

    schedule: str
    ranks: int
    forward: tuple[Number, ...]
    backward: tuple[Number, ...]
    weight: tuple[Number, ...]
    send: tuple[Number, ...]
    back: tuple[Number, ...]

    @property
    def stages(self) -> int:
        return len(self.forward)

    @property
    def chunks(self) -> int:
        """v, stages on each rank."""
        return len(self.forward) // self.ranks

    @property
    def inputs(self) -> tuple[Number, ...]:
        """The part of the backward that is the inputs' gradients."""
        if self.schedule not in SPLIT:
            return self.backward
        return tuple(whole - part for whole, part in zip(self.backward, self.weight, strict=True))

    @property
    def batched(self) -> bool:
        """Whether any time is an array: the times of many pipelines."""
        everything = (*self.forward, *self.backward, *self.weight, *self.send, *self.back)
        return any(isinstance(time_s, np.ndarray) and time_s.ndim for time_s in everything)

    def rank(self, stage: int) -> int:
        return rank_of(self.schedule, stage, self.ranks)

    def of_rank(self, times_s: Sequence[Number], rank: int) -> Number:
        """The sum over a rank's stages."""
        return sum(times_s[stage] for stage in range(self.stages) if self.rank(stage) == rank)


def pipeline_times(
    schedule: str,
    forward_s: Sequence[Number],
    backward_s: Sequence[Number],
    send_s: Sequence[Number],
    weight_s: Sequence[Number] | None = None,
    return_s: Sequence[Number] | None = None,
    virtual_stages: int | None = None,
) -> Times:
    """The times, or a ValueError where they are not those of a pipeline."""
    count = chunks(schedule, virtual_stages)
    stages = len(forward_s)
    returned = send_s if return_s is None else return_s
    if stages < 1 or len(backward_s) != stages or len(send_s) != stages - 1 or len(returned) != stages - 1:
        raise ValueError(
            f"{stages} forwards, {len(backward_s)} backwards, {len(send_s)} sends and {len(returned)} returns are no "
            f"pipeline: d stages have d forwards, d backwards, and d-1 sends each way"
        )
    if stages % count:
        raise ValueError(f"{stages} stages are not {count} on each rank: give a multiple of {count}")
    if schedule in SPLIT and (weight_s is None or len(weight_s) != stages):
        held = "none" if weight_s is None else len(weight_s)
        raise ValueError(f"{schedule} splits the backward: weight_s has {held} of {stages} times of the weights' part")
    weight = tuple(weight_s) if weight_s is not None and schedule in SPLIT else (0.0,) * stages
    return Times(
        schedule, stages // count, tuple(forward_s), tuple(backward_s), weight, tuple(send_s), tuple(returned)
    )
