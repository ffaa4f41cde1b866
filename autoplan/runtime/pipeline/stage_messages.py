"""Messages between stages: activations one way, their gradients the other.

A rank posts the receive of its next action before it computes the current one, so that the message comes meanwhile;
its buffer is made then, and goes when what was received is no longer read. Ranks read messages in the order in which
their neighbours send them, so receives are posted in that order, too. Sends are waited for late, two behind or more
(``cost_models.pipeline.order.most_sending``): what is on its way is bounded by the stages, not by the microbatches, and
the step takes what it would without that bound. It is the timeline by which a plan is priced (``cost.step.timeline``).

NCCL runs the messages between two ranks over one group one after another, and a send ends with its receive. So each
direction has a group of its own: else a send that waits for its receive would hold up what it waits for.
"""

from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from autoplan.ir.typed_program import TypedValue
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.pipeline.order import reads_from, schedule_of, sends_to
from autoplan.runtime.program_spec import PIPELINE, ProgramSpec
from cost_models.pipeline.order import Action, most_sending

Message = tuple[Tensor, ...]
Edge = tuple[bool, bool]
"""Whether it leads to the stage behind, and whether it goes round, between the last rank and the first."""


class Exchange:
    """One rank's messages; a collective of the whole world to make, but for one with another's groups.

    axis    the pipeline's
    groups  where they are there already; None: they are made
    """

    def __init__(
        self, spec: ProgramSpec, axis: MeshAxis, device: torch.device, groups: dict[Edge, ProcessGroup] | None = None
    ) -> None:
        self.spec, self.axis, self.device = spec, axis, device
        self.stages = len(spec.lowered.stages)
        self.groups = edge_groups(spec) if groups is None else groups
        several = self.stages // axis.size
        self.most = most_sending(schedule_of(spec), axis.size, spec.microbatches, several)
        self.posted: dict[Action, tuple[Message, list[dist.Work]]] = {}
        self.sent: deque[tuple[Message, list[dist.Work]]] = deque()

    def post(self, action: Action) -> None:
        """Makes room for what an action reads, and begins to receive it; where that is done, nothing."""
        giver = reads_from(action, self.stages)
        if giver is None or action in self.posted:
            return
        values = self.spec.lowered.stages[action.stage].inputs if action.kind == "F" else self.returned(action.stage)
        buffers = tuple(self.room_for(value) for value in values)
        group, peer = self.route(giver, action.stage, giver)
        self.posted[action] = buffers, [started(dist.irecv(x, group=group, group_src=peer)) for x in buffers]

    def receive(self, action: Action) -> Message:
        """What an action reads, once it is there."""
        buffers, works = self.posted.pop(action, ((), []))
        for work in works:
            work.wait()
        return buffers

    def send(self, action: Action, message: Message) -> None:
        """Sends what an action made, where a neighbour reads it."""
        taker = sends_to(action, self.stages)
        if taker is None:
            return
        self.wait(self.most - 1)
        group, peer = self.route(action.stage, taker, taker)
        self.sent.append((message, [started(dist.isend(x, group=group, group_dst=peer)) for x in message]))

    def wait(self, most: int = 0) -> None:
        """Until at most so many messages are on their way: the oldest are waited for."""
        while len(self.sent) > most:
            _, works = self.sent.popleft()
            for work in works:
                work.wait()

    def close(self) -> None:
        """Lets go of the process groups, as ``mesh_axes.release`` does."""
        self.groups.clear()

    def returned(self, stage: int) -> Sequence[TypedValue]:
        """What a stage passes on of which gradients come back."""
        return [v for v in self.spec.lowered.stages[stage].outputs if v.type.floating]

    def room_for(self, value: TypedValue) -> Tensor:
        return torch.empty(value.local_shape, dtype=self.spec.activation_dtype(value.type), device=self.device)

    def route(self, giver: int, taker: int, other: int) -> tuple[ProcessGroup, int]:
        """The group over which one stage sends to the next or back, and the place in it of the other rank."""
        onward = taker > giver
        member = self.spec.pipeline_rank(other)
        group = self.groups[onward, max(giver, taker) % self.axis.size == 0]
        return group, self.axis.places[member] if self.axis.places else member


def started(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is no member of the pipeline's group"
    return work


def edge_groups(spec: ProgramSpec) -> dict[Edge, ProcessGroup]:
    """This rank's groups; every rank of the world must call it, for torch makes groups collectively.

    Messages that go round are between other pairs of ranks than the rest, unless there are two ranks in all.
    """
    mesh, ranks = spec.lowered.mesh, spec.size(PIPELINE)
    stride = mesh.axis(PIPELINE).stride
    firsts = [r for r in range(mesh.devices) if mesh.coordinate(r, PIPELINE) == 0]
    members = [[first + stride * place for place in range(ranks)] for first in firsts]
    apart = ranks == 2 and len(spec.lowered.stages) > ranks
    found: dict[Edge, ProcessGroup] = {}
    for onward in (True, False):
        for round_ in (False, True):
            if round_ and not apart:
                found[onward, True] = found[onward, False]
                continue
            group, _ = dist.new_subgroups_by_enumeration(members)
            assert group is not None
            found[onward, round_] = group
    return found
