"""A module as it was when it was planned, for what changes afterwards and a plan can't follow.

Values may change: an export writes them as they are then. What is trained, how weights are tied, in which mode
submodules run, and hooks are part of the trace. Where one of these is another at the export, the folder would train
otherwise than the module, so it is an error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from autoplan.errors import InputsError
from autoplan.trace.checks.hooks import check_gradient_hooks, listed, own_hooks
from autoplan.trace.checks.modes import outermost_evaluated, wholly_evaluated

REMEDY = "plan the module as it is now, or undo the change"


@dataclass(frozen=True)
class HandedOver:
    """What a trace depends on beside values.

    shapes   of parameters, by name
    trained  parameters that require gradients
    tied     the first name of each parameter that has several, by its others
    modes    submodules in eval mode, the outermost ones
    hooks    of users on forward: (submodule, name)
    """

    shapes: Mapping[str, tuple[int, ...]]
    trained: tuple[str, ...]
    tied: Mapping[str, str]
    modes: tuple[str, ...]
    hooks: tuple[tuple[str, str], ...]


def handed_over(module: nn.Module) -> HandedOver:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    for name, parameter in parameters.items():
        first.setdefault(id(parameter), name)
    return HandedOver(
        {name: tuple(parameter.shape) for name, parameter in parameters.items()},
        tuple(name for name, parameter in parameters.items() if parameter.requires_grad),
        {name: first[id(p)] for name, p in parameters.items() if first[id(p)] != name},
        () if wholly_evaluated(module) else tuple(outermost_evaluated(module)),
        tuple(own_hooks(module)),
    )


def check_handed_over(planned: HandedOver, module: nn.Module) -> None:
    """InputsError, with its name, for what has changed since the module was planned; TraceError for a hook on
    gradients."""
    now = handed_over(module)
    if now == planned:
        check_gradient_hooks(module)
        return
    if different := names(planned.shapes.items(), now.shapes.items()):
        raise changed(different, "it isn't there any more, is new, or has another shape")
    if more := names((), now.trained, planned.trained):
        raise changed(more, "it was frozen when the module was planned, and the plan leaves it as it is")
    if less := names((), planned.trained, now.trained):
        raise changed(less, "it was trained when the module was planned, and the plan trains it")
    if tied := names(planned.tied.items(), now.tied.items()):
        raise changed(tied, "it is tied to another parameter than when the module was planned")
    if modes := names(planned.modes, now.modes):
        raise changed(modes, "its mode, train() or eval(), is another than when the module was planned")
    raise changed(names(planned.hooks, now.hooks), "its forward hooks are others than when the module was planned")


def names(before: Iterable, after: Iterable, without: Iterable = ()) -> list[str]:
    """Of two collections the names of what only one of them has."""
    one, other = set(before), set(after) - set(without)
    return sorted({each if isinstance(each, str) else each[0] or "the root" for each in one ^ other})


def changed(places: list[str], what: str) -> InputsError:
    return InputsError(listed(places), what, REMEDY)
