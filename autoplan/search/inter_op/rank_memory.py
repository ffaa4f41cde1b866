"""The memory account: what one device of a pipeline rank needs. The search reads it; reports print ``peak_memory``.

A stage is a run of segments of which some are recomputed. Its rank needs for it, all in bytes of one device,

    states      parameters and the optimizer's state, between microbatches
    gradients   what stands of them at a moment (``cost.interleaved``): all, or of stages that go back in turn those of
                one, and of those before it what the optimizer reads
    buffers     a rank's messages, as many of the largest as it has at once: one that is read, one that comes for the
                next action, those on their way to other ranks
    flight      for each microbatch in flight: what the backward reads, the constants, and the message that entered
    transients  the largest of a segment's working memory, of its gathered parameters (ZeRO), and of what stands whole
                while a recomputed segment runs again; where there is one stage, less what those behind don't keep then
    update      with nothing in flight: what the optimizer makes for a moment, or before that the gradients of one
                segment on their way to their shards (fully_shard)

A rank with stages k, of which n_k microbatches are in flight at a moment, needs then, and between two steps,

    running  =  Σ_k (states + gradients + n_k·flight) + buffers + transients
    emptied  =  Σ_k (states + gradients) + update

Partition, interleaved search, the rows of its integer program and the memory of a finished candidate all derive from
``SegmentBytes``. What stands at once at the busiest moment is less (``peak_memory``): that is what a plan predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import eq

import numpy as np

from autoplan.cost.zero_costs import DataAxis
from autoplan.ir.mesh import CONTEXTS, EXPERT
from autoplan.search.inter_op.recomputation import prefix, range_max

BESIDE = np.array([1.0, 0.0, 1.0, 0.0])
"""Whether what lies in buckets stands beside what ``gradient_shares`` counts, by what stands of gradients."""
LARGEST = ("constants", "working", "gathered", "alone")  # columns of which a stage has the largest of its segments
Tie = tuple[tuple[int, ...], float]
"""The segments that read one parameter, and its bytes."""
Summed = tuple[str, ...]
"""Operator axes over which a parameter's gradient is summed once a step."""


@dataclass(frozen=True)
class StageBytes:
    """Bytes of stages, or of ranks: arrays of one shape, but for ``reads``.

    parameters          of its segments, one that several read as often as they do
    elsewhere           of these, what ZeRO has along the experts' axis on other ranks
    untouched, bucketed   as in ``SegmentBytes``
    frozen              what stays on the device of parameters that aren't trained, likewise as often as they are read,
                        and what compression keeps of gradients
    reads               [ties, …] how many of its segments read each tied parameter
    flight, buffers     as in the module's docstring; working, gathered, again: the transients
    alone               what of ``update`` a segment takes by itself
    """

    parameters: np.ndarray
    elsewhere: np.ndarray
    untouched: np.ndarray
    bucketed: np.ndarray
    frozen: np.ndarray
    reads: np.ndarray
    flight: np.ndarray
    buffers: np.ndarray
    working: np.ndarray
    gathered: np.ndarray
    again: np.ndarray
    alone: np.ndarray

    @property
    def transients(self) -> np.ndarray:
        return self.working + self.gathered + self.again

    def by_rank(self, ranks: int) -> StageBytes:
        """[d, …] of [v·d, …]: stage k is on rank k modulo d. A rank has the sum of its stages' states and flights (of
        one microbatch in flight on each), and the largest of their buffers and transients."""

        def dealt(part: np.ndarray) -> np.ndarray:
            return part.reshape(-1, ranks, *part.shape[1:])

        parts = {name: dealt(getattr(self, name)) for name in self.__dataclass_fields__ if name != "reads"}
        summed = ("parameters", "elsewhere", "untouched", "bucketed", "frozen", "flight")
        whole = {n: part.sum(axis=0) if n in summed else part.max(axis=0) for n, part in parts.items()}
        reads = np.array([dealt(part).sum(axis=0) for part in self.reads]).reshape(-1, *whole["flight"].shape)
        return StageBytes(**whole, reads=reads)


@dataclass(frozen=True)
class SegmentBytes:
    """Bytes that each of the chain's N segments adds to its rank.

    parameters          that are trained, in the dtype in which they are used
    elsewhere           of these, what ZeRO has on other ranks along the axes that split experts (``DataAxis.wide``):
                        of dense weights, which it shards over these too
    untouched           of the first, rows of tables that have no gradient, for a step doesn't look them up
    bucketed            bytes of shards of gradients that are summed over another axis beside fully_shard: they lie in
                        buckets, which stay from step to step
    frozen              of the others what stays on the device between uses; of gradients what compression keeps
    kept, inputs, selective    for each microbatch in flight: as it is, recomputed in full, recomputed selectively
    rebuilt             what stands whole while a selective one runs again; of one in full all that it keeps does
    constants           for each microbatch in flight, the largest of a stage's; working, gathered: of a rank's
    alone               what its largest parameter takes whose update is computed by itself, or its gradients on their
                        way to their shards
    message, unkept     at the border in front of each segment, nothing in front of the first: a message over it, and
                        what of it the segment itself doesn't keep for its backward
    repeated            whether its block repeats, so that it may be recomputed
    ties, ties_elsewhere, ties_frozen   parameters that several segments read; of each what is elsewhere or ``frozen``
    messages            that a rank has at once
    state_share, update_share  bytes of states, and of what the optimizer makes at once, per byte of parameters
    shard_share         of the first, what ZeRO shards: there is none of it of what is elsewhere
    gradient_shares     bytes of gradients per byte of parameters, by what stands of them
    sharded_gradients   of these what ZeRO shards; ``stashed``, [ranks, 2]: see ``cost.step.held_between_steps``
    at_once             of one stage alone, in the place of ``working`` and ``gathered``: see ``parameter_shares``
    """

    parameters: np.ndarray
    elsewhere: np.ndarray
    untouched: np.ndarray
    bucketed: np.ndarray
    frozen: np.ndarray
    kept: np.ndarray
    inputs: np.ndarray
    selective: np.ndarray
    rebuilt: np.ndarray
    constants: np.ndarray
    working: np.ndarray
    gathered: np.ndarray
    alone: np.ndarray
    message: np.ndarray
    unkept: np.ndarray
    repeated: np.ndarray
    ties: tuple[Tie, ...]
    ties_elsewhere: tuple[float, ...]
    ties_frozen: tuple[float, ...]
    messages: int
    state_share: float
    update_share: float
    shard_share: float
    gradient_shares: np.ndarray
    sharded_gradients: np.ndarray
    stashed: np.ndarray
    at_once: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self.parameters)

    @cached_property
    def index(self) -> np.ndarray:
        """[N+1]: how many of the first 0, 1, … segments may be recomputed."""
        return prefix(self.repeated).astype(int)

    @cached_property
    def sums(self) -> dict[str, np.ndarray]:
        """Of the first 0, 1, … segments; "full" and "part" of what recomputation saves of those that may be."""
        places = self.repeated.astype(bool)
        saved = {"full": (self.kept - self.inputs)[places], "part": (self.kept - self.selective)[places]}
        names = ("parameters", "elsewhere", "untouched", "bucketed", "frozen", "kept")
        columns = {name: getattr(self, name) for name in names} | saved
        return {name: prefix(column) for name, column in columns.items()}

    @cached_property
    def tops(self) -> dict[str, np.ndarray]:
        """By first and last segment the largest of the run; "full" and "part" of what stands while segments that may
        be recomputed run again, by the numbers of these."""
        places = self.repeated.astype(bool)
        columns = {name: getattr(self, name) for name in LARGEST}
        columns |= {"full": self.kept[places], "part": self.rebuilt[places]}
        return {name: range_max(column) for name, column in columns.items()}

    @cached_property
    def borders(self) -> dict[str, np.ndarray]:
        """[N+1] of the border in front of each segment, and behind the last."""
        return {name: np.append(getattr(self, name), 0.0) for name in ("message", "unkept")}

    @cached_property
    def readers(self) -> np.ndarray:
        """[ties, N+1]: how many of the first 0, 1, … segments read each tied parameter."""
        found = np.zeros((len(self.ties), len(self) + 1))
        for counts, (places, _) in zip(found, self.ties, strict=True):
            np.add.at(counts, np.array(places) + 1, 1)
        return found.cumsum(axis=1)

    def stages(self, first: np.ndarray, last: np.ndarray, full: np.ndarray | int, part: np.ndarray | int) -> StageBytes:
        """Of stages that hold segments [first, last): arrays of one shape. ``full`` and ``part`` count the segments
        that each recomputes: the first of those that may be in full, and those after them selectively."""
        begin = self.index[first]
        middle = begin + full
        end, sums, borders = middle + part, self.sums, self.borders
        top = {name: self.tops[name][first, last] for name in LARGEST}
        if self.at_once:
            whole, (nothing, more) = (first == 0) & (last == len(self)), self.at_once
            top["working"] = np.where(whole, nothing + more * (full + part > 0), top["working"])
            top["gathered"] = np.where(whole, 0.0, top["gathered"])
        kept = sums["kept"][last] - sums["kept"][first]
        kept = kept - (sums["full"][middle] - sums["full"][begin]) - (sums["part"][end] - sums["part"][middle])
        return StageBytes(
            parameters=sums["parameters"][last] - sums["parameters"][first],
            elsewhere=sums["elsewhere"][last] - sums["elsewhere"][first],
            untouched=sums["untouched"][last] - sums["untouched"][first],
            bucketed=sums["bucketed"][last] - sums["bucketed"][first],
            frozen=sums["frozen"][last] - sums["frozen"][first],
            reads=self.readers[:, last] - self.readers[:, first],
            flight=kept + top.pop("constants") + borders["unkept"][first],
            buffers=self.messages * np.maximum(borders["message"][first], borders["message"][last]),
            again=np.maximum(self.tops["full"][begin, middle], self.tops["part"][middle, end]),
            **top,
        )

    def once(self, held: StageBytes) -> np.ndarray:
        """Bytes of trained parameters, one that several segments read counted once."""
        return without_ties(held.parameters, held, [size for _, size in self.ties])

    def touched(self, held: StageBytes) -> np.ndarray:
        """Of these what a step makes gradients of."""
        return self.once(held) - held.untouched

    def elsewhere_once(self, held: StageBytes) -> np.ndarray:
        """Of these what is elsewhere."""
        return without_ties(held.elsewhere, held, self.ties_elsewhere)

    def frozen_once(self, held: StageBytes) -> np.ndarray:
        """What stays on the device of the other parameters."""
        return without_ties(held.frozen, held, self.ties_frozen)

    def states(self, held: StageBytes) -> np.ndarray:
        """Bytes of parameters and the optimizer's state."""
        trained = self.once(held) * self.state_share - self.elsewhere_once(held) * self.shard_share
        return trained + self.frozen_once(held)

    def gradients(self, held: StageBytes, standing: int) -> np.ndarray:
        """Bytes of gradients, of which so much stands."""
        elsewhere = self.elsewhere_once(held) * self.sharded_gradients[standing]
        return self.touched(held) * self.gradient_shares[standing] - elsewhere + held.bucketed * BESIDE[standing]

    def gradients_at(self, each: StageBytes, whole: StageBytes, standing: np.ndarray) -> np.ndarray:
        """[ranks, moments, many] of stages [v·d, many], or of one such column; where all is alike of one moment.

        whole     the same by rank
        standing  [ranks, moments, v]
        """
        ranks, _, count = standing.shape
        if (standing == standing[0, 0, 0]).all():  # a parameter that several stages of a rank read has one gradient
            return self.gradients(whole, int(standing[0, 0, 0])).reshape(ranks, 1, -1)
        parts = (self.touched(each), self.elsewhere_once(each), each.bucketed)
        once, elsewhere, bucketed = (part.reshape(count, ranks, -1).swapaxes(0, 1) for part in parts)
        found = self.gradient_shares[standing] @ once - self.sharded_gradients[standing] @ elsewhere
        return np.asarray(found + BESIDE[standing] @ bucketed)

    def running(self, held: StageBytes) -> np.ndarray:
        """Bytes of each stage or rank while the schedule runs, beside gradients and what is in flight."""
        return self.states(held) + held.buffers + held.transients

    def emptied(self, held: StageBytes) -> np.ndarray:
        """Bytes of each stage or rank with nothing in flight, beside gradients."""
        return self.states(held) + self.update(held)

    def update(self, held: StageBytes) -> np.ndarray:
        """What stands then beside states."""
        return np.maximum((self.touched(held) - self.elsewhere_once(held)) * self.update_share, held.alone)

    def shared_by(self, ranks: int) -> np.ndarray:
        """[3, ranks]: bytes of tied parameters that its segments may read again, at most, of these what is elsewhere,
        and what stays of those that aren't trained: a rank may have any segments, but of several ranks only one has the
        chain's first, and only one its last."""
        found = np.zeros((3, ranks))
        for (places, size), *others in zip(self.ties, self.ties_elsewhere, self.ties_frozen, strict=True):
            for rank in range(ranks):
                barred = {0: rank > 0, len(self) - 1: rank < ranks - 1}
                again = max(0, sum(not barred.get(at, False) for at in places) - 1)
                found[:, rank] += again * np.array([size, *others])
        return found


def without_ties(total: np.ndarray, held: StageBytes, ties: Iterable[float]) -> np.ndarray:
    """A sum over segments less what several of them read, counted once."""
    for size, reads in zip(ties, held.reads, strict=True):
        total = total - size * np.maximum(reads - 1, 0)
    return total


@dataclass(frozen=True)
class HeldParameters:
    """Each segment's parameters, trained ones or the others. All candidates with the same operators share one.

    segments  (name, local bytes) of each
    summed    by name, the axes over which gradients are summed; a parameter that it lacks over none
    shapes    by name, local ones
    """

    segments: tuple[tuple[tuple[str, int], ...], ...]
    summed: Mapping[str, Summed] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> dict[Summed, HeldParameters]:
        """The parameters whose gradients are summed over the same axes, by these axes."""
        over = sorted({self.summed.get(name, ()) for held in self.segments for name, _ in held})
        return {axes: self.those(partial(eq, axes)) for axes in over}

    @cached_property
    def by_kind(self) -> np.ndarray:
        """[segments, kinds]: bytes."""
        return np.column_stack([kind.bytes for kind in self.kinds.values()] or [self.bytes])

    @cached_property
    def whole(self) -> dict[str, HeldParameters]:
        """By axis that may split experts, those that are whole along it: their gradients are summed over it."""
        return {axis: self.those({axis}.issubset) for axis in (EXPERT, *CONTEXTS)}

    def dense(self, wide: tuple[str, ...]) -> HeldParameters:
        """Those that are whole along the axes that split experts; all where none does."""
        return self.whole[wide[0]] if wide else self

    def those(self, wanted: Callable[[Summed], bool]) -> HeldParameters:
        """Of the parameters those whose gradients are summed over axes that are wanted."""
        return HeldParameters(
            tuple(tuple(p for p in held if wanted(self.summed.get(p[0], ()))) for held in self.segments), self.summed
        )

    @cached_property
    def bytes(self) -> np.ndarray:
        """[segments]"""
        return np.array([sum(size for _, size in held) for held in self.segments], dtype=float)

    @cached_property
    def largest(self) -> np.ndarray:
        """[segments]: bytes of the largest parameter of each."""
        return np.array([max((size for _, size in held), default=0) for held in self.segments], dtype=float)

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """The segments that read each parameter that several read."""
        found: dict[str, list[int]] = {}
        for place, held in enumerate(self.segments):
            for name, _ in held:
                found.setdefault(name, []).append(place)
        return {name: tuple(places) for name, places in found.items() if len(places) > 1}

    @cached_property
    def ties(self) -> tuple[Tie, ...]:
        """Parameters that several segments read."""
        sizes = {name: float(size) for held in self.segments for name, size in held}
        return tuple((places, sizes[name]) for name, places in self.readers.items())

    def ties_elsewhere(self, share: float, wide: tuple[str, ...]) -> tuple[float, ...]:
        """Of the bytes of each the share that is elsewhere, of dense weights."""
        dense = (not wide or wide[0] in self.summed.get(name, ()) for name in self.readers)
        return tuple(share * size * here for here, (_, size) in zip(dense, self.ties, strict=True))

    def bucketed(self, data: DataAxis) -> np.ndarray:
        """[segments]: as in ``SegmentBytes``."""
        found = np.zeros(len(self.segments))
        for summed, kind in self.kinds.items():
            if data.scatters_once and data.prices.training and data.beside(summed):
                found += data.prices.stored * kind.bytes / data.ways(summed)
        return found

    def owned(
        self, ranks: int, bytes: np.ndarray | None = None, sizes: Iterable[float] | None = None
    ) -> np.ndarray:
        """[segments]: bytes, each parameter's divided by how many segments read it. The chain's first and last are on
        one rank only where there is no other.

        bytes, sizes  of segments and of ties, where they are others than all
        """
        found = (self.bytes if bytes is None else bytes).copy()
        each = [size for _, size in self.ties] if sizes is None else sizes
        for (places, _), size in zip(self.ties, each, strict=True):
            if ranks == 1 or places != (0, len(self.segments) - 1):
                found[list(places)] -= size - size / len(places)
        return found

    @property
    def joins_ends(self) -> bool:
        """Whether the chain's first and last segment read one parameter."""
        return any({0, len(self.segments) - 1} <= set(places) for places, _ in self.ties)

    def shared_out(self, share: Callable[[Summed], float]) -> tuple[np.ndarray, tuple[float, ...]]:
        """([segments] bytes times a share that depends on the axes, the same of each tie)."""
        found = sum((share(axes) * kind.bytes for axes, kind in self.kinds.items()), np.zeros(len(self.segments)))
        sizes = {name: share(self.summed.get(name, ())) * size for held in self.segments for name, size in held}
        return found, tuple(sizes[name] for name in self.readers)

    def first_reads(self, at: tuple[int, int]) -> list[dict[Summed, float]]:
        """Of each segment of a run bytes of the parameters that it is the first to read, by their axes."""
        kinds = {axes: kind.first_read(at).tolist() for axes, kind in self.kinds.items()}
        return [{axes: sizes[n] for axes, sizes in kinds.items() if sizes[n]} for n in range(at[1] - at[0])]

    def first_read(self, at: tuple[int, int]) -> np.ndarray:
        """[segments of a run]: bytes of the parameters that each is the first to read."""
        first, last = at
        found = self.bytes[first:last].copy()
        for places, size in self.ties:
            again = [place - first for place in places if first <= place < last][1:]
            found[again] -= size
        return found
