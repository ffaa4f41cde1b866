"""The peak that a plan predicts: what a device of each pipeline rank holds at its busiest moment.

``rank_memory`` adds up everything that may stand at once, so that what the search lets pass fits. Here are the moments
themselves, each no more than that account; the worst of them is the prediction:

    forward   of a microbatch, those in flight before it held, and messages: one that comes, and those being sent
    backward  likewise of the first microbatch, gradients growing while activations are let go, one in half precision
              beside its copy in the sum's dtype; of a later one, all of them there
    reduced   gradients sent: fully_shard's buffers
    update    nothing in flight: gradients, and what the optimizer makes for a moment

Gradients that are summed beside fully_shard lie in buckets, which stay (``runtime.parallel.gradient_buckets``); others
go between steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoplan.cost.interleaved import ACCUMULATING, REDUCED, WAITING, is_interleaved
from autoplan.ir.choice import StageChoice, StageMemory
from autoplan.search.inter_op.parameter_shares import caches_as_parameters, standing_whole, told_apart
from autoplan.search.inter_op.stage_model import StageModel
from cost_models.pipeline.order import actions


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


def peaks_of(stage_model: StageModel, stages: Sequence[StageChoice], ranks: int) -> tuple[StageMemory, ...]:
    """For each pipeline rank what one of its devices holds at its busiest moment."""
    return tuple(rank_peak(stage_model.at(rank), stages[rank::ranks], rank, len(stages)) for rank in range(ranks))


def rank_peak(stage_model: StageModel, stages: Sequence[StageChoice], rank: int, count: int) -> StageMemory:
    """Of the stages of one pipeline rank, of ``count`` in all."""
    data, account = stage_model.data, stage_model.memory_account
    (need,) = told_apart(stage_model.memory_of(stages, (rank,)), data, stage_model.chain.held, stages)
    need = caches_as_parameters(need, data, stage_model.chain, stage_model.states, stages)
    each = stage_model.needs(stages)
    whole = each.by_rank(1)
    ahead = whole.buffers.item() * (1 - 1 / account.messages)  # beside the one that is read
    ahead += halves_bytes(stage_model, stages, rank)
    pp = stage_model.candidate.pp
    parts = [stage_peaks(stage_model, stage, rank + k * pp, count) for k, stage in enumerate(stages)]
    if data.prices.training:
        total, elsewhere = account.touched(whole).item(), account.elsewhere_once(whole).item()
        moments = [with_messages(moment, ahead) for moment in running(stage_model, stages, rank, parts)]
        alone, unit = (
            max(float(column[s.first : s.last].max()) for s in stages)
            for column in (stage_model.alone if data.zero else account.alone, stage_model.chain.parameters)
        )
        update = 0.0 if data.offloads else max((total - elsewhere) * account.update_share, alone)
        moments.append(Moment((total - elsewhere) * data.optimizer_share, 0.0, update))
        if data.zero:
            gradients = account.gradients_at(each, whole, stage_model.emptied[None, None]).item()
            moments.append(Moment(gradients, 0.0, unit * data.prices.stored))
    else:
        moments = [Moment(0.0, ahead, max(part.forward for part in parts))]
    worst = max(moments, key=lambda moment: moment.total)
    more = account.stashed[rank, 1] * account.once(whole).item()
    return replace(
        need,
        gradients=round(worst.gradients + more),
        activations=round(worst.activations),
        transients=round(worst.transients),
    )


def halves_bytes(stage_model: StageModel, stages: Sequence[StageChoice], rank: int) -> float:
    """What waits for the second half of a backward: rank r puts it off by r microbatches, the first stage's whole."""
    split = stages[rank == 0 :]
    return (rank + 1) * max((float(stage_model.chain.halves[s.first : s.last].sum()) for s in split), default=0.0)


def with_messages(moment: Moment, bytes: float) -> Moment:
    return replace(moment, activations=moment.activations + bytes)


def stage_peaks(stage_model: StageModel, stage: StageChoice, number: int, count: int) -> StagePeaks:
    """Goes through a stage's segments, forward and back."""
    chain, data = stage_model.chain, stage_model.data
    run = slice(stage.first, stage.last)
    full, part = stage_model.recomputed((stage.first, stage.last), stage.recompute, stage.selective)
    ahead, behind, ended = (bytes[run] for bytes in standing_whole(data, chain))
    hosts = data.offload == "activations"
    part, hosted = part & (not hosts), part & hosts
    entered = np.where(part, chain.selective_inputs[run], chain.kept_inputs[run])
    stays = np.where(part | hosted, chain.selective[run], (chain.kept - chain.halves)[run])
    entry = np.where(full, chain.inputs[run], np.where(hosted, 0.0, entered))
    kept = np.where(full, 0.0, stays - np.where(hosted, 0.0, entered))
    entry[0] = chain.inputs[stage.first] if number else 0.0  # what was received, or the ids of the batch
    returned = np.zeros(len(entry))
    returned[:-1] = chain.outputs[stage.last - 1] if number < count - 1 else 0.0  # gradients; the last segment has them
    constants = chain.constants[run].max()
    before = np.concatenate([[0.0], np.cumsum(kept + entry)])[:-1] + entry + constants
    beside = np.where(hosted, stays, 0.0)
    forward = before + chain.live_forward[run] + ahead + beside
    rerun = np.where(full, chain.live_forward[run] + chain.outputs[run], 0.0)
    # Where each microbatch's gradients are scattered, a segment's stand whole until its backward ends.
    whole_adding, whole_backward = (
        np.where(part, again[run], plain[run])
        for again, plain in (
            (chain.selective_adding, chain.live_adding), (chain.selective_backward, chain.live_backward),
        )
    )  # fmt: skip
    back = (whole_backward if data.scatters_each else whole_adding, whole_backward)
    moments = (np.maximum(live - entered + beside, rerun) + behind + returned for live in back)
    adding, first = (before + np.maximum(moment, ended) for moment in moments)
    own = (chain.parameters - chain.untouched - chain.elsewhere * data.scatters_each)[run] * data.prices.stored
    after = own[::-1].cumsum()[::-1] - own
    once = [*zip(after.tolist(), first.tolist(), strict=True), *widening(stage_model, run, after + own, before)]
    flight = float((kept + entry).sum() + constants)
    return StagePeaks(flight, float(forward.max()), tuple(once), float(adding.max()))


def widening(
    stage_model: StageModel, run: slice, gradients: np.ndarray, before: np.ndarray
) -> Iterator[tuple[float, float]]:
    """Of the first microbatch, as a segment's backward ends: all of its gradients in the dtype of their sum, and the
    largest of them, too, as the backward gave it (``runtime.parallel.gradient_buckets.widen``). What is summed over
    other ranks goes into buckets instead, fully_shard's into its own buffers.

    gradients, before  [segments]: of a segment and those behind it; activations in front of its backward
    """
    data, held = stage_model.data, stage_model.chain.held
    if data.shared or data.prices.stored <= 1:
        return
    for place, parameters in enumerate(held.segments[run]):
        sizes = [size for name, size in parameters if not data.beside(held.summed.get(name, ()))]
        if sizes:
            yield float(gradients[place]), float(before[place]) + max(sizes)


def running(
    stage_model: StageModel, stages: Sequence[StageChoice], rank: int, parts: Sequence[StagePeaks]
) -> Iterator[Moment]:
    """Moments of the forwards and backwards of one rank's stages."""
    account, held_there = stage_model.memory_account, stage_model.needs(stages).by_rank(1)
    buckets = bucketed(stage_model, stages, account.once(held_there).item())
    if stage_model.candidate.schedule == "interleaved" and not buckets:
        yield from by_turns(stage_model, stages, rank, parts)
        return
    whole, standing = account.gradients(held_there, ACCUMULATING).item(), account.gradients(held_there, WAITING).item()
    standing += buckets
    for held, acting, backwards in in_flight(stage_model, rank):
        mine = parts[acting]
        kept = sum(n * part.flight for n, part in zip(held, parts, strict=True))
        yield split(whole if backwards else standing, kept, mine.forward - mine.flight)
        if backwards or standing >= whole:
            yield split(whole, kept, mine.later - mine.flight)
            continue
        share = account.gradient_shares[ACCUMULATING] / stage_model.data.prices.stored
        yield from (split(min(whole, standing + grads * share), kept, rest - mine.flight) for grads, rest in mine.first)


def by_turns(
    stage_model: StageModel, stages: Sequence[StageChoice], rank: int, parts: Sequence[StagePeaks]
) -> Iterator[Moment]:
    """The same where a rank's stages take turns, action by action: a stage's gradients grow in its first backward, and
    are sent, so that their shards are left, in its last one. With few microbatches a stage is done with all of its
    backwards before the next begins, and no more than its own gradients stand."""
    candidate, account, each = stage_model.candidate, stage_model.memory_account, stage_model.needs(stages)
    own = [account.gradients(each, state).tolist() for state in (WAITING, REDUCED, ACCUMULATING)]
    share = account.gradient_shares[ACCUMULATING] / stage_model.data.prices.stored
    held, done = [0] * len(stages), [0] * len(stages)
    order = actions(candidate.schedule, rank, candidate.pp, candidate.microbatches, candidate.virtual_stages)
    for stage, kind, _ in order:
        acting = stage // candidate.pp
        mine, every = parts[acting], candidate.microbatches
        held[acting] += kind == "F"
        kept = sum(n * part.flight for n, part in zip(held, parts, strict=True))
        states = (WAITING if not n else REDUCED if n == every else ACCUMULATING for n in done)
        standing = sum(own[state][k] for k, state in enumerate(states))
        if kind == "F":
            yield split(standing, kept, mine.forward - mine.flight)
            continue
        if done[acting]:
            yield split(standing, kept, mine.later - mine.flight)
        else:
            yield from (split(standing + grads * share, kept, rest - mine.flight) for grads, rest in mine.first)
        done[acting] += 1
        held[acting] -= 1


def split(gradients: float, kept: float, more: float) -> Moment:
    """A moment at which ``more`` stands than what is kept of the microbatches in flight, or less where some of it is
    let go."""
    return Moment(gradients, kept + min(more, 0.0), max(more, 0.0))


def bucketed(stage_model: StageModel, stages: Sequence[StageChoice], total: float) -> float:
    """Bytes of gradients that lie in buckets where there is no fully_shard: those that are summed over an axis.

    total  bytes of the stages' parameters
    """
    data = stage_model.data
    if data.zero:
        return 0.0
    if data.compressed:
        return data.gradient_share * sum(
            sum(unit.values()) for stage in stages for unit in stage_model.unit_bytes((stage.first, stage.last))
        )
    if data.size > 1:
        return total * data.gradient_share
    return sum(sum(stage_model.summed_bytes((stage.first, stage.last)).values()) for stage in stages)


def in_flight(stage_model: StageModel, rank: int) -> Iterator[tuple[tuple[int, ...], int, bool]]:
    """(microbatches in flight of each of a rank's stages, the one that acts, whether a backward came before) at the
    moments at which they are most."""
    many, moments = stage_model.candidate.microbatches, stage_model.moments[rank]
    if is_interleaved(stage_model.candidate.schedule):
        yield from ((tuple(row), acting, many > 1) for row in moments.tolist() for acting, n in enumerate(row) if n)
        return
    most = int(moments.max())
    yield (most,), 0, False
    if many > 1:
        again = most if most < many else most - 1
        yield (max(1, again),), 0, True
