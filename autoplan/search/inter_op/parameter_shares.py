"""ZeRO of one candidate: its data axis, and the bytes that a device holds for each byte of a parameter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autoplan.cost.compressed_sums import CompressedCost
from autoplan.cost.interleaved import ACCUMULATING, SENDING, WAITING, in_one_round, splits
from autoplan.cost.prices import Prices
from autoplan.cost.sent_compressed import compressed_cost, kept_bytes
from autoplan.cost.zero_costs import DataAxis
from autoplan.ir.buckets import Compression, shard_sizes
from autoplan.ir.choice import StageChoice, StageMemory
from autoplan.ir.mesh import EXPERT
from autoplan.option_values import CONTINUOUS
from autoplan.search.inter_op.chain import Chain
from autoplan.search.inter_op.rank_memory import HeldParameters
from autoplan.search.space.candidates import Candidate
from cost_models.pipeline.order import most_sending


def gathered_bytes(data: DataAxis, chain: Chain) -> np.ndarray:
    """[segments] bytes of parameters, and of their gradients, that stand whole at once beside what is stored."""
    whole, gradients = data.gathered_segments
    return (whole + gradients) * chain.parameters + whole * chain.gathered_frozen


def standing_whole(data: DataAxis, chain: Chain) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[segments] three times: bytes of parameters that are gathered, and of gradients on their way to their shards,
    beside what is stored: while a segment runs forward, back, and as its backward ends.

    Where each microbatch's gradients are scattered a segment's own grow until its backward ends (``Live.backward``).
    The buffer that they are scattered from stays until those of the segment before are there, the last one of a
    microbatch until the next one's first. A forward has what was gathered, and a copy of it; a backward has either
    that or the segment before, the last one's, which stayed, the latter. What several segments read is a group by
    itself: it is gathered before the first forward, and scattered after the last backward.
    """
    if not (data.scatters_each and data.prices.training):
        return gathered_bytes(data, chain), gathered_bytes(data, chain), np.zeros(len(chain))
    share, buffer = data.unit
    own = share * (chain.parameters - tied_bytes(chain.held))
    frozen = share * (chain.gathered_frozen - tied_bytes(chain.held_frozen))
    gathered, before = (own + frozen) * (data.zero == 3), np.zeros(len(chain))
    before[1:] = gathered[:-1]
    prefetched = np.maximum(gathered, before)
    if data.keeps_last and not chain.repeated[-1]:
        prefetched[-1] = before[-1]
    shared, made = sum(size for _, size in chain.held.ties), np.zeros(len(chain))
    for places, size in chain.held.ties:
        made[: max(places)] += size
    last = (shared or own[0]) * (data.prices.microbatches > 1)
    sent = buffer * np.append(own[1:], last)
    root = (shared + sum(size for _, size in chain.held_frozen.ties)) * (data.zero == 3)
    ended = root + made + before + (1 + buffer) * own
    ended[0] = max(ended[0], (1 + buffer) * shared)
    return root + 2 * gathered + buffer * last, root + made + gathered + prefetched + sent, ended


def least_gathered(data: DataAxis, chain: Chain) -> float:
    """No stage has less than that of it while its last segment runs."""
    if not (data.scatters_each and data.prices.training):
        return float(gathered_bytes(data, chain).min())
    single = chain.held.ties or chain.held_frozen.ties or len(chain) == 1  # what several segments read is there once
    times = data.unit[0] * (1 if single else 2) * (data.zero == 3)
    return times * float((chain.parameters + chain.gathered_frozen).min())


def tied_bytes(held: HeldParameters) -> np.ndarray:
    """[segments]: bytes of the parameters that other segments read, too."""
    found = np.zeros(len(held.segments))
    for places, size in held.ties:
        found[list(places)] += size
    return found


def at_once(data: DataAxis, chain: Chain) -> tuple[float, float] | None:
    """Of a chain that is one stage what stands at most beside all that a microbatch keeps, with nothing recomputed, and
    by how much more with anything: while a segment runs, those behind it keep nothing yet, or have let go of it. None
    of other chains.
    """
    if not chain.alone:
        return None
    ahead, back, ended = standing_whole(data, chain)
    plain, part = (
        (chain.live_backward, chain.selective_backward)
        if data.scatters_each
        else (chain.live_adding, chain.selective_adding)
    )

    def beside(entered: np.ndarray, live: np.ndarray, counted: np.ndarray) -> np.ndarray:
        """[segments] at most while each runs, its input there, less what is counted of it otherwise."""
        return np.maximum.reduce([entered + chain.live_forward + ahead, live + back, ended]) - counted

    alike = beside(chain.kept_inputs, plain, chain.kept)
    again = chain.inputs + np.maximum(plain - chain.kept_inputs, chain.live_forward + chain.outputs)
    full = beside(chain.inputs, again, chain.inputs + chain.kept)
    partly = beside(chain.selective_inputs, part, chain.selective + chain.rebuilt)
    least = np.where(chain.repeated, np.minimum.reduce([chain.kept, chain.inputs, chain.selective]), chain.kept)
    most = np.where(chain.repeated, np.maximum.reduce([alike, full, partly]), alike)
    pairs = ((alike, chain.kept), (most, least))
    nothing, anything = (float((at - kept[::-1].cumsum()[::-1] + kept).max(initial=0.0)) for at, kept in pairs)
    return nothing, anything - nothing


def border_bytes(chain: Chain) -> np.ndarray:
    """[segments - 1] bytes of a message over the border behind each but the last."""
    return np.maximum(chain.inputs[1:], chain.outputs[:-1])


def message_buffers(candidate: Candidate) -> int:
    """Buffers of messages that a rank holds."""
    sizes = candidate.schedule, candidate.pp, candidate.microbatches
    return 2 + most_sending(*sizes, candidate.virtual_stages)


def data_axis(candidate: Candidate, prices: Prices, states: float) -> DataAxis:
    """A candidate's data axis; ``states``: elements of optimizer state for each parameter element."""
    axes = candidate.shard_axes
    found = DataAxis(
        candidate.zero, math.prod(prices.mesh.size(axis) for axis in axes), prices, candidate.pp > 1, candidate.offload,
        late=splits(candidate.schedule), local_steps=candidate.local_steps, outer=bool(candidate.outer_optimizer),
        averaged=1.0 if candidate.outer_optimizer or candidate.gossip else 1.0 + states,
        versions=candidate.versions, stashes=candidate.schedule in CONTINUOUS, axis=",".join(axes),
        wide=candidate.wide, replicas=candidate.dp_replicate,
        compressed=candidate.compressed, neighbours=neighbours(candidate.gossip, prices.mesh.size("dp")),
        servers=candidate.servers, backups=candidate.backups,
        arriving=bool(candidate.ahead), all_reduce=candidate.all_reduce, tables=candidate.tables,
    )  # fmt: skip
    return found if candidate.all_reduce or not chooses_sums(found) else replace(found, all_reduce=found.quickest())


def chooses_sums(data: DataAxis) -> bool:
    """Whether the program chooses how gradients are summed: gloo's all-reduce is a ring whatever their size, other
    libraries choose themselves."""
    host, sums = data.prices.device.host, data.zero == 0 and data.size > 1 and data.prices.training
    return host is not None and host.own and sums and not (data.alone or data.servers or data.compressed)


def with_shards(data: DataAxis, held: HeldParameters) -> DataAxis:
    """The axis with what each of its parameter servers has of these parameters, the model's trained ones."""
    if not data.servers:
        return data
    sizes = {name: float(size) for segment in held.segments for name, size in segment}
    each = shard_sizes(sizes, data.servers)
    return replace(data, shards=tuple(size / sum(each) for size in each)) if sizes else data


def neighbours(graph: str, replicas: int) -> int:
    """Messages that a replica gets at once where it meets its neighbours: see ``Gossip`` in
    ``runtime.optim.asynchronous.local_sgd``."""
    return 0 if not graph else 2 if graph == "ring" and replicas > 2 else 1


def parameter_share(data: DataAxis, states: float) -> float:
    """Bytes of parameter, gradient and optimizer state that the device holds for each byte of parameter."""
    return data.parameter_share + data.gradient_shares[SENDING] + data.states_share(states)


def shard_share(data: DataAxis, states: float) -> float:
    """Of these bytes those that ZeRO shards, gradients aside."""
    return data.sharded * data.shard_share + data.states_share(states) if data.zero else 0.0


def least_share(data: DataAxis, states: float, candidate: Candidate, by_rows: bool) -> float:
    """No parameter takes fewer bytes for each of its own, be it dense or an expert, when most is in flight.

    by_rows  some have gradients of looked-up rows alone
    """
    if by_rows:
        return data.parameter_share + data.states_share(states)
    turns = in_one_round(candidate.schedule, candidate.pp, candidate.microbatches)
    standing = WAITING if turns else ACCUMULATING
    whole = data.parameter_share + data.states_share(states) + data.gradient_shares[standing]
    return whole - data.elsewhere * (shard_share(data, states) + data.sharded_gradients[standing])


def compressed(held: HeldParameters, at: tuple[int, int], how: Compression) -> frozenset[str]:
    """Of the parameters that a run of segments reads those whose gradients go compressed; one that segments outside
    read, too, is summed between stages, whole."""
    read = {name for each in held.segments[slice(*at)] for name, _ in each if goes_compressed(held, name, how)}
    outside = {name for name, places in held.readers.items() if any(not at[0] <= n < at[1] for n in places)}
    return frozenset(read - outside)


def goes_compressed(held: HeldParameters, name: str, how: Compression) -> bool:
    """Whether a parameter's gradient does where one stage has it (``runtime.parallel.compression.program_sums``)."""
    return how.takes(held.shapes[name]) and (how.linear or not held.summed.get(name))


def summed_whole(held: HeldParameters, at: tuple[int, int], how: Compression | None) -> HeldParameters:
    """The others; all where none go compressed."""
    if how is None:
        return held
    names = compressed(held, at, how)
    return replace(held, segments=tuple(tuple(p for p in each if p[0] not in names) for each in held.segments))


def cost_of_compressed(data: DataAxis, held: HeldParameters, at: tuple[int, int]) -> CompressedCost | None:
    """Of the gradients of a run of segments that go so; None where there are none."""
    kinds: dict[str, Counter[tuple[int, ...]]] = {}
    if data.compressed is None:
        return None
    for name in compressed(held, at, data.compressed):
        kinds.setdefault(data.group(held.summed.get(name, ())), Counter())[held.shapes[name]] += 1
    return compressed_cost(kinds, data.compressed, gradient_itemsize(data, held)) if kinds else None


def gradient_itemsize(data: DataAxis, held: HeldParameters) -> int:
    """Bytes of an element of a gradient as it is stored."""
    name, size = next(each for segment in held.segments for each in segment)
    return round(data.prices.stored * size / math.prod(held.shapes[name]))


def kept_beside(data: DataAxis, chain: Chain, states: float) -> tuple[np.ndarray, tuple[float, ...]]:
    """([segments] bytes of what stays beside parameters and the states that all have: compression's, states beyond
    these, and caches in the place of tables; the same of each parameter that several read)."""
    (column, ties), (more, of_ties) = left_out(data, chain.held), states_beyond(data, chain.held)
    column = column + more + kept_of_caches(data, chain, states)
    return column, tuple(one + other for one, other in zip(ties, of_ties, strict=True))


def states_beyond(data: DataAxis, held: HeldParameters) -> tuple[np.ndarray, tuple[float, ...]]:
    """The same of an optimizer's states beyond those that all parameters have (``DataAxis.beyond``)."""
    beyond = dict(data.beyond)
    sizes = {
        name: size * data.states_share_of(beyond[name], held.summed.get(name, ()))
        for segment in held.segments
        for name, size in segment
        if name in beyond
    }
    column = np.array([sum(sizes.get(name, 0.0) for name, _ in segment) for segment in held.segments])
    return column, tuple(sizes.get(name, 0.0) for name in held.readers)


def told_apart(
    memory: Sequence[StageMemory], data: DataAxis, held: HeldParameters, stages: Sequence[StageChoice]
) -> tuple[StageMemory, ...]:
    """Ranks' memory with states beyond those that all parameters have as the optimizer's, which the account has beside
    the parameters."""
    if not data.beyond:
        return tuple(memory)
    column, ties = states_beyond(data, held)
    found = [0.0] * len(memory)
    for number, stage in enumerate(stages):
        again = zip(ties, held.readers.values(), strict=True)
        twice = sum(size * max(sum(stage.first <= n < stage.last for n in places) - 1, 0) for size, places in again)
        found[number % len(memory)] += column[stage.first : stage.last].sum() - twice
    pairs = zip(memory, map(round, found), strict=True)
    return tuple(replace(m, parameters=m.parameters - own, optimizer=m.optimizer + own) for m, own in pairs)


def kept_of_caches(data: DataAxis, chain: Chain, states: float) -> np.ndarray:
    """[segments] bytes of caches of tables that lie off the device, less what is counted of these tables elsewhere."""
    counted = np.array([each.tables for each in chain.cached]) + cached_states(data, chain, states)
    return np.array([each.cache for each in chain.cached]) - counted * data.tables_apart


def cached_states(data: DataAxis, chain: Chain, states: float) -> np.ndarray:
    """[segments] of that, what is counted as the optimizer's states."""
    share = data.states_share(states)
    return np.array([each.states if data.beyond else share * each.tables for each in chain.cached])


def caches_as_parameters(
    memory: StageMemory, data: DataAxis, chain: Chain, states: float, stages: Sequence[StageChoice]
) -> StageMemory:
    """A rank's memory with all of caches as parameters', their rows' states included."""
    counted = cached_states(data, chain, states) * data.tables_apart
    own = round(sum(float(counted[stage.first : stage.last].sum()) for stage in stages))
    return replace(memory, parameters=memory.parameters + own, optimizer=memory.optimizer - own)


def left_out(data: DataAxis, held: HeldParameters) -> tuple[np.ndarray, tuple[float, ...]]:
    """([segments] bytes of what compression keeps beside parameters, the same of each that several read)."""
    how = data.compressed
    if how is None:
        return np.zeros(len(held.segments)), (0.0,) * len(held.ties)
    itemsize = gradient_itemsize(data, held)
    sizes = {
        name: kept_bytes(held.shapes[name], near(data, held, name, how), itemsize, data.size)
        if goes_compressed(held, name, how)
        else 0.0
        for segment in held.segments
        for name, _ in segment
    }
    column = np.array([sum(sizes[name] for name, _ in segment) for segment in held.segments])
    return column, tuple(sizes[name] for name in held.readers)


def near(data: DataAxis, held: HeldParameters, name: str, how: Compression) -> Compression:
    """How a parameter's gradient goes, with the ranks that share its sum among those that lie together: of experts
    those that have the same."""
    whole = EXPERT in held.summed.get(name, ()) or how.within == 1
    return how if whole else replace(how, within=how.within // data.prices.mesh.size(EXPERT))
