"""DiLoCo: replicas that step by themselves, and every few steps an outer update of what all of them began with.

Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models", algorithm 1. With θ what all
replicas began a round with, and θ_i what each has after its own steps,

    Δ = θ - mean of θ_i          summed over the data axis
    m = μ·m + Δ,   θ = θ - ρ·(Δ + μ·m)          Nesterov's momentum μ, outer learning rate ρ

and all begin the next round with θ. The inner optimizer's moments stay each replica's, so that a round moves no more
than the parameters. Before a checkpoint the replicas are averaged, moments too, as under local SGD.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from autoplan.options import Training
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.optim.asynchronous.local_sgd import Gossip, LocalSteps
from autoplan.runtime.optim.masters import publish
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program_spec import DATA, ProgramSpec

BEGUN, OUTER_MOMENTUM = "outer", "outer_momentum"
"""The kinds of what a checkpoint has of a parameter: what a round began with, and the outer optimizer's momentum."""
MOMENTUM = "momentum_buffer"  # torch's name of it


class OuterSteps(LocalSteps):
    """The outer updates of one rank's replica with the others.

    begun  of each trained parameter, by its name, what the round began with; its gradient is Δ
    outer  the outer optimizer over these
    """

    def __init__(
        self, every: int, held: Sequence[ShardedParameter], axis: MeshAxis, optimizer: Optimizer, training: Training
    ) -> None:
        super().__init__(every, held, axis, optimizer)
        self.begun = {h.name: nn.Parameter(h.values.detach().clone()) for h in held if h.stored.trainable}
        rate, momentum = training.outer_learning_rate, training.outer_momentum
        self.outer = SGD(self.begun.values(), rate, momentum, nesterov=True) if self.begun else None
        self.begin()

    @torch.no_grad()
    def round(self) -> None:
        """One outer update, after which every replica has its result; bucket by bucket, so that no more stands beside
        the inner gradients than one."""
        trained = [(h.values, self.begun[h.name]) for h in self.held if h.name in self.begun]
        begun = {id(value): one for value, one in trained}
        for bucket in self.means([value for value, _ in trained]):
            assert self.outer is not None
            for value, mean in bucket:
                begun[id(value)].grad = mean.neg_().add_(begun[id(value)].detach())
            self.outer.step()
            self.outer.zero_grad()
            for value, _ in bucket:
                value.copy_(begun[id(value)].detach())
        publish(self.held)

    @torch.no_grad()
    def begin(self) -> None:
        """A first round begins with the parameters as they are."""
        for each in self.held:
            if each.name in self.begun:
                begun = self.begun[each.name]
                begun.copy_(each.values)
                if self.outer is not None:
                    self.outer.state[begun][MOMENTUM] = torch.zeros_like(begun)

    def beside(self) -> dict[str, dict[str, Tensor]]:
        """What the rounds began with, and the outer momentum, by kind and the parameters' names: a part of a
        checkpoint."""
        if self.outer is None:
            return {BEGUN: {}, OUTER_MOMENTUM: {}}
        momentum = {name: self.outer.state[begun][MOMENTUM] for name, begun in self.begun.items()}
        return {BEGUN: {name: begun.detach() for name, begun in self.begun.items()}, OUTER_MOMENTUM: momentum}


def local_steps(
    spec: ProgramSpec, held: Sequence[ShardedParameter], axes: Mapping[str, MeshAxis], optimizer: Optimizer
) -> LocalSteps | None:
    """None where every step sums the gradients of all."""
    every, graph = spec.parallelism.local_steps or 1, spec.parallelism.gossip
    if not spec.parallelism.steps_locally:
        return None
    if graph is not None:
        return Gossip(every, held, axes[DATA], optimizer, graph)
    if spec.parallelism.outer_optimizer is None:
        return LocalSteps(every, held, axes[DATA], optimizer)
    return OuterSteps(every, held, axes[DATA], optimizer, spec.training)
