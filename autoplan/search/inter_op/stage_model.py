"""What each stage holds of the chain of segments: seconds and bytes of any run of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np

from autoplan.cost import update_bytes
from autoplan.cost.gathered_optimizer import WholeCost
from autoplan.cost.interleaved import ACCUMULATING, SENDING, InterleavedSchedule
from autoplan.cost.prices import COPY
from autoplan.cost.step import held_between_steps, held_microbatches, receives_ahead, update_s
from autoplan.cost.zero_costs import DataAxis
from autoplan.ir.choice import StageChoice, StageMemory
from autoplan.search.inter_op.chain import Chain
from autoplan.search.inter_op.parameter_shares import (
    at_once,
    border_bytes,
    cost_of_compressed,
    gathered_bytes,
    kept_beside,
    message_buffers,
    shard_share,
    summed_whole,
)
from autoplan.search.inter_op.rank_excess import padded
from autoplan.search.inter_op.rank_memory import SegmentBytes, StageBytes, Summed
from autoplan.search.inter_op.recomputation import RecomputeMix, RecomputeSavings, prefix, savings
from autoplan.search.space.candidates import Candidate

Interval = tuple[int, int]
Bytes = np.ndarray | float
FULL, PART = "full", "selective"


@dataclass(frozen=True)
class StageModel:
    """What a stage costs, for one candidate.

    states       elements of optimizer state for each parameter element
    passes       of the optimizer over a parameter's bytes
    interleaved  the actions of a schedule that gives a rank several stages, or splits the backward
    headroom     bytes of a device beyond the memory limit: those that the cluster's smallest lacks
    ranks        where there are several kinds of device, the model of each pipeline rank's own (``heterogeneous``):
                 seconds differ, bytes don't; what stands beside them here is then for the slowest
    whole        what an optimizer that looks at whole matrices takes beside
    one_pass     an update makes nothing for a moment (``cost.step.in_one_pass``)
    """

    chain: Chain
    candidate: Candidate
    data: DataAxis
    states: float
    passes: float
    interleaved: InterleavedSchedule | None = None
    headroom: float = 0.0
    ranks: tuple[StageModel, ...] = ()
    whole: WholeCost | None = None
    one_pass: bool = False

    def at(self, stage: int) -> StageModel:
        """The model of the devices that a stage is on."""
        return self.ranks[stage % self.candidate.pp] if self.ranks else self

    @cached_property
    def ahead(self) -> int:
        """Actions by which a message's receive precedes the one that reads it."""
        return receives_ahead(self.data.prices.device)

    @cached_property
    def moments(self) -> tuple[np.ndarray, ...]:
        """For each pipeline rank [moments, stages on it]: microbatches in flight of each, when most are."""
        if self.interleaved:
            return self.interleaved.held
        held = held_microbatches(self.candidate.schedule, self.candidate.pp, self.candidate.microbatches)
        return tuple(np.array([[most]]) for most in held)

    @cached_property
    def standing(self) -> tuple[np.ndarray, ...]:
        """The same of what then stands of gradients."""
        if self.interleaved:
            return self.interleaved.standing
        return tuple(np.full_like(rows, ACCUMULATING) for rows in self.moments)

    @cached_property
    def emptied(self) -> np.ndarray:
        """[stages on a rank]: what stands of them with nothing in flight."""
        return self.interleaved.emptied if self.interleaved else np.array([SENDING])

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Microbatches that each stage holds at most."""
        return tuple(np.stack([rows.max(axis=0) for rows in self.moments]).T.ravel().tolist())

    @cached_property
    def memory_account(self) -> SegmentBytes:
        """What each segment adds to its rank's memory."""
        chain, data, candidate = self.chain, self.data, self.candidate
        sizes = candidate.schedule, candidate.pp, candidate.microbatches
        ties, others = chain.held.ties, chain.held_frozen.ties
        left, left_ties = kept_beside(data, chain, self.states)
        return SegmentBytes(
            parameters=chain.parameters, elsewhere=chain.elsewhere, untouched=chain.untouched,
            bucketed=chain.held.bucketed(data), frozen=chain.frozen + left, kept=chain.kept, inputs=chain.inputs,
            selective=chain.selective, rebuilt=chain.rebuilt, constants=chain.constants, working=chain.working,
            gathered=gathered_bytes(data, chain), repeated=chain.repeated, at_once=at_once(data, chain),
            alone=np.maximum(self.alone, data.beside_update(chain.parameters)),
            message=np.append(0.0, border_bytes(chain)), messages=message_buffers(candidate),
            unkept=np.append(0.0, np.maximum(chain.inputs - chain.kept_inputs, 0.0)[1:]),
            ties=(*ties, *((places, 0.0) for places, _ in others)),
            ties_elsewhere=(*chain.held.ties_elsewhere(data.elsewhere, data.wide), *[0.0] * len(others)),
            ties_frozen=(*left_ties, *chain.held_frozen.shared_out(data.frozen_share)[1]),
            state_share=data.parameter_share + data.states_share(self.states),
            update_share=float(self.updates(1.0, 0.0)),
            shard_share=shard_share(data, self.states),
            gradient_shares=np.array(data.gradient_shares),
            sharded_gradients=np.array(data.sharded_gradients),
            stashed=held_between_steps(*sizes, chain.held.joins_ends, data.gradient_shares[ACCUMULATING]),
        )

    @cached_property
    def runs(self) -> StageBytes:
        """[N+1, N+1] by first and last segment: what a stage needs, recomputed as far as that is pinned."""
        account = self.memory_account
        counts = np.maximum(account.index[None, :] - account.index[:, None], 0)
        pinned = self.candidate.recompute
        places = np.arange(len(self.chain) + 1)
        return account.stages(places[:, None], places[None, :], counts * (pinned == FULL), counts * (pinned == PART))

    @cached_property
    def savings(self) -> RecomputeSavings:
        """What recomputing the chain's repeated segments saves and costs."""
        chain = self.chain
        columns = (chain.kept, chain.inputs, chain.selective, chain.rebuilt, chain.forward_s, chain.again_s)
        return savings(*(column[chain.repeated] for column in columns))

    def options(self, stage: int, memory_limit: float) -> RecomputeMix:
        """Seconds of a microbatch, and how many segments are recomputed, each [N+1, N+1] by first and last segment.

        As cheap a mix as the memory limit allows; infinite seconds where even the leanest doesn't suffice.
        """
        memory_limit, account, flight = memory_limit + self.headroom, self.memory_account, self.in_flight[stage]
        total = prefix(self.chain.forward_s + self.chain.backward_s)
        count = account.index[None, :] - account.index[:, None]
        begin = np.broadcast_to(account.index[:, None], count.shape)
        beside = account.stashed[stage].sum() * account.once(self.runs)
        emptied = account.emptied(self.runs) + account.gradients(self.runs, SENDING) + beside
        possible = np.triu(self.within_host(memory_limit) & (emptied <= memory_limit), 1)
        held = beside + account.gradients(self.runs, ACCUMULATING) + flight * self.runs.flight
        over = account.running(self.runs) + held - memory_limit
        mix = self.pinned_mix(begin, np.maximum(count, 0))
        mix.seconds[over > 0] = np.inf
        if self.candidate.recompute == "auto":
            most = self.savings.most_bytes
            saved = (most[np.maximum(begin + count, 0)] - most[begin]) * flight
            over[0, -1] += account.at_once[1] if account.at_once else 0.0
            tight = possible & np.isinf(mix.seconds) & (over <= saved)
            found = self.savings.cheapest(begin[tight], count[tight], over[tight], flight)
            mix.seconds[tight], mix.full[tight], mix.selective[tight] = found.seconds, found.full, found.selective
        spent_s = total[None, :] - total[:, None] + self.messages_s(stage)
        seconds = np.where(possible, spent_s + mix.seconds, np.inf)
        possible = np.isfinite(seconds)
        return RecomputeMix(seconds, np.where(possible, mix.full, 0), np.where(possible, mix.selective, 0))

    def pinned_mix(self, begin: np.ndarray, count: np.ndarray) -> RecomputeMix:
        """Every repeated segment recomputed as is pinned; none where nothing is."""
        none, pinned = np.zeros_like(count), self.candidate.recompute
        if pinned not in (FULL, PART):
            return RecomputeMix(np.zeros(count.shape), none, none.copy())
        spent_s = self.savings.all_of(pinned, begin, count)[1]
        return RecomputeMix(spent_s, count if pinned == FULL else none, none if pinned == FULL else count)

    def within_host(self, memory_limit: float) -> np.ndarray:
        """Whether what every run of segments keeps in the host's memory fits there; all do under no limit."""
        share = self.data.host_share(self.states)
        if not share or np.isinf(memory_limit):
            return np.ones((len(self.chain) + 1,) * 2, dtype=bool)
        account, frozen = self.memory_account, prefix(self.frozen_hosted)
        trained = (account.once(self.runs) - account.elsewhere_once(self.runs)) * share
        return trained + np.maximum(frozen[None, :] - frozen[:, None], 0.0) <= self.data.host.memory_bytes

    @cached_property
    def frozen_hosted(self) -> np.ndarray:
        """[segments] bytes in a host's memory apart of tables, and of parameters that aren't trained; what several
        segments read is in the first one's."""
        kinds = self.chain.held_frozen.kinds.items()
        parts = (self.data.frozen_host_share(axes) * kind.first_read((0, len(self.chain))) for axes, kind in kinds)
        return np.asarray(sum(parts, self.chain.tables_hosted * self.data.tables_apart))

    @cached_property
    def alone(self) -> np.ndarray:
        """[segments] bytes that the optimizer makes at once for the largest parameter that it updates by itself."""
        held, wide, chain = self.chain.held, self.data.wide, self.chain
        largest = np.minimum(held.largest, chain.parameters - chain.untouched)
        standing = self.whole.standing_bytes(largest, self.data) if self.whole is not None else 0.0
        if wide:
            experts, dense = held.those(lambda axes: wide[0] not in axes), held.dense(wide)
            largest = np.maximum(experts.largest, dense.largest / self.data.wide_ways)
        return np.maximum(self.updates(0.0 * largest, largest), standing)

    def updates(self, total: Bytes, largest: Bytes) -> Bytes:
        data = self.data
        if data.offloads or not data.prices.training or self.one_pass:
            return 0.0 * total
        share = data.optimizer_share * data.updated
        return update_bytes(total * share, largest * share, together=not data.prices.device.composes)

    def recomputed(self, at: Interval, recompute: int, selective: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each segment of a run, whether it is recomputed in full, and whether selectively."""
        places = np.flatnonzero(self.chain.repeated[slice(*at)])
        full, part = np.zeros((2, at[1] - at[0]), dtype=bool)
        full[places[:recompute]] = True
        part[places[recompute : recompute + selective]] = True
        return full, part

    def needs(self, stages: Sequence[StageChoice]) -> StageBytes:
        """[stages]: what each needs."""
        return self.memory_account.stages(*np.array([astuple(stage) for stage in stages]).T)

    def memory_of(self, stages: Sequence[StageChoice], dealt: Sequence[int] | None = None) -> tuple[StageMemory, ...]:
        """What one device of each pipeline rank needs: at its fullest moment, and beside that the transients, or as
        much of what it takes with nothing in flight as is more.

        dealt  the ranks among which the stages are; None: all
        """
        account, data, dealt = self.memory_account, self.data, range(self.candidate.pp) if dealt is None else dealt
        each, count = self.needs(stages), len(dealt)
        ranks, hosted = each.by_rank(count), np.array([self.hosted_bytes(stage) for stage in stages])
        held, standing = (padded([rows[rank] for rank in dealt]) for rows in (self.moments, self.standing))
        flights, hosts = ((held @ part.reshape(-1, count).T[..., None])[..., 0] for part in (each.flight, hosted))
        gradients = np.broadcast_to(account.gradients_at(each, ranks, standing)[..., 0], flights.shape)
        fullest, places = (flights + gradients).argmax(axis=1), np.arange(count)
        flying, stands, with_host = flights[places, fullest], gradients[places, fullest], hosts.max(axis=1)
        left = account.gradients_at(each, ranks, np.broadcast_to(self.emptied, (count, 1, len(self.emptied))))
        after = account.update(ranks) + left[:, 0, 0] - stands - flying - ranks.buffers
        parameters, elsewhere = account.once(ranks), account.elsewhere_once(ranks)
        frozen_hosted = np.array([self.frozen_hosted[stage.first : stage.last].sum() for stage in stages])
        with_host += frozen_hosted.reshape(-1, count).sum(axis=0)
        older, more = account.stashed[list(dealt)].T * parameters
        older += account.frozen_once(ranks)
        return tuple(
            StageMemory(*map(round, row))
            for row in zip(
                (parameters * data.parameter_share - elsewhere * data.sharded * data.shard_share + older).tolist(),
                (stands + more).tolist(),
                ((parameters - elsewhere) * data.states_share(self.states)).tolist(),
                (flying + ranks.buffers).tolist(),
                np.maximum(ranks.transients, after).tolist(),
                ((parameters - elsewhere) * data.host_share(self.states) + with_host).tolist(),
                strict=True,
            )
        )

    def hosted_bytes(self, stage: StageChoice) -> float:
        """Of one microbatch what lies in a host's memory apart: all that offloaded segments keep, in the place
        of selective recomputation."""
        if self.data.offload != "activations" or self.data.host.own:
            return 0.0
        at = (stage.first, stage.last)
        return float(self.chain.kept[slice(*at)][self.recomputed(at, stage.recompute, stage.selective)[1]].sum())

    def parameter_bytes(self, at: Interval) -> int:
        """Local bytes of the parameters of a run of segments, each once."""
        return int(self.chain.held.first_read(at).sum())

    def forward_s(self, at: Interval) -> float:
        return float(self.chain.forward_s[slice(*at)].sum())

    def backward_s(self, at: Interval, recompute: int, selective: int = 0) -> float:
        run, (full, part) = slice(*at), self.recomputed(at, recompute, selective)
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
        if alike not in self.chain.onces:
            self.chain.onces[alike] = self.priced_once_s(at)
        return self.chain.onces[alike]

    def priced_once_s(self, at: Interval) -> tuple[float, float, float, float]:
        parameters = self.parameter_bytes(at)
        forward_s, backward_s = self.forward_s(at), self.backward_s(at, 0)
        units, sent = self.unit_bytes(at), cost_of_compressed(self.data, self.chain.held, at)
        once, every_s = self.data.once_s(units, forward_s, backward_s, self.chain.opening(at)), forward_s + backward_s
        spent_s, hidden_s = self.data.with_pulls(once, parameters, self.candidate.microbatches * every_s)
        sums = self.summed_bytes(at)
        beside_s, early_s = self.data.beside_s(sums, units, backward_s)
        summed_s = beside_s - early_s + self.tied_s(at)
        elsewhere = float(self.data.elsewhere * self.chain.held.dense(self.data.wide).first_read(at).sum())
        elsewhere += float(self.chain.untouched[slice(*at)].sum())  # is updated by nobody
        updated = (parameters - elsewhere) * self.data.optimizer_share * self.data.updated
        local_s = self.data.copies_once_s(parameters, parameters - sum(sum(unit.values()) for unit in units))
        local_s += self.data.prices.cold_s(COPY * sum(sums.values()))
        local_s += self.data.updates * update_s(updated, self.passes, self.data, self.states)
        if sent is not None:
            spent_s, local_s = spent_s + sent.sums_s(self.data.prices), local_s + sent.local_s(self.data.prices)
        local_s += self.whole.seconds(parameters, elsewhere, self.data) if self.whole is not None else 0.0
        return spent_s, hidden_s, summed_s, local_s

    def summed_bytes(self, at: Interval) -> dict[str, float]:
        """Bytes of the gradients that are summed once a step beside the data axis' collectives, by the axes of their
        group; of what ZeRO shards a rank's part."""
        found: dict[str, float] = {}
        for summed, kind in self.chain.held.kinds.items():
            size, axes = float(kind.first_read(at).sum()), self.data.beside(summed)
            if axes and size:
                found[axes] = found.get(axes, 0.0) + self.data.prices.stored * size / self.data.ways(summed)
        return found

    def tied_bytes(self, at: Interval) -> float:
        """Bytes of the gradients that a run of segments sums with other stages: of parameters that segments of both
        read. Of what ZeRO shards a rank's part."""
        found = 0.0
        for summed, kind in self.chain.held.kinds.items():
            inside = [(size, [at[0] <= place < at[1] for place in places]) for places, size in kind.ties]
            found += sum(size for size, here in inside if any(here) and not all(here)) / self.data.ways(summed)
        return self.data.prices.stored * found

    def tied_s(self, at: Interval) -> float:
        """Seconds of that sum: between two ranks an all-reduce sends the bytes once each way, here as far as from the
        last pipeline rank to the first, which embeddings tie."""
        size, ranks = self.tied_bytes(at), self.candidate.pp
        if not size or ranks == 1:
            return 0.0
        return self.data.prices.message_s(size, ranks - 1, self.candidate.stage_devices, 0)

    def unit_bytes(self, at: Interval) -> list[dict[Summed, float]]:
        """Bytes of the trained parameters that each segment is the first to read, where there are any, by the operator
        axes over which their gradients are summed; those that go compressed aside."""
        return [unit for unit in summed_whole(self.chain.held, at, self.data.compressed).first_reads(at) if unit]

    def unit_pairs(self, at: Interval) -> list[tuple[dict[Summed, float], dict[Summed, float]]]:
        """Of each segment that is the first to read parameters that ZeRO gathers: (trained ones, the others)."""
        trained, frozen = (held.first_reads(at) for held in (self.chain.held, self.chain.held_frozen))
        pairs = zip(trained, frozen if self.data.zero == 3 else [{} for _ in trained], strict=True)
        return [pair for pair in pairs if any(pair)]

    def unit_gathers(self, at: Interval) -> list[int]:
        """How often a step gathers each of these. A last segment that stays gathered is of a block that stands in the
        chain once, so that segments of one block cost the same."""
        last = len(self.chain) - 1 if not self.chain.repeated[-1] else -1
        read = self.chain.held.first_read(at) + (self.data.zero == 3) * self.chain.held_frozen.first_read(at)
        places = (at[0] + n for n, size in enumerate(read) if size)
        return [self.data.gathers(self.candidate.microbatches, place == last) for place in places]

    def messages_s(self, stage: int) -> np.ndarray:
        """[N+1, N+1] or 0: what a stage reads in each microbatch, by its first and last segment: the activations that
        enter it, and the gradients of those that leave it."""
        last = self.candidate.stages - 1
        enters = self.border_s(stage) if stage > 0 else 0.0
        leaves = self.border_s(stage + 1) if stage < last else 0.0
        return np.reshape(enters, (-1, 1)) + np.reshape(leaves, (1, -1))

    def hidden_s(self, stage: int) -> np.ndarray | float:
        """[N+1, N+1] or 0: what may be hidden of a stage's seconds and messages for each microbatch after the first.
        The forwards that warm a stage of 1F1B up, one for each stage behind it, run while the first microbatch goes on
        to the end and comes back (``local_search.least_line_s``); and messages beside compute."""
        candidate, more = self.candidate, self.candidate.microbatches - 1
        warm = min(more, candidate.pp - 1 - stage)
        beside = self.messages_s(stage) if self.ahead else 0.0
        if candidate.schedule != "1f1b" or not warm:
            return beside
        total = prefix(self.chain.forward_s)
        enters = self.border_s(stage) if stage > 0 and not self.ahead else 0.0
        return beside + (total[None, :] - total[:, None] + np.reshape(enters, (-1, 1))) * (warm / more)

    @cached_property
    def least_messages_s(self) -> float:
        """Of one microbatch's messages at least: one each way over every border."""
        candidate = self.candidate
        if candidate.pp == 1:
            return 0.0
        size = float(self.chain.inputs[1:].min(initial=np.inf))
        shortest_s = min(self.sent_s(rank, size) for rank in range(1, candidate.pp)) if np.isfinite(size) else 0.0
        return 2 * (candidate.stages - 1) * shortest_s

    def border_s(self, stage: int) -> np.ndarray:
        """[N+1]: one message to a stage from the one before, by the segment in front of which the border lies."""
        sizes, places = self.chain.distinct_inputs
        return np.append(np.array([self.sent_s(stage, size) for size in sizes])[places], 0.0)

    def message_s(self, stage: int, cut: int) -> float:
        """One message to a stage from the one before, over the border in front of a segment."""
        return self.sent_s(stage, float(self.chain.inputs[cut]))

    def sent_s(self, stage: int, bytes: float) -> float:
        """To the pipeline rank that has the stage, from the one that has the stage before."""
        ranks, width = self.candidate.pp, self.candidate.stage_devices
        return self.data.prices.message_s(bytes, stage % ranks, width, (stage - 1) % ranks)
