"""A model in the trace, watched: which parameters its loss has gradients for, and what else its forward does."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from autoplan.trace.batch_binding import Binding, LossFn, WithLoss
from autoplan.trace.branches import Branches
from autoplan.trace.checks.drawn import drawing, refused
from autoplan.trace.checks.python_state import changed, mutated, random_states, state_of
from autoplan.trace.checks.trained import check_loss
from autoplan.trace.detached import Detached


@dataclass
class Seen:
    """What a forward did.

    trained   names of the parameters that the loss has gradients for, as the traced copy has them
    strange   trainable tensors that the loss has gradients for and that are no parameters of the copy
    changed   attributes that forward changed, by their path
    mutated   those that hold a tensor that it changed in place
    noted     branches on values that were taken without reading them, for the report
    """

    trained: set[str] = field(default_factory=set)
    strange: list[torch.Tensor] = field(default_factory=list)
    changed: dict[str, None] = field(default_factory=dict)
    mutated: list[str] = field(default_factory=list)
    noted: dict[str, None] = field(default_factory=dict)


class Observed(WithLoss):
    """What is exported. Raises TraceError where forward draws from a generator that no graph holds."""

    def __init__(self, model: nn.Module, binding: Binding, loss_fn: LossFn | None, training: bool, seen: Seen) -> None:
        super().__init__(model, binding, loss_fn, training)
        self.seen, self.watches_gradients = seen, training

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        before, drawn = state_of(self.model), random_states()
        with Detached(), Branches(self.seen.noted), drawing(type(self.model).__name__):
            result = super().forward(*batch)
        for name, state in random_states().items():
            if state != drawn[name]:
                raise refused(name, type(self.model).__name__)
        after = state_of(self.model)
        self.seen.changed |= dict.fromkeys(changed(before, after))
        self.seen.mutated += mutated(before, after)
        if self.watches_gradients and isinstance(result, torch.Tensor):
            self.watch_gradients(result)
        return result

    def watch_gradients(self, loss: torch.Tensor) -> None:
        check_loss(loss, self.model)
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for leaf in leaves_of(loss):
            if id(leaf) in names:
                self.seen.trained.add(names[id(leaf)])
            elif isinstance(leaf, nn.Parameter) or not is_fake(leaf):
                self.seen.strange.append(leaf)


def is_fake(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "fake_mode")


def leaves_of(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors whose gradients autograd would give."""
    met, todo = set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in met:
            continue
        met.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        todo += [following for following, _ in node.next_functions]
