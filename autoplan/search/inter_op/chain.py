"""The chain of segments as arrays: seconds and bytes of each, in one microbatch on one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from autoplan.cost.interleaved import splits
from autoplan.cost.operators.lookups import CachedTables
from autoplan.cost.zero_costs import DataAxis
from autoplan.ir.graph import Model, Segment
from autoplan.search.block_cost.account import BlockCost
from autoplan.search.block_cost.selective import SelectiveSaves
from autoplan.search.inter_op.rank_memory import HeldParameters
from autoplan.search.space.candidates import Candidate


@dataclass(frozen=True)
class Chain:
    """One number for each segment of the chain, of one microbatch on one device.

    forward_s, backward_s   what ZeRO's collectives leave exposed, its copies, and the adding up of gradients, included
    weights_s    of backward_s, what gives parameters' gradients alone
    kept, inputs, outputs, constants, working   bytes, as in ``BlockCost``
    parameters   bytes of those that are trained
    owned        the same, each divided among the segments of a stage that may read it: of any of a rank's segments no
                 more than they hold
    elsewhere, untouched   of ``parameters``, as in ``SegmentBytes``
    frozen, frozen_owned  of the others what stays on the device between uses, and that divided likewise
    gathered_frozen  bytes of these where they stand whole only while they are used
    selective, rebuilt, again_s   bytes and seconds of a segment that recomputes selectively, as in ``SelectiveSaves``
    selective_inputs, selective_backward, selective_adding   bytes of such a segment at its moments, as in ``Live``
    repeated     whether its block stands in the chain more than once, so that it may be recomputed
    exposed_s    what ZeRO's collectives add to forward and backward together, each gather under its own segment
    opens_s, follows_s       of a pipeline how much more the gather leaves exposed under nothing, as a stage's first one
                 runs, and under the segment before it
    opens_back_s, follows_back_s   the same backward
    halves       of ``kept``, what a split backward makes in its first half and keeps for the second
    kept_inputs, live_forward, live_backward, live_adding   bytes at their moments, as in ``Live``
    held         trained parameters by segment
    held_frozen  the others
    alone        whether it is one stage
    cached       of tables that lie off the device, by segment
    """

    forward_s: np.ndarray
    backward_s: np.ndarray
    weights_s: np.ndarray
    kept: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    constants: np.ndarray
    working: np.ndarray
    parameters: np.ndarray
    owned: np.ndarray
    elsewhere: np.ndarray
    untouched: np.ndarray
    frozen: np.ndarray
    frozen_owned: np.ndarray
    gathered_frozen: np.ndarray
    repeated: np.ndarray
    selective: np.ndarray
    rebuilt: np.ndarray
    selective_inputs: np.ndarray
    selective_backward: np.ndarray
    selective_adding: np.ndarray
    again_s: np.ndarray
    exposed_s: np.ndarray
    opens_s: np.ndarray
    follows_s: np.ndarray
    opens_back_s: np.ndarray
    follows_back_s: np.ndarray
    halves: np.ndarray
    kept_inputs: np.ndarray
    live_forward: np.ndarray
    live_backward: np.ndarray
    live_adding: np.ndarray
    held: HeldParameters
    held_frozen: HeldParameters
    alone: bool
    cached: tuple[CachedTables, ...]

    def __len__(self) -> int:
        return len(self.forward_s)

    @property
    def tables_hosted(self) -> np.ndarray:
        """[segments] bytes of tables that lie off the device, and of what the optimizer keeps of them."""
        return np.array([each.tables + each.states for each in self.cached])

    @property
    def shares(self) -> bool:
        """Whether a parameter is read by more than one segment."""
        return bool(self.held.ties)

    @cached_property
    def weighing(self) -> np.ndarray:
        """[segments, columns]: all that what happens once a step depends on."""
        return np.column_stack([self.forward_s, self.backward_s, self.held.by_kind])

    def alike(self, at: tuple[int, int]) -> Hashable:
        """The same for runs of segments for which the same happens once a step."""
        return at if self.shares or self.opens(at) else self.weighing[slice(*at)].tobytes()

    def opens(self, at: tuple[int, int]) -> bool:
        """Whether a run of segments is the first stage. The whole chain is where there is no other; of a pipeline it is
        asked for as a lower bound, with nothing in the open that stages further on would hide."""
        return at[0] == 0 and (self.alone or at[1] < len(self))

    def opening(self, at: tuple[int, int]) -> list[tuple[float, float]]:
        """Of that one the (forward, backward) of a microbatch from each segment that is the first to read parameters to
        the next such one; of others none."""
        if not self.opens(at):
            return []
        begins = [n for n, unit in enumerate(self.held.first_reads(at)) if unit]
        runs = [slice(*run) for run in pairwise([*begins, at[1]])]
        return [(float(self.forward_s[run].sum()), float(self.backward_s[run].sum())) for run in runs]

    def gathered_late_s(self, at: tuple[int, int]) -> tuple[float, float]:
        """What ZeRO's gathers add to a stage's (forward, backward) beyond what its segments are counted with."""
        first, last = at
        back_s = self.opens_back_s[last - 1] + self.follows_back_s[first : last - 1].sum()
        return float(self.opens_s[first] + self.follows_s[first + 1 : last].sum()), float(back_s)

    @cached_property
    def onces(self) -> dict[Hashable, tuple[float, float, float, float]]:
        """What ``StageModel.once_s`` was of runs of segments that are alike: schedules and what is recomputed change
        nothing of it."""
        return {}

    @cached_property
    def distinct_inputs(self) -> tuple[list[float], np.ndarray]:
        """(sizes of what enters segments, each once; the number of each segment's among them)."""
        sizes, places = np.unique(self.inputs, return_inverse=True)
        return sizes.tolist(), places.reshape(-1)

    def holding(self, columns: Mapping[str, np.ndarray]) -> Chain:
        """The same with other columns."""
        return Chain(**{f.name: columns.get(f.name, getattr(self, f.name)) for f in fields(self)})


def chain_of(
    model: Model, blocks: Sequence[BlockCost], candidate: Candidate, data: DataAxis,
    both: tuple[HeldParameters, HeldParameters],
) -> Chain:  # fmt: skip
    """Lays the prices of the blocks along the chain; ``both``: as of ``held_by``."""
    held, held_frozen = both
    blocks = [on_host(price, data) for price in blocks] if data.offload == "activations" else blocks
    uses = Counter(segment.block for segment in model.segments)
    order = [segment.block for segment in model.segments]
    training = data.prices.training
    sizes, others = ([sum(part.values()) for part in parts] for parts in parameters_of(blocks))
    waits_f = [data.exposed_forward_s(b.forward_s, b.parameters, b.frozen) for b in blocks]
    waits_b = [data.exposed_backward_s(b.backward_s, b.parameters, b.frozen) if training else 0.0 for b in blocks]
    summed = [size - block.untouched for size, block in zip(sizes, blocks, strict=True)]
    added = [data.added_s(p) if training and p else 0.0 for p in summed]
    copies = [data.copies_s(*pair) for pair in zip(sizes, others, strict=True)]
    if training and uses[order[-1]] == 1:
        head = blocks[order[-1]]
        waits_b[order[-1]] = data.exposed_backward_s(head.backward_s, head.parameters, head.frozen, last=True)
        copies[order[-1]] = data.copies_s(sizes[order[-1]], others[order[-1]], last=True)
    frozen, ties = held_frozen.shared_out(data.frozen_share)

    places = np.array(order)

    def along(values: Iterable[float]) -> np.ndarray:
        return np.array(list(values), dtype=float)[places]

    cached = tuple(blocks[block].cached if candidate.tables else CachedTables() for block in order)
    halves = along(b.live.halves * splits(candidate.schedule) for b in blocks)
    return Chain(
        forward_s=along(b.forward_s for b in blocks)
        + along(waits_f)
        + along(f for f, _ in copies)
        + np.array([each.missed_s for each in cached]),
        backward_s=along(b.backward_s for b in blocks)
        + along(waits_b)
        + along(added)
        + along(b * training for _, b in copies),
        weights_s=along(b.weights_s for b in blocks) + along(added),
        kept=along(b.kept_bytes for b in blocks) + halves,
        halves=halves,
        inputs=along(b.input_bytes for b in blocks),
        outputs=along(b.output_bytes for b in blocks),
        constants=along(b.constant_bytes for b in blocks),
        working=along(b.working_bytes for b in blocks),
        parameters=along(sizes),
        owned=held.owned(candidate.pp),
        elsewhere=data.elsewhere * held.dense(data.wide).bytes,
        untouched=along(b.untouched for b in blocks),
        frozen=frozen,
        frozen_owned=held_frozen.owned(candidate.pp, frozen, ties),
        gathered_frozen=along(others) * (data.zero == 3),
        repeated=np.array([uses[block] > 1 for block in order]),
        selective=along(b.selective.kept_bytes for b in blocks),
        rebuilt=along(b.selective.rebuilt_bytes for b in blocks),
        selective_inputs=along(b.selective.live.kept_inputs for b in blocks),
        selective_backward=along(b.selective.live.backward for b in blocks),
        selective_adding=along(b.selective.live.adding for b in blocks),
        again_s=along(b.selective.again_s for b in blocks),
        exposed_s=along(waits_f) + along(waits_b),
        **late_gathers(order, blocks, data),
        kept_inputs=along(b.live.kept_inputs for b in blocks),
        live_forward=along(b.live.forward for b in blocks),
        live_backward=along(b.live.backward for b in blocks),
        live_adding=along(b.live.adding for b in blocks),
        held=held,
        held_frozen=held_frozen,
        alone=candidate.pp == 1,
        cached=cached,
    )


def parameters_of(blocks: Sequence[BlockCost]) -> tuple[list[dict[tuple[str, ...], int]], ...]:
    """(trained ones, the others), of each block."""
    return [block.parameters for block in blocks], [block.frozen for block in blocks]


def late_gathers(order: Sequence[int], blocks: Sequence[BlockCost], data: DataAxis) -> dict[str, np.ndarray]:
    """``opens_s`` to ``follows_back_s`` of a chain of these blocks. A rank turns from one stage's forward to another's
    backward with nothing gathered ahead, for each microbatch; without a pipeline that is once each way, and left out.
    """
    found = {name: np.zeros(len(order)) for name in ("opens_s", "follows_s", "opens_back_s", "follows_back_s")}
    if data.zero < 3 or not data.piped:
        return found
    known: dict[tuple[int, int], tuple[float, float]] = {}

    def more_s(block: int, under: int) -> tuple[float, float]:
        """Of a block's gathers under another block, or under none (-1)."""
        if (block, under) not in known:
            own, held = blocks[block], (blocks[block].parameters, blocks[block].frozen)
            beside = (blocks[under].forward_s, blocks[under].backward_s) if under >= 0 else (0.0, 0.0)
            ahead_s = data.exposed_forward_s(beside[0], *held) - data.exposed_forward_s(own.forward_s, *held)
            back_s = data.exposed_backward_s(beside[1], *held) - data.exposed_backward_s(own.backward_s, *held)
            known[block, under] = (ahead_s, back_s if data.prices.training else 0.0)
        return known[block, under]

    for n, (before, block, behind) in enumerate(zip([-1, *order], order, [*order[1:], -1], strict=False)):
        found["opens_s"][n], found["opens_back_s"][n] = more_s(block, -1)
        found["follows_s"][n], found["follows_back_s"][n] = more_s(block, before)[0], more_s(block, behind)[1]
    return found


def held_by(model: Model, blocks: Sequence[BlockCost]) -> tuple[HeldParameters, HeldParameters]:
    """(trained parameters of each segment, the others), with their local bytes."""
    summed = {
        name: axes
        for segment in model.segments
        for name, axes in zip(segment.parameters, blocks[segment.block].summed_axes, strict=True)
        if axes
    }
    shapes = {
        name: shape
        for segment in model.segments
        for name, shape in zip(segment.parameters, blocks[segment.block].parameter_shapes, strict=True)
    }
    trained, frozen = (
        HeldParameters(tuple(tuple(held_of(s, blocks[s.block], trained)) for s in model.segments), summed, shapes)
        for trained in (True, False)
    )
    return trained, frozen


def held_of(segment: Segment, price: BlockCost, trained: bool) -> Iterator[tuple[str, int]]:
    each = zip(segment.parameters, price.parameter_bytes, price.trained, strict=True)
    return ((name, size) for name, size, mine in each if mine == trained)


def on_host(price: BlockCost, data: DataAxis) -> BlockCost:
    """A block where activations are offloaded: keeping them with the host takes the place of selective recomputation.

    They go down under the forward and come up under the backward, at the link's pace, in the open where a device has no
    streams beside (``DataAxis.hidden_s``). On their way up they stand whole, and behind them those of the next one.
    """
    copy_s = data.link_s(price.kept_bytes)
    hidden_s = data.hidden_s(price.forward_s, copy_s) + data.hidden_s(price.backward_s, copy_s)
    whole = (1 if data.prices.device.blocking else 2) * price.kept_bytes
    stays = price.kept_bytes if data.host.own else 0
    return replace(price, selective=SelectiveSaves(stays, whole, 2 * copy_s - hidden_s))
