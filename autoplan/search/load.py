"""The chain of segments as arrays, and what each stage holds of it: seconds and bytes of any run of segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoplan.graph import Model
from autoplan.pricing.data import DataAxis
from autoplan.pricing.prices import send_s
from autoplan.pricing.step import accumulate_s, held_microbatches, update_s
from autoplan.search.account import BlockPrice
from autoplan.search.candidates import Setting
from autoplan.search.choice import StageMemory

Interval = tuple[int, int]


@dataclass(frozen=True)
class Chain:
    """One number for each segment of the chain, of one microbatch on one device.

    forward_s, backward_s   what ZeRO's collectives leave exposed, its copies, and the adding up of gradients, included
    kept, inputs, outputs, constants, working, parameters, summed   bytes, as in ``BlockPrice``
    repeated     whether its block stands in the chain more than once, so that it may be recomputed
    exposed_s    what ZeRO's collectives add to forward and backward together
    held         (parameter's name, local bytes) of each segment
    """

    forward_s: np.ndarray
    backward_s: np.ndarray
    kept: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    constants: np.ndarray
    working: np.ndarray
    parameters: np.ndarray
    summed: np.ndarray
    repeated: np.ndarray
    exposed_s: np.ndarray
    held: tuple[tuple[tuple[str, int], ...], ...]

    def __len__(self) -> int:
        return len(self.forward_s)


def chain_of(model: Model, blocks: Sequence[BlockPrice], setting: Setting, data: DataAxis) -> Chain:
    """Lays the prices of the blocks along the chain."""
    uses = Counter(segment.block for segment in model.segments)
    order = [segment.block for segment in model.segments]
    training = data.prices.training
    further = (setting.microbatches - 1) / setting.microbatches  # the first one's gradients are kept as they come
    sizes = [sum(price.parameter_bytes) for price in blocks]
    waits_f = [data.exposed_forward_s(b.forward_s, p) for b, p in zip(blocks, sizes, strict=True)]
    waits_b = [
        data.exposed_backward_s(b.backward_s, p) if training else 0.0 for b, p in zip(blocks, sizes, strict=True)
    ]
    added = [accumulate_s(p, data.prices) * further if training else 0.0 for p in sizes]
    copies = [data.copies_s(p) for p in sizes]

    def along(values: Iterable[float]) -> np.ndarray:
        return np.array(list(values), dtype=float)[order]

    return Chain(
        forward_s=along(b.forward_s for b in blocks) + along(waits_f) + along(f for f, _ in copies),
        backward_s=along(b.backward_s for b in blocks)
        + along(waits_b)
        + along(added)
        + along(b * training for _, b in copies),
        kept=along(b.kept_bytes + data.cast_share * p for b, p in zip(blocks, sizes, strict=True)),
        inputs=along(b.input_bytes for b in blocks),
        outputs=along(b.output_bytes for b in blocks),
        constants=along(b.constant_bytes for b in blocks),
        working=along(b.working_bytes for b in blocks),
        parameters=along(sizes),
        summed=along(sum(b.summed_bytes) for b in blocks),
        repeated=np.array([uses[block] > 1 for block in order]),
        exposed_s=along(waits_f) + along(waits_b),
        held=tuple(
            tuple(zip(segment.parameters, blocks[segment.block].parameter_bytes, strict=True))
            for segment in model.segments
        ),
    )


@dataclass(frozen=True)
class Loads:
    """What a stage costs, for one setting.

    states   elements of optimizer state for each parameter element
    passes   of the optimizer over a parameter's bytes
    """

    chain: Chain
    setting: Setting
    data: DataAxis
    states: int
    passes: float

    @cached_property
    def largest(self) -> dict[str, np.ndarray]:
        """[N+1, N+1]: the largest of every run of segments; of what is kept, where it may be recomputed."""
        chain = self.chain
        return {
            "kept": range_max(np.where(chain.repeated, chain.kept, 0.0)),
            "working": range_max(chain.working),
            "constants": range_max(chain.constants),
            "parameters": range_max(chain.parameters),
        }

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        return held_microbatches(self.setting.schedule, self.setting.pp, self.setting.microbatches)

    def options(self, stage: int, wall: float) -> tuple[np.ndarray, np.ndarray]:
        """(seconds of a microbatch, segments recomputed), each [N+1, N+1] by first and last segment.

        As few segments are recomputed as the wall asks for; infinite seconds where even all don't suffice.
        """
        chain, size = self.chain, len(self.chain) + 1
        total = prefix(chain.forward_s + chain.backward_s)
        seconds = total[None, :] - total[:, None]
        index = prefix(chain.repeated)
        available = (index[None, :] - index[:, None]).astype(int)
        places = np.flatnonzero(chain.repeated)
        saving = prefix(np.maximum(chain.kept - chain.inputs, 0.0)[places]) * self.in_flight[stage]
        again = prefix(chain.forward_s[places])
        begin = np.broadcast_to(index[:, None].astype(int), (size, size))
        base = self.bytes_without_recompute(stage)
        if self.setting.recompute == "full":
            count = available.copy()
        else:
            need = np.where(base > wall, base + self.largest["kept"] - wall, 0.0)
            count = np.where(need > 0, np.searchsorted(saving, saving[begin] + need * (1 - 1e-12)) - begin, 0)
            if self.setting.recompute == "none":
                count = np.where(need > 0, size, 0)
        possible = (count <= available) & (available >= 0) & np.triu(np.ones((size, size), dtype=bool), 1)
        count = np.where(possible, count, 0)
        seconds = np.where(possible, seconds + again[begin + count] - again[begin], np.inf)
        if self.setting.recompute == "full":
            held = base - (saving[begin + count] - saving[begin]) + self.largest["kept"]
            seconds = np.where(held <= wall, seconds, np.inf)
        return seconds, count

    def bytes_without_recompute(self, stage: int) -> np.ndarray:
        """Bytes of every run of segments [first, last) on a stage, nothing recomputed; tied parameters counted as
        often as they are read, so never less than ``memory`` says."""
        chain, data = self.chain, self.data
        share = parameter_share(data, self.states)
        kept = prefix(chain.kept * self.in_flight[stage] + chain.parameters * share)
        held = kept[None, :] - kept[:, None]
        held = held + self.largest["working"] + self.largest["constants"] * self.in_flight[stage]
        whole, grads = data.gathered_segments
        held = held + (whole + grads) * self.largest["parameters"]
        first = np.append(chain.inputs, 0.0) * (self.setting.microbatches if stage > 0 else 0)
        last = np.insert(chain.outputs, 0, 0.0) * (self.setting.microbatches if stage < self.setting.pp - 1 else 0)
        return held + first[:, None] + last[None, :]

    def memory(self, stage: int, at: Interval, recompute: int) -> StageMemory:
        """Bytes of one stage at its busiest, a parameter that it reads twice counted once."""
        chain, data, flight = self.chain, self.data, self.in_flight[stage]
        first, last = at
        run = slice(first, last)
        parameters = self.parameter_bytes(at)
        again = np.zeros(last - first, dtype=bool)
        again[np.flatnonzero(chain.repeated[run])[:recompute]] = True
        once = chain.kept[run][~again].sum() + chain.inputs[run][again].sum() + chain.constants[run].max()
        activations = flight * once
        if stage > 0:
            activations += self.setting.microbatches * chain.inputs[first]
        if stage < self.setting.pp - 1:
            activations += self.setting.microbatches * chain.outputs[last - 1]
        whole, grads = data.gathered_segments
        transients = chain.working[run].max() + (whole + grads) * chain.parameters[run].max()
        transients += chain.kept[run][again].max(initial=0.0)
        training = data.prices.training
        return StageMemory(
            round(parameters * data.parameter_share),
            round(parameters * data.gradient_share) if training else 0,
            round(parameters * self.states * data.optimizer_share),
            round(activations),
            round(transients),
        )

    def parameter_bytes(self, at: Interval) -> int:
        """Local bytes of the parameters of a run of segments, each once."""
        return sum(dict(pair for held in self.chain.held[slice(*at)] for pair in held).values())

    def forward_s(self, at: Interval) -> float:
        return float(self.chain.forward_s[slice(*at)].sum())

    def backward_s(self, at: Interval, recompute: int) -> float:
        run = slice(*at)
        again = np.flatnonzero(self.chain.repeated[run])[:recompute]
        return float(self.chain.backward_s[run].sum() + self.chain.forward_s[run][again].sum())

    def exposed_s(self, at: Interval) -> float:
        """What ZeRO's collectives leave exposed in one microbatch."""
        return float(self.chain.exposed_s[slice(*at)].sum())

    def once_s(self, at: Interval) -> tuple[float, float, float, float]:
        """Once a step: (collectives of the data axis, of these hidden, sums over the tensor axis, the update with the
        copies beside those collectives)."""
        if not self.data.prices.training:
            return 0.0, 0.0, 0.0, 0.0
        parameters = self.parameter_bytes(at)
        forward_s, backward_s = self.forward_s(at), self.backward_s(at, 0)
        spent_s, hidden_s = self.data.once_s(self.unit_bytes(at), forward_s, backward_s)
        summed = self.data.prices.stored * float(self.chain.summed[slice(*at)].sum())
        summed_s = self.data.prices.collective_s("all-reduce", summed, "tp")
        updated = parameters * self.data.optimizer_share
        local_s = update_s(updated, self.passes, self.data.prices) + self.data.copies_once_s(parameters)
        return spent_s, hidden_s, summed_s, local_s

    def unit_bytes(self, at: Interval) -> list[float]:
        """Bytes of the parameters that each segment is the first to read."""
        seen: set[str] = set()
        sizes = []
        for held in self.chain.held[slice(*at)]:
            sizes.append(float(sum(size for name, size in held if name not in seen)))
            seen |= {name for name, _ in held}
        return [size for size in sizes if size]

    def message_s(self, stage: int, cut: int) -> float:
        """One message to a stage from the one before, over the border in front of a segment."""
        width = self.setting.dp * self.setting.tp
        return send_s(float(self.chain.inputs[cut]), stage, width, self.data.prices.topology)


def parameter_share(data: DataAxis, states: int) -> float:
    """Bytes of parameter, gradient and optimizer state held for each byte of parameter."""
    gradients = data.gradient_share if data.prices.training else 0.0
    return data.parameter_share + gradients + states * data.optimizer_share


def prefix(values: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, … of them."""
    return np.concatenate([[0.0], np.cumsum(values)])


def range_max(values: np.ndarray) -> np.ndarray:
    """[N+1, N+1]: the largest of values[first:last], 0 where there is none."""
    size = len(values) + 1
    found = np.zeros((size, size))
    for first in range(size - 1):
        found[first, first + 1 :] = np.maximum.accumulate(values[first:])
    return found
