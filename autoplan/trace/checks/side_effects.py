"""What forward does while it is traced that an exported graph doesn't hold: refused where it happens.

Hooks on activations and on saved tensors, seeds, autocast for a device that the trace isn't on, inference mode. torch's
checkpointing and save_on_cpu are noted, since the plan decides what is recomputed and where activations lie. Reentrant
checkpointing, which runs its part without gradients and would lose them, is run as what it stands for.
So is ``module.to(dtype)`` that changes nothing: it would replace the parameters by others.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._contextlib import context_decorator  # what runs a function under a region of torch's
from torch.utils.checkpoint import CheckpointFunction

from autoplan.errors import TraceError
from autoplan.trace.capture import LIBRARIES, line_of
from autoplan.trace.checks.hooks import name_of

TRACED_ON = "cpu"
DECORATORS = inspect.getsourcefile(context_decorator)
CHECKPOINTED = (
    "the model's own torch.utils.checkpoint isn't followed: the plan decides what is recomputed, and recompute='full' "
    "or 'selective' pins it"
)
KEPT_ON_HOST = (
    "the model's own torch.autograd.graph.save_on_cpu isn't followed: the plan decides where activations lie, and "
    "offload='activations' pins it"
)
SEEDS = ((torch, "manual_seed"), (torch.random, "manual_seed"), (torch, "set_rng_state"), (torch, "seed"))
IN_LOSS = "do in forward, or in the loss, what it does to gradients"


@contextmanager
def refusals(training: bool, noted: dict[str, None]) -> Iterator[None]:
    """Within it, what would be left out raises TraceError with the line that does it.

    noted  takes notes of what is left out without a difference in values
    """
    with ExitStack() as stack:
        replaced = stack.enter_context
        replaced(patch.object(torch.autocast, "__init__", guarded(torch.autocast.__init__, check_autocast)))
        replaced(patch.object(torch.autocast, "__enter__", guarded(torch.autocast.__enter__, check_entered)))
        for owner, name in SEEDS:
            replaced(patch.object(owner, name, guarded(getattr(owner, name), refuse_seed)))
        if training:
            for name in ("register_hook", "register_post_accumulate_grad_hook"):
                replaced(patch.object(Tensor, name, guarded(getattr(Tensor, name), refuse_hook)))
            graph = torch.autograd.graph
            several = guarded(graph.register_multi_grad_hook, refuse_hook)
            replaced(patch.object(graph, "register_multi_grad_hook", several))
            entered = guarded(saved_tensors_hooks.__enter__, partial(check_saving, noted))
            replaced(patch.object(saved_tensors_hooks, "__enter__", entered))
            inference = guarded(torch.inference_mode.__enter__, check_inference)
            replaced(patch.object(torch.inference_mode, "__enter__", inference))
        replaced(patch.object(nn.Module, "to", moved(nn.Module.to)))
        apply = unsaved(CheckpointFunction.apply, noted if training else {})
        replaced(patch.object(CheckpointFunction, "apply", apply))
        yield


def guarded(function: Callable, check: Callable[..., None]) -> Callable:
    """A function that first checks how it is called."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return function(*args, **kwargs)

    return checked


def refuse_hook(_: object, hook: object = None, *args: object, **kwargs: object) -> None:
    """A hook on a tensor's gradient, by forward itself; what torch registers for itself is its own business."""
    if by_user():
        name = name_of(hook)
        raise TraceError(here(), f"hook {name} on a gradient isn't traced, and the gradient would be another", IN_LOSS)


def refuse_seed(*_: object, **__: object) -> None:
    """A seed that forward sets: each step's draws would be the same on one device."""
    if by_user():
        cause = "forward sets torch's random state, and the program draws from a state of its own"
        raise TraceError(here(), cause, "draw outside of forward, and hand in what is drawn with the batch")


def check_saving(noted: dict[str, None], hooks: saved_tensors_hooks) -> None:
    """Hooks on saved tensors that aren't torch's own, which checkpoint and save_on_cpu are made of."""
    if type(hooks).__module__ == CheckpointFunction.__module__:
        noted[CHECKPOINTED] = None
    if isinstance(hooks, torch.autograd.graph.save_on_cpu):
        noted[KEPT_ON_HOST] = None
    if type(hooks) is saved_tensors_hooks or not type(hooks).__module__.startswith("torch."):
        cause = f"hook {name_of(hooks.pack_hook)} on saved tensors isn't traced, and gradients would be others"
        raise TraceError(here(), cause, "leave it out: what is kept or computed again is the plan's to choose")


def check_autocast(
    _: object, device_type: str, dtype: object = None, enabled: bool = True, *args: object, **kwargs: object
) -> None:
    if enabled and device_type != TRACED_ON:
        raise TraceError(
            here(),
            f"autocast for {device_type!r} has no effect on the {TRACED_ON!r}, where the model is traced, and would be "
            "left out",
            "leave it to Training(precision='bf16-mixed'), or write torch.autocast(x.device.type)",
        )


def check_entered(region: torch.autocast) -> None:
    """One that was made before the trace, as that of a decorated function."""
    check_autocast(region, region.device, enabled=region._enabled)


def check_inference(region: torch.inference_mode) -> None:
    if region.mode and by_user():
        cause = "torch.inference_mode() isn't traced, and gradients would pass"
        raise TraceError(here(), cause, "use torch.no_grad() or .detach()")


def unsaved(apply: Callable, noted: dict[str, None]) -> Callable:
    """Reentrant checkpointing as its function alone; without gradients where no operand carries one, as torch does."""

    def run(function: Callable, preserve_rng_state: bool, *args: Any) -> Any:
        carried = any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        with torch.set_grad_enabled(carried and torch.is_grad_enabled()):
            if torch.is_grad_enabled():
                noted[CHECKPOINTED] = None
            return function(*args)

    return run


def moved(to: Callable) -> Callable:
    """Module.to, but of a module that is there already, and as asked."""

    def run(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        held = [*module.parameters(), *module.buffers()]
        there = device is None or all(tensor.device.type == device.type for tensor in held)
        alike = dtype is None or all(t.dtype == dtype for t in held if t.is_floating_point() or t.is_complex())
        return module if there and alike else to(module, *args, **kwargs)

    return run


def by_user() -> bool:
    """Whether the innermost line outside of this file, and of torch's decorators, is the user's and not torch's."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, DECORATORS):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and not frame.f_code.co_filename.startswith(LIBRARIES)


def here() -> str:
    """The innermost line of the user's code that runs."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(LIBRARIES):
            return line_of(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return "the model"
