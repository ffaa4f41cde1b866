"""Seconds of actions and bytes of ranks for a chain cut into v·d stages, v on each rank.

Stage k of v·d holds a run of segments and is on rank k mod d. What is to be chosen is a ``Division``: where each stage
ends, and of its segments that may be recomputed how many are, in full and then selectively. ``ChainCosts`` answers for
many divisions at once how long the schedule takes (``runs``) and by what ranks exceed the memory limit
(``before_recomputation``, by ``rank_memory``'s account).
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from autoplan.cost.interleaved import (
    SENT_BACK,
    SENT_FORWARD,
    CriticalPath,
    InterleavedSchedule,
    ManyRuns,
    split_backward,
    splits,
)
from autoplan.ir.choice import StageChoice
from autoplan.search.inter_op.partition import Interval
from autoplan.search.inter_op.rank_excess import RankExcess, padded
from autoplan.search.inter_op.rank_memory import SegmentBytes
from autoplan.search.inter_op.recomputation import prefix
from autoplan.search.inter_op.stage_model import FULL, PART, StageModel


@dataclass(frozen=True)
class Division:
    """A partition of the chain into stages, with the number of segments that each recomputes, in full and
    selectively."""

    stages: tuple[Interval, ...]
    full: tuple[int, ...]
    part: tuple[int, ...]

    @staticmethod
    def of(choices: Sequence[StageChoice]) -> Division:
        """From the stages as a plan names them."""
        return Division(
            tuple((s.first, s.last) for s in choices), tuple(s.recompute for s in choices),
            tuple(s.selective for s in choices),
        )  # fmt: skip

    @property
    def choices(self) -> tuple[StageChoice, ...]:
        """The stages as a plan names them."""
        return tuple(StageChoice(*at, *counts) for at, *counts in zip(self.stages, self.full, self.part, strict=True))


@dataclass(frozen=True)
class Divisions:
    """Many divisions of a chain, with as many stages each.

    ends        [many, v·d + 1]: where each stage begins, and the chain's end
    full, part  [many, v·d]
    """

    ends: np.ndarray
    full: np.ndarray
    part: np.ndarray

    @staticmethod
    def of(division: Division) -> Divisions:
        ends = [first for first, _ in division.stages] + [division.stages[-1][1]]
        return Divisions(np.array([ends]), np.array([division.full]), np.array([division.part]))

    def __len__(self) -> int:
        return len(self.ends)

    def picked(self, numbers: np.ndarray) -> Divisions:
        return Divisions(self.ends[numbers], self.full[numbers], self.part[numbers])

    @property
    def keys(self) -> list[bytes]:
        """One for each; those of equal divisions are equal."""
        return [row.tobytes() for row in np.concatenate([self.ends, self.full, self.part], axis=1)]

    def one(self, number: int) -> Division:
        stages = tuple(itertools.pairwise(self.ends[number].tolist()))
        return Division(stages, tuple(self.full[number].tolist()), tuple(self.part[number].tolist()))


@dataclass(frozen=True)
class ChainCosts:
    """The seconds and bytes of the chain's N segments in one microbatch, and their schedule.

    backward_s, weights_s   the second is the part of the first that waits where the schedule splits the backward
    whole_s                 what waits on the first stage, which has no inputs' gradients
    full_s, part_s          to run a segment again, in full or selectively
    messages_s              [v·d, N] of one message to a stage that begins with the segment
    memory                  the account of its bytes
    recompute               "none", "full", "selective" or "auto"
    memory_limit            bytes of a device
    """

    forward_s: np.ndarray
    backward_s: np.ndarray
    weights_s: np.ndarray
    whole_s: np.ndarray
    full_s: np.ndarray
    part_s: np.ndarray
    messages_s: np.ndarray
    memory: SegmentBytes
    recompute: str
    schedule: str
    ranks: int
    virtual_stages: int
    microbatches: int
    memory_limit: float
    interleaved: InterleavedSchedule

    def __len__(self) -> int:
        return len(self.forward_s)

    @property
    def stages(self) -> int:
        return self.ranks * self.virtual_stages

    @property
    def repeated(self) -> np.ndarray:
        """Whether each segment may be recomputed."""
        return self.memory.repeated.astype(bool)

    @cached_property
    def key(self) -> Hashable:
        """Equal where all costs are; the actions are those of the schedule and the sizes."""
        parts = [getattr(self, f.name) for f in fields(self) if f.name not in ("memory", "interleaved")]
        parts += [getattr(self.memory, f.name) for f in fields(self.memory)] + [self.interleaved.emptied]
        return tuple(part.tobytes() if isinstance(part, np.ndarray) else part for part in parts)

    @cached_property
    def sums(self) -> dict[str, np.ndarray]:
        """Seconds of the first 0, 1, … segments; of recomputation, of the first that may be recomputed."""
        columns = {name: getattr(self, name) for name in ("forward_s", "backward_s", "weights_s", "whole_s")}
        columns |= {name: getattr(self, name)[self.repeated] for name in ("full_s", "part_s")}
        return {name: prefix(column) for name, column in columns.items()}

    def pinned(self, stages: Sequence[Interval]) -> Division:
        """These stages with as much recomputed as ``recompute`` asks for, nothing where it is free."""
        none, counts = (0,) * len(stages), self.counts(stages)
        return Division(
            tuple(stages), counts if self.recompute == FULL else none, counts if self.recompute == PART else none
        )

    def counts(self, stages: Sequence[Interval]) -> tuple[int, ...]:
        """Segments of each stage that may be recomputed."""
        return tuple(int(self.memory.index[last] - self.memory.index[first]) for first, last in stages)

    def counts_of(self, many: Divisions) -> np.ndarray:
        """[many, v·d]: segments of each stage that may be recomputed."""
        return np.diff(self.memory.index[many.ends], axis=1)

    def durations_s(self, division: Division) -> np.ndarray:
        """[DURATIONS, v·d]: as ``all_durations_s`` of one division."""
        return np.asarray(self.all_durations_s(Divisions.of(division))[0])

    def all_durations_s(self, many: Divisions) -> np.ndarray:
        """[many, DURATIONS, v·d]: seconds of each stage's forward, backward or inputs' gradients, weights' gradients,
        and of the messages that its forward and its backward read."""
        forward_s, backward_s, weights_s = (
            np.diff(self.sums[name][many.ends], axis=1) for name in ("forward_s", "backward_s", "weights_s")
        )
        again_s, none = self.again_s(many), np.zeros_like(forward_s)
        spent = np.stack([forward_s, backward_s + again_s, none, none, none], axis=1)
        if splits(self.schedule):
            spent[:, 1] -= weights_s
            spent[:, 2] = weights_s
            spent[:, 1, 0] = 0.0
            spent[:, 2, 0] = self.sums["whole_s"][many.ends[:, 1]] + again_s[:, 0]
        messages_s = self.messages_s[np.arange(1, self.stages), many.ends[:, 1:-1]]
        spent[:, SENT_FORWARD, 1:] = messages_s
        spent[:, SENT_BACK, :-1] = messages_s
        return spent

    def again_s(self, many: Divisions) -> np.ndarray:
        """[many, v·d]: seconds of what each stage recomputes."""
        begin = self.memory.index[many.ends[:, :-1]]
        middle = begin + many.full
        full_s, part_s = self.sums["full_s"], self.sums["part_s"]
        return np.asarray(full_s[middle] - full_s[begin] + part_s[middle + many.part] - part_s[middle])

    def by_rank(self, of_stages: np.ndarray) -> np.ndarray:
        """[…, v, d] of […, v·d]."""
        return of_stages.reshape(*of_stages.shape[:-1], self.virtual_stages, self.ranks)

    @cached_property
    def held_by_rank(self) -> np.ndarray:
        """[d, moments, v]: the microbatches in flight at the moments of all ranks."""
        return padded(self.interleaved.held).astype(float)

    @cached_property
    def standing(self) -> tuple[np.ndarray, np.ndarray]:
        """[d, moments, v], [d, 1, v]: what stands then of gradients, and with nothing in flight."""
        emptied = self.interleaved.emptied
        return padded(self.interleaved.standing), np.broadcast_to(emptied, (self.ranks, 1, len(emptied)))

    def before_recomputation(self, many: Divisions) -> RankExcess:
        """What ranks need of these stages, whatever they recompute."""
        ends = np.ascontiguousarray(many.ends.T)
        return RankExcess.of(self.memory, self.held_by_rank, self.standing, ends, self.memory_limit)

    def most_excess(self, many: Divisions) -> np.ndarray:
        """[many]: bytes by which the fullest rank exceeds the limit."""
        return self.before_recomputation(many).most(many.full.T, many.part.T)

    def over(self, division: Division) -> float:
        """The same of one division."""
        return float(self.most_excess(Divisions.of(division))[0])

    def path(self, division: Division) -> CriticalPath:
        return self.interleaved.script.path(self.durations_s(division))

    def step_s(self, division: Division) -> float:
        return self.path(division).step_s

    def runs(self, many: Divisions) -> ManyRuns:
        """The schedule run on each."""
        return self.interleaved.script.line.runs(self.all_durations_s(many).reshape(len(many), -1))

    @cached_property
    def most_held(self) -> np.ndarray:
        """[d, v]: the most microbatches in flight on each stage of each rank."""
        return np.stack([held.max(axis=0) for held in self.interleaved.held])


def chain_costs_of(stage_model: StageModel, memory_limit: float) -> ChainCosts:
    """The chain of a candidate, as its schedule runs it."""
    chain, candidate = stage_model.chain, stage_model.candidate
    (backward_s, weights_s), (whole_s, _) = (divided_backward(stage_model, first=first) for first in (False, True))
    messages = np.tile([stage_model.border_s(rank)[:-1] for rank in range(candidate.pp)], (candidate.virtual_stages, 1))
    messages[0] = 0.0
    assert stage_model.interleaved is not None
    return ChainCosts(
        forward_s=chain.forward_s,
        backward_s=backward_s,
        weights_s=weights_s,
        whole_s=whole_s,
        full_s=chain.forward_s,
        part_s=chain.again_s,
        messages_s=messages,
        memory=stage_model.memory_account,
        recompute=candidate.recompute,
        schedule=candidate.schedule,
        ranks=candidate.pp,
        virtual_stages=candidate.virtual_stages,
        microbatches=candidate.microbatches,
        memory_limit=memory_limit,
        interleaved=stage_model.interleaved,
    )


def divided_backward(stage_model: StageModel, *, first: bool) -> tuple[np.ndarray, np.ndarray]:
    """(seconds of each segment's backward, of these for its parameters' gradients) on the first stage, or a later."""
    chain = stage_model.chain
    if not splits(stage_model.candidate.schedule):
        return chain.backward_s, np.zeros(len(chain))
    data = stage_model.data
    fuses, added_s = data.prices.fuses, {size: data.added_s(size) for size in {0.0, *chain.parameters}}
    added_s[0.0] = 0.0
    pairs = [
        split_backward(float(b), float(w), added_s[size], first=first, fuses=fuses)
        for b, w, size in zip(chain.backward_s, chain.weights_s, chain.parameters, strict=True)
    ]
    backward_s, weights_s = np.array(pairs).T
    return backward_s, weights_s


def backwards_of(stage_model: StageModel, stages: Sequence[StageChoice]) -> tuple[list[float], list[float]]:
    """(seconds of each stage's backward, of these for its parameters' gradients)."""
    whole_s, waits_s = [], []
    distinct = len(stages) if stage_model.ranks else min(2, len(stages))
    parts = [divided_backward(stage_model.at(number), first=number == 0) for number in range(distinct)]
    for number, s in enumerate(stages):
        run, (backward_s, weights_s) = slice(s.first, s.last), parts[min(number, distinct - 1)]
        at, own = (s.first, s.last), stage_model.at(number)
        again_s = own.backward_s(at, s.recompute, s.selective) - own.backward_s(at, 0)
        whole_s.append(float(backward_s[run].sum()) + again_s)
        waits_s.append(float(weights_s[run].sum()) + again_s * (splits(stage_model.candidate.schedule) and number == 0))
    return whole_s, waits_s


def unties(stage_model: StageModel, stages: Sequence[StageChoice]) -> bool:
    """Whether ZeRO would hold as two a parameter that two stages of one rank read (``runtime.parallel.zero``)."""
    candidate = stage_model.candidate
    ends, read = np.array([stage.last for stage in stages]), [places for places, _ in stage_model.chain.held.ties]
    readers = ({int(np.searchsorted(ends, at, side="right")) for at in places} for places in read)
    apart = any(len({k % candidate.pp for k in on}) < len(on) for on in readers)
    return bool(stage_model.data.zero) and candidate.virtual_stages > 1 and apart


def fitted(costs: ChainCosts, division: Division, *, late: bool = False) -> Division | None:
    """The same stages with as many segments recomputed, where that is free, as the memory limit asks for: selectively,
    which frees a byte in the least time, then in full. Those first of which most is held, of a rank's stages alike its
    first, or its last. None where all are not enough."""
    if costs.recompute != "auto":
        return division if costs.over(division) <= 0 else None
    counts, full, part = costs.counts(division.stages), list(division.full), list(division.part)
    weight, memory = costs.most_held, costs.memory
    part_saves, full_saves = (
        float(saved[costs.repeated].max(initial=0.0))
        for saved in (memory.kept - memory.selective, np.minimum(memory.kept, memory.selective) - memory.inputs)
    )
    ranks = costs.before_recomputation(Divisions.of(division))
    if ranks.emptied.max() > 0:
        return None
    while True:
        running = ranks.recomputing(np.array(division.full)[:, None], np.array(division.part)[:, None])[:, 0]
        if running.max() <= 0:
            return division
        for rank in np.flatnonzero(running > 0).tolist():
            own = range(rank, costs.stages, costs.ranks)
            partly = part_saves > 0 and any(full[k] + part[k] < counts[k] for k in own)
            saving = max(1.0, part_saves if partly else full_saves)
            for _ in range(max(1, int(running[rank] / (saving * weight[rank].max())))):
                free = [k for k in own if full[k] + partly * part[k] < counts[k]]
                if not free and not partly:
                    return None
                if not free:
                    break
                chosen = max(free, key=lambda k: (weight[rank, k // costs.ranks], k if late else -k))
                part[chosen] += partly
                full[chosen] += not partly
                part[chosen] = min(part[chosen], counts[chosen] - full[chosen])
        division = replace(division, full=tuple(full), part=tuple(part))


def even_stages(costs: ChainCosts) -> tuple[Interval, ...]:
    """Stages of about the same time, none empty."""
    total = np.concatenate([[0.0], np.cumsum(costs.forward_s + costs.backward_s)])
    ends, count = [0], costs.stages
    for stage in range(1, count):
        near = int(np.abs(total - total[-1] * stage / count).argmin())
        ends.append(min(max(near, ends[-1] + 1), len(costs) - (count - stage)))
    ends.append(len(costs))
    return tuple(itertools.pairwise(ends))
