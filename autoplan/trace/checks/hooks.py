"""Hooks of a model: those that the trace would leave out are refused with their place.

Forward hooks run while the model is traced, so what they compute is in the program. A hook on gradients, on what is
saved for the backward, or on every module of the process isn't, and neither is one that renames the state dict.
"""

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import nn
from torch.nn.modules import module as process_wide  # where torch keeps its hooks on all modules

from autoplan.errors import TraceError

GLOBAL = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks", "_global_backward_hooks")
BACKWARD = ("_backward_pre_hooks", "_backward_hooks")
FORWARD = ("_forward_pre_hooks", "_forward_hooks")
STATE = ("_state_dict_pre_hooks", "_state_dict_hooks")
OF_LIBRARIES = ("torch.", "transformers.", "autoplan.")
NAMED = 3  # places that a note names, before it counts the others
REMEDY = "remove it before planning (its handle's remove()), and do what it does "


def check_hooks(model: nn.Module, training: bool) -> None:
    """TraceError, with its place and its name, for a hook that the program wouldn't run."""
    for kind in GLOBAL:
        for hook in vars(process_wide)[kind].values():
            cause = "a hook on every module of this process is none of the model's, and the program wouldn't run it"
            raise TraceError(f"hook {name_of(hook)}", cause, REMEDY + "in the model")
    if training:
        check_gradient_hooks(model)
    check_state_hooks(model)


def check_gradient_hooks(model: nn.Module) -> None:
    saving = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if saving is not None:
        cause = "hooks on saved tensors around planning: what they do to gradients isn't traced"
        raise TraceError(f"hook {name_of(saving[0])}", cause, "plan outside of saved_tensors_hooks")
    for path, module in model.named_modules():
        for hook in hooks_of(module, BACKWARD):
            cause = "a backward hook isn't traced, and the gradients would be others"
            raise TraceError(f"hook {name_of(hook)} of module {path or 'the root'!r}", cause, REMEDY + "in forward")
    for path, parameter in model.named_parameters():
        held = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        for hook in (hook for hooks in held if hooks and parameter.requires_grad for hook in hooks.values()):
            cause = "a hook on a parameter's gradient isn't traced, and the gradient would be another"
            raise TraceError(f"hook {name_of(hook)} of parameter {path!r}", cause, REMEDY + "in the loss")


def check_state_hooks(model: nn.Module) -> None:
    """The program's state dict has the names of parameters and buffers, and their values."""
    hooked = [
        (path, hook)
        for path, module in model.named_modules()
        for hook in hooks_of(module, STATE)
        if not module_of(hook).startswith(OF_LIBRARIES)
    ]
    if not hooked:
        return
    given = {key: value for key, value in model.state_dict(keep_vars=True).items() if not key.endswith(EXTRA)}
    held = dict(persistent(model))
    differing = [key for key in (*given, *held) if given.get(key) is not held.get(key)]
    if differing:
        path, hook = hooked[0]
        raise TraceError(
            f"hook {name_of(hook)} of module {path or 'the root'!r}",
            f"it makes the state dict another than the model's parameters and buffers, as {differing[0]!r} shows, and "
            "the program's has those",
            "remove it, and rename what program.full_state_dict() gives",
        )


EXTRA = "_extra_state"


def persistent(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What a state dict holds where no hook changes it."""
    yield from model.named_parameters(remove_duplicate=False)
    for path, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}" if path else name, buffer


def hook_notes(model: nn.Module) -> tuple[str, ...]:
    """What a report says of the hooks that are traced, and of state that the program's state dict lacks."""
    own = [f"{name} of {path or 'the root'}" for path, name in own_hooks(model)]
    further = [path for path, module in model.named_modules() if has_extra_state(module)]
    notes = []
    if own:
        told = "what they compute is in the program; what else they do, such as storing or printing, isn't"
        notes.append(f"forward hooks are traced: {listed(own)}; {told}")
    for kind, instead in OWN_STATE.items():
        if places := own_state(model, kind):
            notes.append(f"{kind}() of {listed(places)} is its own, and isn't called: {instead}")
    if further:
        notes.append(f"the state dict has no extra state of {listed(further)}: it isn't trained, saved or restored")
    return tuple(notes)


def own_hooks(model: nn.Module) -> Iterator[tuple[str, str]]:
    """The users' hooks on forward: the submodule's path, and their names."""
    for path, module in model.named_modules():
        for hook in hooks_of(module, FORWARD):
            if not module_of(hook).startswith(OF_LIBRARIES):
                yield path, name_of(hook)


OWN_STATE = {
    "state_dict": "full_state_dict and save_weights give parameters and buffers under the names that they have",
    "load_state_dict": "load_weights takes values as they are, under the names of parameters and buffers",
}
"""What a program does instead of what a module defines for itself."""
DEFINED = {
    "state_dict": ("state_dict", "_save_to_state_dict"),
    "load_state_dict": ("load_state_dict", "_load_from_state_dict"),
}
LOAD = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")


def own_state(model: nn.Module, kind: str) -> list[str]:
    """Submodules whose class defines how its state is given or taken, or that have users' hooks on taking it."""
    found = []
    for path, module in model.named_modules():
        methods = [getattr(type(module), name) for name in DEFINED[kind]]
        hooks = [*hooks_of(module, LOAD)] if kind == "load_state_dict" else []
        if not all(module_of(each).startswith(OF_LIBRARIES) for each in (*methods, *hooks)):
            found.append(path or "the root")
    return found


def has_extra_state(module: nn.Module) -> bool:
    return type(module).get_extra_state is not nn.Module.get_extra_state


def hooks_of(module: nn.Module, kinds: Iterable[str]) -> Iterator[object]:
    for kind in kinds:
        yield from vars(module).get(kind, {}).values()


def name_of(hook: object) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    return getattr(hook, "__qualname__", None) or type(hook).__qualname__


def module_of(hook: object) -> str:
    """Where a hook is defined."""
    while isinstance(hook, partial):
        hook = hook.func
    return f"{getattr(hook, '__module__', None) or type(hook).__module__}."


def listed(places: list[str]) -> str:
    more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
    return f"{', '.join(places[:NAMED])}{more}"
