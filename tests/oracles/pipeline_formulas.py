"""A step's time and its bubble as formulas, of numbers, arrays and symbols.

f, b are the seconds of one microbatch's forward and backward on one stage, where the backward is split b = i + w (the
inputs' gradients, the weights'). Where stages are equal and messages free a step takes m·v·(f + b) and then

    gpipe, 1f1b      (d-1)·(f + b)                   bubble (d-1)/(m+d-1)      Huang et al. 2019, section 2.3
    interleaved      (d-1)·(f + b)                   bubble (d-1)/(v·m+d-1)    Narayanan et al. 2021, section 2.2; m ≥ d
    zero-bubble      (d-1)·(f + i - min(f, i, w))    with w least f + i - w    Qi et al. 2023, table 2; m ≥ d
    zbv              (d-1)·max(i, 2(i-w)) + (d-2)·max(0, w-i)                  f ≤ i, m ≥ 2d-1
    without a flush  nothing

ZBV's is the span over all ranks, with f = i = w (d-1)·f: rank r starts r forwards after rank 0 and so ends later; no
rank waits in between, hence its name. Qi et al. take the optimizer out of that wait by validating it afterwards.
Outside of the microbatches stated a step takes longer: ``timeline.simulate`` has it exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.arithmetic import Number, maximum, minimum
from cost_models.pipeline.bottleneck import bottleneck_of
from cost_models.pipeline.schedule import ASYNCHRONOUS, chunks
from cost_models.pipeline.times import Times, pipeline_times


def bubble_fraction(
    ranks: int,
    microbatches: Number,
    schedule: str = "1f1b",
    virtual_stages: int | None = None,
    *,
    forward_s: Number = 1,
    backward_s: Number = 2,
    weight_s: Number = 1,
) -> Number:
    """The share of a step in which ranks wait where stages are equal and messages free; see the module for formulas.

    forward_s, backward_s, weight_s  of one microbatch on one stage; they matter where the backward is split
    """
    count = chunks(schedule, virtual_stages)
    if schedule in ASYNCHRONOUS:
        return 0.0 * microbatches
    if schedule not in ("zero-bubble", "zbv"):
        return (ranks - 1) / (count * microbatches + ranks - 1)
    bubble_s = _split_bubble_s(schedule, ranks, forward_s, backward_s - weight_s, weight_s)
    return bubble_s / (count * microbatches * (forward_s + backward_s) + bubble_s)


def _split_bubble_s(schedule: str, ranks: int, forward_s: Number, input_s: Number, weight_s: Number) -> Number:
    """What a step with a split backward takes beyond its work: the module's third and fourth formula."""
    if schedule == "zero-bubble":
        return (ranks - 1) * (forward_s + input_s - minimum(forward_s, input_s, weight_s))
    early_s = maximum(input_s, 2 * (input_s - weight_s))
    return (ranks - 1) * early_s + maximum(0, ranks - 2) * maximum(0, weight_s - input_s)


def step_seconds(
    forward_s: Sequence[Number],
    backward_s: Sequence[Number],
    send_s: Sequence[Number],
    microbatches: Number,
    schedule: str = "1f1b",
    *,
    weight_s: Sequence[Number] | None = None,
    return_s: Sequence[Number] | None = None,
    virtual_stages: int | None = None,
) -> Number:
    """Step time in closed form, in seconds; arguments as of ``simulate``.

    gpipe, 1f1b: Σ(f + b) + Σ messages + (m-1)·``bottleneck_of``, linear in the stages' times but for the
    bottleneck, as an ILP wants it. Exact for gpipe, and for 1f1b with equal stages and free messages. In 1f1b a
    bottleneck early in the pipeline hides part of what lies behind it, so with unequal stages this is too long: by
    under 1% on average where stages are within 5% of one another, by up to a quarter where they are not.

    The others: m·``bottleneck_of`` and the module's bubble of the mean stage, with the mean message as often as
    ``_messages`` says. Exact for equal stages and equal messages short enough for the steady state to hide, else near.
    ``simulate`` has no such error.
    """
    times = pipeline_times(schedule, forward_s, backward_s, send_s, weight_s, return_s, virtual_stages)
    steady_s = bottleneck_of(times)
    if schedule in ASYNCHRONOUS:
        return microbatches * steady_s
    if schedule in ("gpipe", "1f1b"):
        through = sum(times.forward) + sum(times.backward) + sum(times.send) + sum(times.back)
        return through + (microbatches - 1) * steady_s
    return microbatches * steady_s + _bubble_s(times)


def _bubble_s(times: Times) -> Number:
    """What a step takes beyond m times its bottleneck."""
    forward_s, input_s, weight_s = (sum(part) / times.stages for part in (times.forward, times.inputs, times.weight))
    borders = [s for s in range(times.stages - 1) if times.rank(s) != times.rank(s + 1)]
    message_s = sum(times.send[s] + times.back[s] for s in borders) / max(1, 2 * len(borders))
    messages_s = _messages(times) * message_s if borders else 0.0
    if times.schedule == "interleaved":
        return (times.ranks - 1) * (forward_s + input_s) + messages_s
    return _split_bubble_s(times.schedule, times.ranks, forward_s, input_s, weight_s) + messages_s


def _messages(times: Times) -> int:
    """Messages that nothing hides, read off the simulation: on the way through all stages and back; where the backward
    is split also on the way back and forth of the microbatches that come to the last rank just in time (m ≥ 2d)."""
    ranks, count = times.ranks, times.chunks
    if times.schedule == "interleaved":
        return 2 * (count * ranks - 1)
    return 5 * ranks - 7 if times.schedule == "zbv" else (count + 3) * ranks - 4
