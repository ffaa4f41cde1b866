"""What one more microbatch adds to a step."""

from __future__ import annotations

from collections.abc import Iterable

from cost_models.arithmetic import Number, maximum
from cost_models.pipeline.schedule import SPLIT
from cost_models.pipeline.times import Times


def bottleneck_of(times: Times) -> Number:
    """What one more microbatch adds to the step, in seconds.

    gpipe: the slowest forward or message, and the slowest backward or message. 1f1b, also without a flush: the largest,
    over stages i … j next to each other, of (Σ(f + b) + Σ messages both ways between them) / (j - i + 1): stage i lets
    a microbatch in for each that returns, and between i and j only j - i + 1 are under way, so messages are paid for
    although nothing else waits (the greatest cycle mean of the schedule's precedence graph; Baccelli et al. 1992,
    theorem 3.28). Or a message and its reader's forward, or backward: the next one's receive is posted behind that.
    zero-bubble with one stage a rank: the same, with w of stage i alone, for the others send their inputs' gradients
    before. interleaved, and where ranks hold several stages: the busiest rank, or the busiest wire.
    """
    if times.schedule == "gpipe":
        return maximum(*times.forward, *_paid(times.send)) + maximum(*times.backward, *_paid(times.back))
    if times.chunks > 1 or times.schedule == "interleaved":
        return _busiest(times)
    cycles = list(times.weight)
    means = []
    for first in range(times.stages):
        cycle_s = cycles[first]
        for last in range(first, times.stages):
            cycle_s = cycle_s + times.forward[last] + times.inputs[last]
            means.append(cycle_s / (last - first + 1))
            cycle_s = cycle_s + times.send[last] + times.back[last] if last < times.stages - 1 else cycle_s
    for border, (send_s, back_s) in enumerate(zip(times.send, times.back, strict=True)):
        read_s = times.forward[border + 1] + (times.inputs[border + 1] if times.schedule in SPLIT else 0)
        means += [message_s + read_s for message_s in _paid([send_s])]
        means += [message_s + times.backward[border] for message_s in _paid([back_s])]
    return maximum(*means)


def _busiest(times: Times) -> Number:
    """The time of the busiest rank, or of the busiest wire from one rank to another, for each microbatch."""
    work = [times.of_rank(times.forward, rank) + times.of_rank(times.backward, rank) for rank in range(times.ranks)]
    wires: dict[tuple[int, int], Number] = {}
    for stage in range(times.stages - 1):
        here, there = times.rank(stage), times.rank(stage + 1)
        if here != there:
            wires[here, there] = wires.get((here, there), 0) + times.send[stage]
            wires[there, here] = wires.get((there, here), 0) + times.back[stage]
    return maximum(*work, *_paid(wires.values()))


def _paid(messages_s: Iterable[Number]) -> list[Number]:
    """Without those that are free: they are never the longest, and formulas read better."""
    return [message_s for message_s in messages_s if not (isinstance(message_s, int | float) and message_s == 0)]
