"""A model in the trace, watched: which parameters its loss has gradients for, and what else its forward does."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from autoplan.errors import TraceError
from autoplan.trace.batch_binding import Binding, LossFn, WithLoss
from autoplan.trace.branches import Branches
from autoplan.trace.checks.drawn import drawing, refused
from autoplan.trace.checks.python_state import changed, mutated, random_states, state_of
from autoplan.trace.checks.trained import check_loss
from autoplan.trace.detached import Detached
from autoplan.trace.expert_loops.loop_recorder import ExpertLoops


@dataclass
class Seen:
    """What a forward did.

    trained   names of the parameters that the loss has gradients for, as the traced copy has them
    strange   trainable tensors that the loss has gradients for and that are no parameters of the copy
    changed   attributes that forward changed, by their path
    mutated   those that hold a tensor that it changed in place
    noted     branches on values that were taken without reading them, for the report
    followed  what loops over experts may do something by (``expert_loops.without_tokens``)
    """

    trained: set[str] = field(default_factory=set)
    strange: list[torch.Tensor] = field(default_factory=list)
    changed: dict[str, None] = field(default_factory=dict)
    mutated: list[str] = field(default_factory=list)
    noted: dict[str, None] = field(default_factory=dict)
    followed: dict[tuple, TraceError] = field(default_factory=dict)


class Observed(WithLoss):
    """What is exported. Raises TraceError where forward draws from a generator that no graph holds.

    tokens  whether experts have any, where the sums of loops over them are left out (``ExpertLoops``)
    """

    def __init__(
        self, model: nn.Module, binding: Binding, loss_fn: LossFn | None, training: bool, seen: Seen,
        tokens: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model, binding, loss_fn, training)
        self.seen, self.watches_gradients, self.tokens = seen, training and tokens is None, tokens

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        before, drawn, held = state_of(self.model), random_states(), buffers_of(self.model)
        noted, of = self.seen.noted, type(self.model).__name__
        loops = ExpertLoops(noted, self.seen.followed, self.tokens)
        with Detached(), Branches(noted), loops, drawing(of):
            result = super().forward(*batch)
            loops.end(result)
        write_assigned(self.model, held)
        check_registered(self.model, held)
        for name, state in random_states().items():
            if state != drawn[name]:
                raise refused(name, of)
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


def buffers_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_buffers(remove_duplicate=False))


def check_registered(model: nn.Module, held: Mapping[str, torch.Tensor]) -> None:
    """TraceError for a buffer that forward adds to the state dict: the program's wouldn't have it."""
    for name in model.state_dict(keep_vars=True):
        if name not in held and name in buffers_of(model):
            cause = "forward registers this buffer, which the model's state dict has from then on"
            raise TraceError(name, cause, "register it in __init__, or with persistent=False where it is a constant")


def write_assigned(model: nn.Module, held: Mapping[str, torch.Tensor]) -> None:
    """``self.mean = new`` becomes ``self.mean.copy_(new)``: torch.export loses it of a submodule's buffer. TraceError
    where the new value is none of the buffer's shape and dtype."""
    now = buffers_of(model)
    values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # a copy: a value may be a buffer, too
    for name, buffer in held.items():
        value = now.get(name)
        if value is buffer:
            continue
        if value is None or (value.shape, value.dtype) != (buffer.shape, buffer.dtype):
            found = "nothing" if value is None else f"{value.dtype} of {list(value.shape)}"
            cause = f"forward puts {found} in place of this buffer of {buffer.dtype}, {list(buffer.shape)}"
            raise TraceError(name, cause, "keep the buffer's shape and dtype: write to a part of a larger one")
        for other in (other for other in held if held[other] is buffer and now.get(other) is not value):
            cause = f"forward puts another tensor in its place, while {other} stays the one that both are"
            raise TraceError(name, cause, "write to it in place, with copy_, or give each a buffer of its own")
        values[id(buffer)] = buffer, value.detach().clone()
    for buffer, value in values.values():
        buffer.copy_(value)
    for name in (name for name, value in now.items() if id(held.get(name)) in values and value is not held[name]):
        owner, _, key = name.rpartition(".")
        setattr(model.get_submodule(owner), key, held[name])


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
