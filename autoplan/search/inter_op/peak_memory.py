"""The busiest moment of each pipeline rank: what its devices hold then, by what it is of.

The search counts everything that may stand at once (``Loads.memory``), so that what it lets pass fits. A plan says what
does stand at once, at the worst of these moments:

    forward   of a microbatch, those in flight before it held
    backward  of the first microbatch, gradients growing while activations are let go; of a later one, all of them there
    reduced   gradients sent: fully_shard's buffers
    update    nothing in flight: gradients, and what the optimizer makes for a moment

Gradients that are summed beside fully_shard lie in buckets, which stay (``runtime.parallel.gradient_buckets``); others
go between steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.cost import update_bytes
from autoplan.cost.interleaved import runs_rounds, splits
from autoplan.cost.zero_costs import DataAxis
from autoplan.ir.choice import StageChoice, StageMemory
from autoplan.search.inter_op.interleaved_ranks import of_rank
from autoplan.search.inter_op.stage_model import Loads


@dataclass(frozen=True)
class Moment:
    """Bytes on one device beside parameters and the optimizer's state."""

    gradients: float
    activations: float
    transients: float

    @property
    def total(self) -> float:
        return self.gradients + self.activations + self.transients


@dataclass(frozen=True)
class StagePeaks:
    """One stage, bytes of one microbatch.

    flight    from its forward to its backward
    forward   at most in its forward, over what is held of others
    first     at most in the backward of the first microbatch: (gradients by then, activations and what is beside them)
    later     at most in that of a later one, gradients aside
    """

    flight: float
    forward: float
    first: tuple[tuple[float, float], ...]
    later: float


def peaks_of(loads: Loads, stages: Sequence[StageChoice], ranks: int) -> tuple[StageMemory, ...]:
    """For each pipeline rank what one of its devices holds at its busiest moment."""
    found = []
    for rank in range(ranks):
        numbers, mine = zip(*of_rank(stages, rank, ranks), strict=True)
        found.append(rank_peak(loads.at(rank), mine, numbers, len(stages)))
    return tuple(found)


def rank_peak(loads: Loads, stages: Sequence[StageChoice], numbers: Sequence[int], count: int) -> StageMemory:
    """One rank's stages; ``numbers`` of ``count``."""
    data, sizes = loads.data, parameters_of(loads, stages)
    total = sum(sizes.values())
    buffers = sum(buffers_of(loads, stage, number, count) for stage, number in zip(stages, numbers, strict=True))
    parts = [stage_peaks(loads, stage, number, count) for stage, number in zip(stages, numbers, strict=True)]
    moments = list(running(loads, stages, numbers, parts, total)) if data.prices.training else [
        Moment(0.0, 0.0, max(part.forward for part in parts))
    ]  # fmt: skip
    if data.prices.training:
        largest = max(sizes.values(), default=0) * data.optimizer_share
        beside = update_bytes(total * data.optimizer_share, largest, not data.prices.device.composes)
        if loads.whole is not None:
            beside = max(beside, loads.whole.standing_bytes(max(sizes.values(), default=0), data))
        moments.append(Moment(total * data.optimizer_share, 0.0, 0.0 if data.offloads else beside))
        if data.zero:
            unit = max(float(loads.chain.parameters[s.first : s.last].max()) for s in stages)
            moments.append(Moment(total * data.gradient_share, 0.0, unit * data.prices.stored))
    worst = max(moments, key=lambda moment: moment.total)
    return StageMemory(
        round(total * data.parameter_share),
        round(worst.gradients),
        round(total * data.states_share(loads.states)),
        round(worst.activations + buffers),
        round(worst.transients),
        round(total * data.host_share(loads.states) + hosted_of(loads, stages, numbers)),
    )


def hosted_of(loads: Loads, stages: Sequence[StageChoice], numbers: Sequence[int]) -> float:
    """Bytes of activations in a host's memory apart, where it holds most."""
    found = [loads.hosted_bytes((s.first, s.last), loads.recomputed((s.first, s.last), s.recompute, s.selective)[1])
             for s in stages]  # fmt: skip
    moments = (held for held, _, _ in in_flight(loads, numbers))
    return max(sum(n * bytes for n, bytes in zip(held, found, strict=True)) for held in moments)


def parameters_of(loads: Loads, stages: Sequence[StageChoice]) -> dict[str, int]:
    """Local bytes of each parameter that the stages read."""
    return dict(pair for s in stages for held in loads.chain.held[s.first : s.last] for pair in held)


def buffers_of(loads: Loads, stage: StageChoice, number: int, count: int) -> float:
    """What torch's engine receives into, of all microbatches, as long as the program lives: activations, and gradients
    of those that leave. Where the backward is split, the gradients that it sends back stay until the next step."""
    chain, many = loads.chain, loads.setting.microbatches
    entering = many * chain.inputs[stage.first] if number else 0.0
    leaving = many * chain.outputs[stage.last - 1] if number < count - 1 else 0.0
    return entering * (2 if splits(loads.setting.schedule) else 1) + leaving


def stage_peaks(loads: Loads, stage: StageChoice, number: int, count: int) -> StagePeaks:
    """Goes through a stage's segments, forward and back."""
    chain, data = loads.chain, loads.data
    run = slice(stage.first, stage.last)
    full, part = loads.recomputed((stage.first, stage.last), stage.recompute, stage.selective)
    whole, grads = data.gathered_segments
    gathered = (whole + grads) * chain.parameters[run]
    kept, entry = chain.kept[run] - chain.kept_inputs[run], chain.kept_inputs[run].copy()
    hosts = data.offload == "activations"
    again = full if hosts else full | part
    entry = np.where(again, chain.inputs[run], np.where(part, 0.0, entry))
    selective = chain.selective[run] if hosts else np.maximum(chain.selective[run] - chain.inputs[run], 0.0)
    kept = np.where(full, 0.0, np.where(part, selective, kept))
    entry[0] = 0.0  # the ids of the batch, or what was received
    leaving = chain.outputs[stage.last - 1] if number < count - 1 else 0.0
    constants = chain.constants[run].max()
    before = np.concatenate([[0.0], np.cumsum(kept + entry)])[:-1] + entry + constants
    beside = np.where(part, selective - (0.0 if hosts else chain.doubled[run]), 0.0)
    forward = before + chain.live_forward[run] + gathered + beside * hosts
    rerun = np.where(again, chain.live_forward[run] + chain.outputs[run] + beside, 0.0)
    # Where each microbatch's gradients are scattered, a segment's stand whole until then: ``gathered`` has them.
    back = (chain.live_adding[run], chain.live_adding[run] if data.scatters_each else chain.live_backward[run])
    adding, first = (
        before + np.maximum(live - chain.kept_inputs[run] + beside, rerun) + gathered + leaving for live in back
    )
    own = chain.parameters[run] * data.prices.stored
    after = own[::-1].cumsum()[::-1] - own
    once = tuple(zip(after.tolist(), first.tolist(), strict=True))
    flight = float((kept + entry).sum() + leaving + constants)
    return StagePeaks(flight, float(forward.max()), once, float(adding.max()))


def running(
    loads: Loads, stages: Sequence[StageChoice], numbers: Sequence[int], parts: Sequence[StagePeaks], total: float
) -> Iterator[Moment]:
    """Moments of the forwards and backwards of one rank's stages."""
    standing = bucketed(loads, stages)
    whole = total * accumulated_share(loads.data)
    for held, acting, backwards in in_flight(loads, numbers):
        mine = parts[acting]
        kept = sum(n * part.flight for n, part in zip(held, parts, strict=True))
        yield split(whole if backwards else standing, kept, mine.forward - mine.flight)
        if backwards or standing:
            yield split(whole, kept, mine.later - mine.flight)
            continue
        share = accumulated_share(loads.data) / loads.data.prices.stored
        yield from (split(grads * share, kept, rest - mine.flight) for grads, rest in mine.first)


def accumulated_share(data: DataAxis) -> float:
    """Bytes of gradients between microbatches, per byte of parameters: where they are scattered once a step their
    shards come after that."""
    late = data.zero > 0 and not data.scatters_each
    return data.gradient_share - (data.shard_share if late else 0.0)


def split(gradients: float, kept: float, more: float) -> Moment:
    """A moment at which ``more`` stands than what is kept of the microbatches in flight, or less where some of it is
    let go."""
    return Moment(gradients, kept + min(more, 0.0), max(more, 0.0))


def bucketed(loads: Loads, stages: Sequence[StageChoice]) -> float:
    """Bytes of gradients that lie in buckets: those that are summed over an axis beside fully_shard."""
    data = loads.data
    if data.zero == 0 and data.size > 1:
        return sum(parameters_of(loads, stages).values()) * data.gradient_share
    summed = sum(loads.chain.summed[s.first : s.last].sum() for s in stages)
    return float(summed) * data.gradient_share if data.zero == 0 else 0.0


def in_flight(loads: Loads, numbers: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int, bool]]:
    """(microbatches in flight of each of a rank's stages, the one that acts, whether a backward came before) at the
    moments at which they are most."""
    setting, many = loads.setting, loads.setting.microbatches
    if runs_rounds(setting.schedule):
        assert loads.rounds is not None
        for row in loads.rounds.held[numbers[0] % setting.pp]:
            for acting in range(len(numbers)):
                if row[acting]:
                    yield tuple(int(n) for n in row), acting, many > 1
        return
    most = loads.in_flight[numbers[0]]
    yield (most,), 0, False
    if many > 1:
        again = most if most < many else most - 1
        yield (max(1, again),), 0, True
