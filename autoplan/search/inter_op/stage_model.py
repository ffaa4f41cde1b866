"""What each stage holds of the chain of segments: seconds and bytes of any run of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoplan.cost import update_bytes
from autoplan.cost.gathered_optimizer import WholeCost
from autoplan.cost.interleaved import Rounds, runs_rounds, splits
from autoplan.cost.prices import Prices
from autoplan.cost.step import held_microbatches, update_s
from autoplan.cost.zero_costs import DataAxis
from autoplan.ir.choice import StageMemory
from autoplan.search.inter_op.chain import Chain
from autoplan.search.inter_op.recomputation import Mix, Savings, range_max, savings
from autoplan.search.space.candidates import Setting

Interval = tuple[int, int]
Bytes = np.ndarray | float


@dataclass(frozen=True)
class Loads:
    """What a stage costs, for one setting.

    states   elements of optimizer state for each parameter element
    passes   of the optimizer over a parameter's bytes
    rounds   of a schedule that gives a rank several stages, or splits the backward
    spare    bytes of a device beyond the wall: those that the cluster's smallest lacks
    ranks    where there are several kinds of device, the loads of each pipeline rank on its own (``kinds``): seconds
             differ, bytes don't; what stands beside them here is then for the slowest
    whole    what an optimizer that looks at whole matrices takes beside
    """

    chain: Chain
    setting: Setting
    data: DataAxis
    states: float
    passes: float
    rounds: Rounds | None = None
    spare: float = 0.0
    ranks: tuple[Loads, ...] = ()
    whole: WholeCost | None = None

    def at(self, stage: int) -> Loads:
        """The loads on the devices that a stage is on."""
        return self.ranks[stage % self.setting.pp] if self.ranks else self

    @cached_property
    def largest(self) -> dict[str, np.ndarray]:
        """[N+1, N+1]: the largest of every run of segments; of what is kept, where it may be recomputed."""
        chain = self.chain
        return {
            "kept": range_max(np.where(chain.repeated, chain.kept, 0.0)),
            "rebuilt": range_max(np.where(chain.repeated, chain.rebuilt, 0.0)),
            "working": range_max(chain.working),
            "constants": range_max(chain.constants),
            "parameters": range_max(chain.parameters),
            "parameter": range_max(chain.largest_parameter),
        }

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Microbatches that each stage holds at most."""
        if runs_rounds(self.setting.schedule):
            assert self.rounds is not None
            most = np.stack([held.max(axis=0) for held in self.rounds.held])
            return tuple(most.T.ravel().tolist())
        return held_microbatches(self.setting.schedule, self.setting.pp, self.setting.microbatches)

    @cached_property
    def savings(self) -> Savings:
        """What recomputing the chain's repeated segments saves and costs."""
        chain = self.chain
        columns = (chain.kept, chain.inputs, chain.selective, chain.rebuilt, chain.forward_s, chain.again_s)
        return savings(*(column[chain.repeated] for column in columns))

    def options(self, stage: int, wall: float) -> Mix:
        """Seconds of a microbatch, and how many segments are recomputed, each [N+1, N+1] by first and last segment.

        As cheap a mix as the wall allows; infinite seconds where even the leanest doesn't suffice.
        """
        wall = wall + self.spare
        size = len(self.chain) + 1
        total = prefix(self.chain.forward_s + self.chain.backward_s)
        waits_s = self.messages_s(stage)
        index = prefix(self.chain.repeated).astype(int)
        begin = np.broadcast_to(index[:, None], (size, size))
        count = index[None, :] - begin
        runs = np.triu(self.within_host(wall) & (self.emptied_bytes(stage) <= wall), 1)
        over = self.bytes_without_recompute(stage) - wall
        if self.setting.recompute in ("full", "selective"):
            mix = self.recomputed_alike(stage, begin, np.maximum(count, 0), over)
        else:
            none = np.zeros((size, size), dtype=int)
            mix = Mix(np.where(over > 0, np.inf, 0.0), none, none.copy())
        if self.setting.recompute == "auto":
            self.mix_into(mix, stage, begin, count, over, runs & (over > 0))
        seconds = np.where(runs, total[None, :] - total[:, None] + waits_s + mix.seconds, np.inf)
        possible = np.isfinite(seconds)
        return Mix(seconds, np.where(possible, mix.full, 0), np.where(possible, mix.selective, 0))

    def recomputed_alike(self, stage: int, begin: np.ndarray, count: np.ndarray, over: np.ndarray) -> Mix:
        """Every repeated segment recomputed as the setting says; infinite where that isn't enough."""
        full, none = self.setting.recompute == "full", np.zeros_like(count)
        enough = self.excess(stage, begin, count, over, self.setting.recompute) <= 0
        spent_s = self.savings.all_of(self.setting.recompute, begin, count)[1]
        return Mix(np.where(enough, spent_s, np.inf), count if full else none, none if full else count)

    def mix_into(
        self, mix: Mix, stage: int, begin: np.ndarray, count: np.ndarray, over: np.ndarray, tight: np.ndarray
    ) -> None:
        """Sets the cheapest mix of the runs that exceed the wall, where any recomputation is enough."""
        flight = self.in_flight[stage]
        most = self.savings.most_bytes
        tight = tight & (over <= (most[np.maximum(begin + count, 0)] - most[begin]) * flight)
        found = self.savings.cheapest(begin[tight], count[tight], over[tight], flight)
        mix.seconds[tight], mix.full[tight], mix.selective[tight] = found.seconds, found.full, found.selective

    def excess(self, stage: int, begin: np.ndarray, count: np.ndarray, over: np.ndarray, kind: str) -> np.ndarray:
        """Bytes over the wall where all repeated segments are recomputed, "full" or "selective"."""
        saved = self.savings.all_of(kind, begin, count)[0] * self.in_flight[stage]
        return over - saved + self.largest["kept" if kind == "full" else "rebuilt"]

    def within_host(self, wall: float) -> np.ndarray:
        """Whether what every run of segments keeps in the host's memory fits there; all do where there is no wall."""
        share = self.data.host_share(self.states)
        if not share or np.isinf(wall):
            return np.ones((len(self.chain) + 1,) * 2, dtype=bool)
        return self.chain.together * share <= self.data.host.memory_bytes

    def emptied_bytes(self, stage: int) -> np.ndarray:
        """Bytes of every run of segments on a stage with nothing in flight: however much is recomputed."""
        total = self.chain.together
        beside = self.emptied(total, self.largest["parameter"], self.largest["parameters"])
        return total * parameter_share(self.data, self.states) + beside + self.buffers(stage)

    def emptied(self, total: Bytes, largest: Bytes, unit: Bytes) -> Bytes:
        """What stands beside states and buffers with nothing in flight: what the optimizer makes for a moment, or,
        before that, the gradients of one segment on their way to their shards.

        total    bytes of parameters
        largest  the largest parameter's, at most
        unit     the largest segment's
        """
        return np.maximum(total * self.updates_together + self.largest_alone(largest), self.reduced(unit))

    def reduced(self, unit: Bytes) -> Bytes:
        """Bytes of a segment's gradients while fully_shard sends them to their shards."""
        data = self.data
        return unit * (data.prices.stored if data.zero and data.prices.training else 0.0)

    @property
    def updates_together(self) -> float:
        """Bytes that the optimizer makes for a moment, for each byte of parameters that it updates at once."""
        return float(self.updates(1.0, 0.0))

    def largest_alone(self, parameter: Bytes) -> Bytes:
        """The same of one parameter that is updated by itself."""
        standing = self.whole.standing_bytes(parameter, self.data) if self.whole is not None else 0.0
        return np.maximum(self.updates(0.0 * parameter, parameter), standing)

    def updates(self, total: Bytes, largest: Bytes) -> Bytes:
        data = self.data
        if data.offloads or not data.prices.training:
            return 0.0 * total
        share = data.optimizer_share
        return update_bytes(total * share, largest * share, together=not data.prices.device.composes)

    def buffers(self, stage: int) -> np.ndarray:
        """[N+1, N+1]: bytes that a stage receives into, and of the gradients of what leaves it, of all microbatches."""
        many, chain = self.setting.microbatches, self.chain
        first = np.append(chain.inputs, 0.0) * (many if stage > 0 else 0)
        last = np.insert(chain.outputs, 0, 0.0) * (many if stage < self.setting.pp - 1 else 0)
        return first[:, None] + last[None, :]

    def bytes_without_recompute(self, stage: int) -> np.ndarray:
        """[N+1, N+1]: bytes of every run of segments [first, last) on a stage, nothing recomputed."""
        states = self.chain.together * parameter_share(self.data, self.states)
        return states + self.bytes_beside_states(stage)

    def bytes_beside_states(self, stage: int) -> np.ndarray:
        """[N+1, N+1]: of these what isn't states of parameters."""
        chain, data = self.chain, self.data
        kept = prefix(chain.kept * self.in_flight[stage])
        held = kept[None, :] - kept[:, None]
        held = held + self.largest["working"] + self.largest["constants"] * self.in_flight[stage]
        whole, grads = data.gathered_segments
        held = held + (whole + grads) * self.largest["parameters"]
        leaving = self.in_flight[stage] if stage < self.setting.pp - 1 else 0
        return held + self.buffers(stage) + np.insert(chain.outputs, 0, 0.0)[None, :] * leaving

    def recomputed(self, at: Interval, recompute: int, selective: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each segment of a run, whether it is recomputed in full, and whether selectively."""
        places = np.flatnonzero(self.chain.repeated[slice(*at)])
        full, part = np.zeros((2, at[1] - at[0]), dtype=bool)
        full[places[:recompute]] = True
        part[places[recompute : recompute + selective]] = True
        return full, part

    def memory(self, stage: int, at: Interval, recompute: int, selective: int = 0) -> StageMemory:
        """Bytes of one stage at its busiest, a parameter that it reads twice counted once."""
        chain, data, flight = self.chain, self.data, self.in_flight[stage]
        first, last = at
        run = slice(first, last)
        parameters = self.parameter_bytes(at)
        full, part = self.recomputed(at, recompute, selective)
        kept = np.where(full, chain.inputs[run], np.where(part, chain.selective[run], chain.kept[run]))
        leaving = chain.outputs[last - 1] if stage < self.setting.pp - 1 else 0.0
        flying = flight * (kept.sum() + chain.constants[run].max() + leaving)
        buffers = self.setting.microbatches * (leaving + (chain.inputs[first] if stage > 0 else 0.0))
        whole, grads = data.gathered_segments
        transients = chain.working[run].max() + (whole + grads) * chain.parameters[run].max()
        transients += max(chain.kept[run][full].max(initial=0.0), chain.rebuilt[run][part].max(initial=0.0))
        training = data.prices.training
        most = max((size for held in chain.held[run] for _, size in held), default=0)
        emptied = self.emptied(parameters, most, chain.parameters[run].max())
        transients = max(transients, float(emptied) - flying)
        return StageMemory(
            round(parameters * data.parameter_share),
            round(parameters * data.gradient_share) if training else 0,
            round(parameters * data.states_share(self.states)),
            round(flying + buffers),
            round(transients),
            round(parameters * data.host_share(self.states) + flight * self.hosted_bytes(at, part)),
        )

    def hosted_bytes(self, at: Interval, part: np.ndarray) -> float:
        """Of a run of segments what lies in a host's memory apart, of one microbatch: of those that are in the place of
        selective recomputation."""
        if self.data.offload != "activations" or self.data.host.own:
            return 0.0
        return float(self.chain.kept[slice(*at)][part].sum())

    def parameter_bytes(self, at: Interval) -> int:
        """Local bytes of the parameters of a run of segments, each once."""
        if not self.chain.shares:
            return int(self.chain.parameters[slice(*at)].sum())
        return sum(dict(pair for held in self.chain.held[slice(*at)] for pair in held).values())

    def forward_s(self, at: Interval) -> float:
        return float(self.chain.forward_s[slice(*at)].sum())

    def backward_s(self, at: Interval, recompute: int, selective: int = 0) -> float:
        run = slice(*at)
        full, part = self.recomputed(at, recompute, selective)
        again_s = self.chain.forward_s[run][full].sum() + self.chain.again_s[run][part].sum()
        return float(self.chain.backward_s[run].sum() + again_s)

    def exposed_s(self, at: Interval) -> float:
        """What ZeRO's collectives leave exposed in one microbatch."""
        return float(self.chain.exposed_s[slice(*at)].sum())

    def once_s(self, at: Interval) -> tuple[float, float, float, float]:
        """Once a step: (collectives of the data axis, of these hidden, sums over the tensor axis, the update with the
        copies beside those collectives)."""
        if not self.data.prices.training:
            return 0.0, 0.0, 0.0, 0.0
        alike = self.chain.alike(at)
        if alike not in self.onces:
            self.onces[alike] = self.priced_once_s(at)
        return self.onces[alike]

    @cached_property
    def onces(self) -> dict[Hashable, tuple[float, float, float, float]]:
        """What ``once_s`` was of runs of segments that are alike."""
        return {}

    def priced_once_s(self, at: Interval) -> tuple[float, float, float, float]:
        parameters = self.parameter_bytes(at)
        forward_s, backward_s = self.forward_s(at), self.backward_s(at, 0)
        spent_s, hidden_s = self.data.once_s(self.unit_bytes(at), forward_s, backward_s)
        sums = self.summed_bytes(at).items()
        summed_s = sum(self.data.prices.collective_s("all-reduce", size, axis) for axis, size in sums)
        updated = parameters * self.data.optimizer_share
        local_s = update_s(updated, self.passes, self.data) + self.data.copies_once_s(parameters)
        local_s += self.whole.seconds(parameters, self.data) if self.whole is not None else 0.0
        return spent_s, hidden_s, summed_s, local_s

    def summed_bytes(self, at: Interval) -> dict[str, float]:
        """Bytes of the gradients that are summed once a step, by tensor axis."""
        sums = self.data.prices.stored * self.chain.summed[slice(*at)].sum(axis=0)
        return dict(zip(self.data.prices.mesh.tensor_axes, sums.tolist(), strict=True))

    def unit_bytes(self, at: Interval) -> list[float]:
        """Bytes of the parameters that each segment is the first to read."""
        if not self.chain.shares:
            return [size for size in self.chain.parameters[slice(*at)].tolist() if size]
        seen: set[str] = set()
        sizes = []
        for held in self.chain.held[slice(*at)]:
            sizes.append(float(sum(size for name, size in held if name not in seen)))
            seen |= {name for name, _ in held}
        return [size for size in sizes if size]

    def messages_s(self, stage: int) -> np.ndarray:
        """[N+1, N+1] or 0: what a stage waits for in each microbatch, by its first and last segment: the activations
        that enter it, and the gradients of those that leave it (``timeline``)."""
        last = self.setting.stages - 1
        enters = self.border_s(stage) if stage > 0 else 0.0
        leaves = self.border_s(stage + 1) if stage < last else 0.0
        return np.reshape(enters, (-1, 1)) + np.reshape(leaves, (1, -1))

    def hidden_s(self, stage: int) -> np.ndarray | float:
        """[N+1, N+1] or 0: what 1F1B hides of a stage's forwards for each microbatch after the first. The forwards that
        warm a stage up, one for each stage behind it, run while the first microbatch goes on to the end and comes back
        (``refine.least_line_s``)."""
        setting, more = self.setting, self.setting.microbatches - 1
        warm = min(more, setting.pp - 1 - stage)
        if setting.schedule != "1f1b" or not warm:
            return 0.0
        total = prefix(self.chain.forward_s)
        enters = self.border_s(stage) if stage > 0 else 0.0
        return (total[None, :] - total[:, None] + np.reshape(enters, (-1, 1))) * (warm / more)

    @cached_property
    def least_messages_s(self) -> float:
        """What all stages together wait for in each microbatch at least: one message each way over every border."""
        setting = self.setting
        if setting.pp == 1:
            return 0.0
        size = float(self.chain.inputs[1:].min(initial=np.inf))
        shortest_s = min(self.sent_s(rank, size) for rank in range(1, setting.pp)) if np.isfinite(size) else 0.0
        return 2 * (setting.stages - 1) * shortest_s

    def border_s(self, stage: int) -> np.ndarray:
        """[N+1]: one message to a stage from the one before, by the segment in front of which the border lies."""
        sizes, places = self.chain.distinct_inputs
        return np.append(np.array([self.sent_s(stage, size) for size in sizes])[places], 0.0)

    def message_s(self, stage: int, cut: int) -> float:
        """One message to a stage from the one before, over the border in front of a segment."""
        return self.sent_s(stage, float(self.chain.inputs[cut]))

    def sent_s(self, stage: int, bytes: float) -> float:
        """To the pipeline rank that has the stage, from the one that has the stage before."""
        ranks, width = self.setting.pp, self.setting.dp * self.setting.tp
        return self.data.prices.message_s(bytes, stage % ranks, width, (stage - 1) % ranks)


def data_axis(setting: Setting, prices: Prices, states: float) -> DataAxis:
    """A setting's data axis; ``states``: elements of optimizer state for each parameter element."""
    return DataAxis(
        setting.zero, setting.dp, prices, setting.pp > 1, setting.offload, late=splits(setting.schedule),
        local_steps=setting.local_steps, averaged=1.0 + states, versions=setting.versions,
    )  # fmt: skip


def parameter_share(data: DataAxis, states: float) -> float:
    """Bytes of parameter, gradient and optimizer state that the device holds for each byte of parameter."""
    gradients = data.gradient_share if data.prices.training else 0.0
    return data.parameter_share + gradients + data.states_share(states)


def prefix(values: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, … of them."""
    return np.concatenate([[0.0], np.cumsum(values)])
