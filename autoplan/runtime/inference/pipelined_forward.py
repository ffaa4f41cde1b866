"""The forward alone of all microbatches, over the stages of a pipeline.

At each tick stage k runs microbatch tick - k; then all that was computed moves on one stage, in one batch of sends and
receives. So no rank waits for one that waits for it, however many stages it holds, and a rank keeps one activation for
each of its stages, however many microbatches there are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.parallel.stages import Keywords, StageModule
from autoplan.runtime.program_spec import ProgramSpec

Activations = tuple[Tensor, ...]


class PipelinedForward:
    """One rank's part.

    spec    of the forward: its stages and microbatches
    stages  those that this rank holds
    axis    the pipeline's; one member where there is none
    """

    def __init__(self, spec: ProgramSpec, stages: Sequence[StageModule], axis: MeshAxis, device: torch.device) -> None:
        self.spec, self.axis, self.device = spec, axis, device
        self.stages = {stage.number: stage for stage in stages}
        self.last = len(spec.lowered.stages) - 1

    def run(self, keywords: Keywords) -> list[Tensor]:
        """What the last stage gives for each microbatch; nothing on a rank that doesn't hold it.

        keywords  each a value for every microbatch
        """
        results: list[Tensor] = []
        arrived: dict[int, Activations] = {}
        for tick in range(self.spec.microbatches + self.last):
            done: dict[int, Activations] = {}
            for number in sorted(self.stages):
                if self.runs(number, tick):
                    given = arrived.pop(number, ())
                    found = self.stages[number](*given, batch=keywords, microbatch=tick - number)
                    done[number] = found if isinstance(found, tuple) else (found,)
            results += done.pop(self.last, ())
            arrived = self.move_on(done, tick)
        return results

    def runs(self, stage: int, tick: int) -> bool:
        return 0 <= tick - stage < self.spec.microbatches

    def move_on(self, done: Mapping[int, Activations], tick: int) -> dict[int, Activations]:
        """Each stage's activations to the rank of the next; what this rank's stages take at the next tick."""
        here, arrived, moves = self.axis.rank, {}, []
        for number in filter(lambda n: self.runs(n, tick), range(self.last)):
            giver, taker = self.spec.pipeline_rank(number), self.spec.pipeline_rank(number + 1)
            if giver == taker == here:
                arrived[number + 1] = done[number]
            elif giver == here:
                moves += [self.operation(dist.isend, x, taker) for x in done[number]]
            elif taker == here:
                arrived[number + 1] = self.room_for(number + 1)
                moves += [self.operation(dist.irecv, x, giver) for x in arrived[number + 1]]
        for work in dist.batch_isend_irecv(moves) if moves else ():
            work.wait()
        return arrived

    def room_for(self, stage: int) -> Activations:
        """Memory for what a stage takes."""
        inputs = self.spec.lowered.stages[stage].inputs
        dtypes = [self.spec.activation_dtype(v.type) for v in inputs]
        return tuple(
            torch.empty(v.local_shape, dtype=d, device=self.device) for v, d in zip(inputs, dtypes, strict=True)
        )

    def operation(self, what: Callable[..., Any], x: Tensor, member: int) -> dist.P2POp:
        peer = self.axis.places[member] if self.axis.places else member
        return dist.P2POp(what, x, group=self.axis.group, group_peer=peer)
