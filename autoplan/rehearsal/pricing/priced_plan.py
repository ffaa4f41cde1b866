"""A plan priced again, and what of it one rank runs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoplan.cost import Operator, Prices
from autoplan.cost.operators.token_exchange import in_chunks
from autoplan.ir.mesh import Axis, Mesh
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Lowered, LoweredStage
from autoplan.lower.after_search import program_of
from autoplan.rehearsal.device.process_groups import span_of
from autoplan.rehearsal.records import RankTrace, Span
from autoplan.search.block_cost.account import BlockCost
from autoplan.search.evaluate import Evaluated
from autoplan.search.inter_op.stage_model import StageModel
from autoplan.search.repriced import repriced


@dataclass(frozen=True)
class PlanPrices:
    """The prices of a plan.

    lowered    its typed program
    operators  of each block, by name
    found      the plan as the search evaluated it
    """

    record: PlanRecord
    lowered: Lowered
    operators: Sequence[Mapping[str, Operator]]
    found: Evaluated

    @staticmethod
    def of(record: PlanRecord) -> PlanPrices:
        state, found = repriced(record)
        pairs = zip(state.prepared.operators, record.chosen.blocks, strict=True)
        operators = [in_chunks(operators, choice) for operators, choice in pairs]
        return PlanPrices(record, program_of(record), operators, found)

    @property
    def mesh(self) -> Mesh:
        """Device axes, the pipeline's among them, and "mb"."""
        return self.lowered.mesh

    def share(self, trace: RankTrace) -> RankShare:
        return RankShare(self, trace.stages, trace.microbatches, trace.rank)

    def span(self, axes: Sequence[str]) -> Span:
        """Of a group over these axes; () where it has one member."""
        return span_along([self.mesh.axis(name) for name in axes])

    def axes_of(self, span: Span) -> str:
        """The axes that a group spans, "dp,tp"; its span where that is no set of axes."""
        axes = [axis for axis in self.mesh.device_axes if axis.size > 1]
        for count in range(1, len(axes) + 1):
            for chosen in itertools.combinations(axes, count):
                if span_along(chosen) == span:
                    return ",".join(axis.name for axis in chosen)
        return str(span)


@dataclass(frozen=True)
class RankShare:
    """What one rank runs of a plan.

    stages        of the chain, by number
    microbatches  that it runs, which may be fewer than planned
    rank          its number
    """

    plan: PlanPrices
    stages: tuple[int, ...]
    microbatches: int
    rank: int = 0

    @property
    def stage_model(self) -> StageModel:
        """On the devices that the rank is on."""
        return self.plan.found.stage_model.at(self.stages[0])

    @property
    def prices(self) -> Prices:
        return self.stage_model.data.prices

    @property
    def blocks(self) -> tuple[BlockCost, ...]:
        """The price of each block on these devices."""
        return self.plan.found.point.on(self.prices.device)

    @property
    def hosts(self) -> bool:
        """Whether activations lie in the host's memory in place of selective recomputation."""
        return self.stage_model.data.offload == "activations"

    @property
    def runs(self) -> list[LoweredStage]:
        return [self.plan.lowered.stages[number] for number in self.stages]

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """The segments of each stage: [first, last)."""
        return [(stage.first, stage.last) for stage in self.runs]

    def segments(self) -> Iterator[tuple[int, bool, bool]]:
        """(block, whether it is recomputed in full, whether selectively or kept by the host) of each segment."""
        for stage in self.runs:
            at = (stage.first, stage.last)
            full, part = self.stage_model.recomputed(at, stage.recompute, stage.selective + stage.offloaded)
            for place, segment in enumerate(self.plan.lowered.segments[slice(*at)]):
                yield segment.block, bool(full[place]), bool(part[place])

    def uses(self) -> tuple[Counter[int], Counter[int], Counter[int]]:
        """How many segments there are of each block, how many recompute in full, and how many selectively."""
        each = list(self.segments())
        return Counter(b for b, _, _ in each), Counter(b for b, f, _ in each if f), Counter(b for b, _, p in each if p)


def span_along(axes: Sequence[Axis]) -> Span:
    ranks = [0]
    for axis in axes:
        ranks = [rank + place * axis.stride for rank in ranks for place in range(axis.size)]
    return span_of(ranks)
