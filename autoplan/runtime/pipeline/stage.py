"""One stage's forward and backward of one microbatch, and what stays between them.

After a forward the graph stays, by the edges at which gradients enter it, and the inputs, of which gradients are sent
back. The stage's result stays only where the graph itself reads it: it goes once it is sent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from autoplan.runtime.optim.loss_scaling import Scale, unscaled
from autoplan.runtime.parallel.stages import Keywords, StageModule
from autoplan.runtime.parallel.zero import before_microbatch, finish_backward, gather_ahead, gathered, reductions
from autoplan.runtime.pipeline.split_backward import Halves, backward_inputs, backward_weights
from autoplan.runtime.program_spec import ProgramSpec

Message = tuple[Tensor, ...]
Reductions = deque[tuple["PipelineStage", deque[Callable[[], None]]]]
"""Of stages that are to reduce, and what does it, unit by unit."""


@dataclass
class InFlight:
    """What a stage keeps of one microbatch, from its forward to its backward.

    edges      of each result that has gradients, in the order of these; None where no parameter or input is behind it
    inputs     those that have gradients, as leaves
    gradients  of the results, where the whole backward waits for its second half
    halves     what the first half of a backward leaves to the second
    """

    edges: list[GradientEdge | None]
    inputs: list[Tensor]
    gradients: Message = ()
    halves: Halves | None = None


class PipelineStage:
    """One stage of this rank.

    unreduced  of the rank: what is left to do of the reductions of each stage whose last backward is over
    finished   whether its sums of this step were waited for
    """

    def __init__(self, spec: ProgramSpec, module: StageModule, unreduced: Reductions) -> None:
        self.module, self.number, self.unreduced = module, module.number, unreduced
        self.last = module.number == len(spec.lowered.stages) - 1
        self.level, self.count = spec.parallelism.zero or 0, spec.microbatches
        self.scale: Scale = unscaled
        self.begin(unscaled)

    def begin(self, scale: Scale) -> None:
        """A new step. ``scale`` is applied to each loss whose gradients are computed."""
        self.kept: dict[int, InFlight] = {}
        self.losses: list[Tensor] = []
        self.scale = scale
        self.left = self.count
        self.finished = False

    def prepare(self) -> None:
        """Before the step's first forward: what is gathered once a step begins to be."""
        if self.level in (1, 2):
            gather_ahead(self.module, whole=self.number > 0)

    def ready(self) -> None:
        """Before the first forward's input is waited for: what is gathered stands in its place."""
        if self.level in (1, 2) and self.number > 0:
            gathered(self.module)

    def finish(self) -> None:
        """After its last backward and its reductions: waits for them, once, and lets go of what was sent."""
        if not self.finished:
            finish_backward(self.module)
        self.finished = True

    def forward(self, microbatch: int, received: Message, keywords: Keywords, number: int | None = None) -> Message:
        """What the next stage reads; nothing of the last one, whose losses are collected.

        keywords  each a value for every microbatch
        number    by which its backward asks for it; None: the microbatch
        """
        inputs = [x.requires_grad_() for x in received if x.is_floating_point()]
        found = self.module(*received, batch=keywords, microbatch=microbatch)
        results: Message = found if isinstance(found, tuple) else (found,)
        if self.last:
            self.losses.append(results[0].detach())
            results = (self.scale(results[0]),)
        edges = [get_gradient_edge(y) if y.requires_grad else None for y in results if y.is_floating_point()]
        self.kept[microbatch if number is None else number] = InFlight(edges, inputs)
        return () if self.last else tuple(y.detach() for y in results)

    def backward(self, microbatch: int, received: Message) -> Message:
        """The whole backward; the inputs' gradients, which the stage before reads."""
        kept = self.kept.pop(microbatch)
        self.left -= 1
        before_microbatch(self.module, self.level, last=not self.left and not self.number, once=True, waits=False)
        torch.autograd.backward(*self.roots(kept, received))
        if not self.left and self.number:
            self.reduce()
        return gradients_of(kept.inputs, [x.grad for x in kept.inputs])

    def backward_inputs(self, microbatch: int, received: Message) -> Message:
        """The first half of a backward. The first stage has no inputs: there the whole of it waits."""
        kept = self.kept[microbatch]
        before_microbatch(self.module, self.level, last=False, once=True)
        if not kept.inputs:
            kept.gradients = received
            return ()
        found, kept.halves = backward_inputs(*self.roots(kept, received), kept.inputs, list(self.module.parameters()))
        kept.edges = []  # what lies between the results and the first weights isn't needed any more
        return gradients_of(kept.inputs, found)

    def backward_weights(self, microbatch: int) -> None:
        """The second half. No hook of autograd's sees its gradients, nor of ZeRO's: after the last they are summed."""
        kept = self.kept.pop(microbatch)
        self.left -= 1
        if kept.halves is None:
            torch.autograd.backward(*self.roots(kept, kept.gradients))
        else:
            backward_weights(list(self.module.parameters()), kept.halves)
        if not self.left:
            self.reduce()

    def reduce(self) -> None:
        """After the last backward: its reductions are to be done."""
        if units := deque(reductions(self.module)):
            self.unreduced.append((self, units))

    def roots(self, kept: InFlight, received: Message) -> tuple[list[GradientEdge], list[Tensor | None]]:
        """Where gradients enter, and which."""
        gradients = (None,) if self.last else received  # a loss' own is 1
        pairs = [(edge, g) for edge, g in zip(kept.edges, gradients, strict=True) if edge is not None]
        return [edge for edge, _ in pairs], [g for _, g in pairs]


def gradients_of(inputs: Sequence[Tensor], found: Sequence[Tensor | None]) -> Message:
    """Gradients as they are sent: zeros where nothing depends on an input, and one element after another in memory,
    which those of a convolution with channels last aren't."""
    pairs = zip(inputs, found, strict=True)
    return tuple(torch.zeros_like(x) if g is None else g.contiguous() for x, g in pairs)
