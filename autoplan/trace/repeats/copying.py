"""A weightless copy of the user's model: same modules, fake parameters, repeated children left out.

Nothing is ever written to the user's model. The copy's tensors are fake ones on the CPU, which have a shape and a
dtype and no memory; unlike meta tensors they mix with what forward makes on the default device.
"""

import copy
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

# FakeTensorMode is what torch.export itself runs under; torch has no public name for it.
from torch._subclasses.fake_tensor import FakeTensorMode

from autoplan.errors import TraceError
from autoplan.trace.builder import dtype_name, torch_dtype
from autoplan.trace.initialise.lifting import plain_tensors
from autoplan.trace.repeats.per_child import rearranged


@dataclass(frozen=True)
class KeptChildren:
    """Which children of a ModuleList or Sequential the copy holds, by their index in the original."""

    path: str
    children: tuple[int, ...]


def fake_mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_like(tensor: torch.Tensor, mode: FakeTensorMode, dtype: str | None) -> torch.Tensor:
    """A fake tensor of the same shape, in the compute dtype where it is floating; None: in its own."""
    kind = torch_dtype(dtype) if dtype is not None and tensor.is_floating_point() else tensor.dtype
    with mode:
        return torch.empty(tensor.shape, dtype=kind)


def fake_copy(model: nn.Module, mode: FakeTensorMode, dtype: str | None, kept: Iterable[KeptChildren]) -> nn.Module:
    """The copy. Parameters come in the compute dtype (None: in their own), buffers in their own, or in float32 as the
    parameters of a model in float64, which is traced as its narrower self; children not kept are gone.

    TraceError where the model holds something that Python can't copy.
    """
    memo: dict[int, object] = {}
    chosen = {k.path: k.children for k in kept}
    for path, children in chosen.items():
        for index, child in enumerate(model.get_submodule(path).children()):
            if index not in children:
                memo[id(child)] = nn.Identity()
    for parameter in own_tensors(model, nn.Module.parameters, memo):
        memo[id(parameter)] = nn.Parameter(fake_like(parameter, mode, dtype), parameter.requires_grad)
    wide = any(parameter.dtype == torch.float64 for parameter in model.parameters())
    narrowed = torch.float64 if wide and dtype == "float32" else None
    for buffer in own_tensors(model, nn.Module.buffers, memo):
        memo[id(buffer)] = fake_like(buffer, mode, dtype if buffer.dtype == narrowed else dtype_name(buffer.dtype))
    for tensor in plain_tensors(model):
        if tensor.grad_fn is not None:  # what a forward left, of which Python makes no copy
            memo[id(tensor)] = fake_like(tensor, mode, dtype)
    try:
        twin = copy.deepcopy(model, memo)
    except (TypeError, RuntimeError, AttributeError) as error:
        raise TraceError(
            type(model).__name__, f"it can't be copied ({error})", "keep open files, locks and the like out of it"
        ) from error
    for (owner, name), entries in (rearranged(model, chosen) or {}).items():
        vars(memo[owner])[name] = type(vars(memo[owner])[name])(entries)
    for path, children in chosen.items():
        drop_children(twin.get_submodule(path), children)
    return twin


def own_tensors(
    module: nn.Module, tensors: Callable[..., Iterable[torch.Tensor]], left_out: Container[int]
) -> Iterator[torch.Tensor]:
    """A module's tensors, without those of the submodules left out (by id)."""
    if id(module) not in left_out:
        yield from tensors(module, recurse=False)
        for child in module.children():
            yield from own_tensors(child, tensors, left_out)


def drop_children(parent: nn.Module, children: Iterable[int]) -> None:
    """Leaves these children of a list, numbered anew."""
    assert isinstance(parent, (nn.ModuleList, nn.Sequential))
    left = [list(parent.children())[index] for index in children]
    for name in [name for name, _ in parent.named_children()]:
        delattr(parent, name)
    for index, child in enumerate(left):
        parent.add_module(str(index), child)


def original_name(name: str, kept: Mapping[str, KeptChildren]) -> str:
    """The original's name of something in the copy: list positions become the original's."""
    parts = name.split(".")
    for depth in range(len(parts)):
        path = ".".join(parts[:depth])
        if path in kept and parts[depth].isdigit():
            parts[depth] = str(kept[path].children[int(parts[depth])])
    return ".".join(parts)
