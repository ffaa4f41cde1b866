"""The chain of segments as arrays: seconds and bytes of each, in one microbatch on one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from autoplan.cost.interleaved import splits
from autoplan.cost.zero_costs import DataAxis
from autoplan.ir.graph import Model
from autoplan.search.block_cost.account import BlockCost
from autoplan.search.block_cost.selective import SelectiveSaves
from autoplan.search.inter_op.rank_memory import HeldParameters
from autoplan.search.space.candidates import Candidate


@dataclass(frozen=True)
class Chain:
    """One number for each segment of the chain, of one microbatch on one device.

    forward_s, backward_s   what ZeRO's collectives leave exposed, its copies, and the adding up of gradients, included
    weights_s    of backward_s, what gives parameters' gradients alone
    kept, inputs, outputs, constants, working, parameters   bytes, as in ``BlockCost``
    owned        bytes of parameters, each divided among the segments of a stage that may read it: of any of a rank's
                 segments no more than they hold
    elsewhere    of ``parameters``, as in ``SegmentBytes``
    selective, rebuilt, again_s   bytes and seconds of a segment that recomputes selectively, as in ``SelectiveSaves``
    selective_inputs, selective_backward, selective_adding   bytes of such a segment at its moments, as in ``Live``
    repeated     whether its block stands in the chain more than once, so that it may be recomputed
    exposed_s    what ZeRO's collectives add to forward and backward together
    halves       of ``kept``, what a split backward makes in its first half and keeps for the second
    kept_inputs, live_forward, live_backward, live_adding   bytes at their moments, as in ``Live``
    held         parameters by segment
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
    repeated: np.ndarray
    selective: np.ndarray
    rebuilt: np.ndarray
    selective_inputs: np.ndarray
    selective_backward: np.ndarray
    selective_adding: np.ndarray
    again_s: np.ndarray
    exposed_s: np.ndarray
    halves: np.ndarray
    kept_inputs: np.ndarray
    live_forward: np.ndarray
    live_backward: np.ndarray
    live_adding: np.ndarray
    held: HeldParameters

    def __len__(self) -> int:
        return len(self.forward_s)

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
        return at if self.shares else self.weighing[slice(*at)].tobytes()

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
    model: Model, blocks: Sequence[BlockCost], setting: Candidate, data: DataAxis, held: HeldParameters
) -> Chain:
    """Lays the prices of the blocks along the chain."""
    blocks = [on_host(price, data) for price in blocks] if data.offload == "activations" else blocks
    uses = Counter(segment.block for segment in model.segments)
    order = [segment.block for segment in model.segments]
    training = data.prices.training
    sizes = [sum(price.parameter_bytes) for price in blocks]
    waits_f = [data.exposed_forward_s(b.forward_s, b.parameters) for b in blocks]
    waits_b = [data.exposed_backward_s(b.backward_s, b.parameters) if training else 0.0 for b in blocks]
    added = [data.added_s(p) if training else 0.0 for p in sizes]
    copies = [data.copies_s(p) for p in sizes]
    if training and uses[order[-1]] == 1:
        head = blocks[order[-1]]
        waits_b[order[-1]] = data.exposed_backward_s(head.backward_s, head.parameters, last=True)
        copies[order[-1]] = data.copies_s(sizes[order[-1]], last=True)

    def along(values: Iterable[float]) -> np.ndarray:
        return np.array(list(values), dtype=float)[order]

    halves = along(b.live.halves * splits(setting.schedule) for b in blocks)
    return Chain(
        forward_s=along(b.forward_s for b in blocks) + along(waits_f) + along(f for f, _ in copies),
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
        owned=held.owned(setting.pp),
        elsewhere=data.elsewhere * held.dense(data.wide).bytes,
        repeated=np.array([uses[block] > 1 for block in order]),
        selective=along(b.selective.kept_bytes for b in blocks),
        rebuilt=along(b.selective.rebuilt_bytes for b in blocks),
        selective_inputs=along(b.selective.live.kept_inputs for b in blocks),
        selective_backward=along(b.selective.live.backward for b in blocks),
        selective_adding=along(b.selective.live.adding for b in blocks),
        again_s=along(b.selective.again_s for b in blocks),
        exposed_s=along(waits_f) + along(waits_b),
        kept_inputs=along(b.live.kept_inputs for b in blocks),
        live_forward=along(b.live.forward for b in blocks),
        live_backward=along(b.live.backward for b in blocks),
        live_adding=along(b.live.adding for b in blocks),
        held=held,
    )


def held_by(model: Model, blocks: Sequence[BlockCost]) -> HeldParameters:
    """Parameters of each segment, with their local bytes."""
    return HeldParameters(
        tuple(
            tuple(zip(segment.parameters, blocks[segment.block].parameter_bytes, strict=True))
            for segment in model.segments
        ),
        {
            name: axes
            for segment in model.segments
            for name, axes in zip(segment.parameters, blocks[segment.block].summed_axes, strict=True)
            if axes
        },
    )


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
