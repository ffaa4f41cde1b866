"""Binds a batch to a model's forward and its loss: the module that is exported takes the batch, in order."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autoplan.errors import InputsError
from autoplan.trace.outputs import loss_of_output, result_of_output

Inputs = Mapping[str, torch.Tensor] | Sequence[torch.Tensor]
LossFn = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Binding:
    """Which batch inputs go where.

    names    of every batch input, in order
    forward  names that forward takes; as keywords where ``keywords``, else by position
    targets  names that loss_fn takes after the model's output
    """

    names: tuple[str, ...]
    forward: tuple[str, ...]
    targets: tuple[str, ...]
    keywords: bool


def bind(model: nn.Module, inputs: Inputs, loss_fn: LossFn | None) -> Binding:
    """Of a mapping, the keys that forward accepts are its keywords and the others are loss_fn's targets, in order; of
    a sequence, forward's positional parameters take the first ones, and where forward takes any number of them all but
    those that loss_fn needs. InputsError where something is left over."""
    parameters = tuple(inspect.signature(model.forward).parameters.values())
    if isinstance(inputs, Mapping):
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters) and loss_fn is None
        accepted = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        forward = tuple(name for name in inputs if open_ended or name in accepted)
        binding = Binding(tuple(inputs), forward, tuple(n for n in inputs if n not in forward), True)
    else:
        binding = bind_positions(parameters, len(inputs), loss_fn)
    check(model, binding, loss_fn)
    check_forward(type(model).__name__, parameters, binding)
    check_loss(type(model).__name__, binding, loss_fn)
    return binding


def bind_named(model: nn.Module, batch: Mapping[str, torch.Tensor], loss_fn: LossFn | None) -> Binding:
    """The binding whose names these are, of a sequence or of a mapping."""
    given = bind_positions(tuple(inspect.signature(model.forward).parameters.values()), len(batch), loss_fn)
    return given if given.names == tuple(batch) else bind(model, batch, loss_fn)


def bind_positions(parameters: Any, count: int, loss_fn: LossFn | None) -> Binding:
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if loss_fn is not None:  # optional parameters are left alone where that leaves loss_fn nothing
        required = [p for p in positional if p.default is p.empty]
        positional = positional if len(positional) < count else required
    names = [p.name for p in positional[:count]]
    taken = len(names)
    if taken < count and any(p.kind is p.VAR_POSITIONAL for p in parameters):
        taken = count if loss_fn is None else max(taken, count - targets_of(loss_fn))
    known = {p.name for p in parameters}
    further = [f"input_{i}" for i in range(len(names), taken)]
    further += ["target"] if count - taken == 1 else [f"target_{i}" for i in range(count - taken)]
    for name in further:
        while name in known or name in names:
            name = f"{name}_"
        names.append(name)
    return Binding(tuple(names), tuple(names[:taken]), tuple(names[taken:]), False)


def targets_of(loss_fn: LossFn) -> int:
    """How many tensors a loss needs beside the model's output, where forward takes any number of them."""
    try:
        called = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError) as error:
        cause = f"forward takes any number of tensors, and {loss_fn!r} doesn't say how many it takes ({error})"
        raise InputsError("example_inputs", cause, "give loss_fn as a function of Python") from error
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return max(sum(p.default is p.empty for p in positional) - 1, 0)


def check(model: nn.Module, binding: Binding, loss_fn: LossFn | None) -> None:
    if not binding.names:
        raise InputsError("example_inputs", "they hold no tensor", "give the global batch of one optimizer step")
    if binding.targets and loss_fn is None:
        raise InputsError(
            ", ".join(binding.targets),
            f"{type(model).__name__}.forward doesn't take it",
            "leave it out, or give loss_fn=(model_output, *targets) -> scalar, which takes what forward doesn't",
        )


def check_forward(model: str, parameters: Sequence[inspect.Parameter], binding: Binding) -> None:
    """InputsError where forward needs what the batch lacks."""
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [p for p in needed if p.name not in binding.forward]
    if missing:
        names, by_name = ", ".join(p.name for p in missing), any(p.kind is p.KEYWORD_ONLY for p in missing)
        as_dict = by_name and not binding.keywords
        remedy = f"give all as a dict: {{'{missing[0].name}': …}}" if as_dict else "give it, too"
        raise InputsError(f"{model}.forward", f"it needs {names}, which the example_inputs lack", remedy)


def check_loss(model: str, binding: Binding, loss_fn: LossFn | None) -> None:
    """InputsError where the loss can't be called with the model's output and what forward leaves of the batch."""
    if loss_fn is None:
        return
    name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
    if inspect.isclass(loss_fn):
        raise InputsError(f"loss_fn={name}", "it is a class, which isn't called with tensors", f"give {name}()")
    try:
        signature = inspect.signature(loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn)
    except (TypeError, ValueError):  # a builtin that doesn't say
        return
    try:
        signature.bind(*(None for _ in range(1 + len(binding.targets))))
    except TypeError as error:
        left = f"{', '.join(binding.targets)} to it" if binding.targets else "nothing to it"
        cause = f"it is called with the model's output and the targets, and {error}: {model}.forward takes "
        cause += f"{', '.join(binding.forward) or 'nothing'} of the example_inputs and leaves {left}"
        remedy = "give the targets behind forward's inputs, (x, target), or a loss_fn of as many arguments"
        raise InputsError(f"loss_fn={name}", cause, remedy) from None


class WithLoss(nn.Module):
    """What is exported: the batch in, one tensor out: the loss in training, else the model's result.

    A loss that is itself a module is no part of this one: what it holds is constant, and its modes are its own.
    """

    def __init__(self, model: nn.Module, binding: Binding, loss_fn: LossFn | None, training: bool) -> None:
        super().__init__()
        self.model = model
        self.binding = binding
        self.losses = () if loss_fn is None else (loss_fn,)
        self.with_loss = training or loss_fn is not None

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        values = dict(zip(self.binding.names, batch, strict=True))
        taken = {name: values[name] for name in self.binding.forward}
        output = self.model(**taken) if self.binding.keywords else self.model(*taken.values())
        for loss_fn in self.losses:
            return with_targets(loss_fn, output, [values[name] for name in self.binding.targets])
        name = type(self.model).__name__
        return loss_of_output(output, name) if self.with_loss else result_of_output(output, name)


def with_targets(loss_fn: LossFn, output: Any, targets: Sequence[torch.Tensor]) -> torch.Tensor:
    """The loss; a frame of its own in a traceback, by which ``capture`` tells it from the model."""
    return loss_fn(output, *targets)
