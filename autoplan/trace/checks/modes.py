"""In which mode each submodule runs: as the model was handed over.

A frozen ``bn.eval()`` uses its running statistics and leaves them, a ``dropout.eval()`` drops nothing. Only a model
that is wholly in eval mode, as ``from_pretrained`` returns it, is switched for a training. The trace and the reference
of a verification both ask here.
"""

from torch import nn

NAMED = 3  # submodules that a note names, before it counts the others


def wholly_evaluated(model: nn.Module) -> bool:
    """Whether no submodule is in training mode."""
    return not any(module.training for module in model.modules())


def set_modes(copy: nn.Module, training: bool, switched: bool) -> None:
    """Puts a copy of a model in the modes that it runs in.

    training  False, for inference: all of it in eval mode
    switched  whether the model was wholly in eval mode; the copy may hold fewer submodules
    """
    if not training:
        copy.eval()
    elif switched:
        copy.train()


def mode_notes(model: nn.Module) -> tuple[str, ...]:
    """What a report says of the modes in which a model trains; nothing where all of it is in training mode."""
    if wholly_evaluated(model):
        return (
            "the model was wholly in eval mode, as from_pretrained returns one: it trains in training mode, with "
            "dropout and with batch statistics",
        )
    kept = outermost_evaluated(model)
    if not kept:
        return ()
    more = f" and {len(kept) - NAMED} more" if len(kept) > NAMED else ""
    told = "dropout drops nothing there, batch norm uses its running statistics"
    return (f"in eval mode, as handed over: {', '.join(kept[:NAMED])}{more}; {told}",)


def outermost_evaluated(module: nn.Module, path: str = "") -> list[str]:
    """Paths of the submodules that are in eval mode with all they hold, and lie in no other such one."""
    if path and wholly_evaluated(module):
        return [path]
    children = ((name if not path else f"{path}.{name}", child) for name, child in module.named_children())
    return [found for name, child in children for found in outermost_evaluated(child, name)]
