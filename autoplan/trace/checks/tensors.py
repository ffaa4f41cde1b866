"""The tensors of a model as it is handed over: what the program couldn't hold as it is there is refused."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from autoplan.errors import InputsError, TraceError

PLAIN = (Tensor, nn.Parameter, nn.Buffer)


def check_tensors(model: nn.Module) -> None:
    """InputsError for a model in a wrapper, or with lazy parameters; TraceError for tensors that are more than numbers,
    and for two that share memory, one of which is trained."""
    for path, module in model.named_modules():
        if isinstance(module, (DataParallel, DistributedDataParallel)):
            kind = type(module).__name__
            cause = f"{kind} wraps {f'module {path!r}' if path else 'the model'}, and what it does isn't in a plan"
            raise InputsError(kind, cause, "hand over what it wraps, its .module")
    for name, tensor in named(model):
        if is_lazy(tensor):
            raise InputsError(name, "it is lazy and has no shape yet", "run the model once before planning")
        if tensor.is_inference():
            cause = "it was made under torch.inference_mode(), and can't be trained"
            raise InputsError(name, cause, "make the model outside of it")
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
            kind = type(tensor).__name__ if type(tensor) not in PLAIN else str(tensor.layout)
            cause = f"it is a {kind}, and the program's parameters are plain dense tensors"
            raise TraceError(name, cause, "hand over the model with plain ones")
    check_apart(model)


def check_apart(model: nn.Module) -> None:
    """A tied weight is one parameter under two names; two parameters on one memory would train apart."""
    by_storage: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in named(model):
        by_storage.setdefault(storage_of(tensor), []).append((name, tensor))
    for sharing in by_storage.values():
        for index, (name, tensor) in enumerate(sharing):
            for other, second in sharing[:index]:
                if (tensor.requires_grad or second.requires_grad) and overlap(tensor, second):
                    raise TraceError(
                        f"{other} and {name}",
                        "they share memory and are two tensors: on one device an update of one changes the other, and "
                        "in the program they would be apart",
                        f"tie them, so that both names are one parameter (b.weight = a.weight), or clone {name}",
                    )


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one storage have an element in common, as far as their bounds tell."""
    if one.numel() == 0 or other.numel() == 0:
        return False
    first, second = sorted((bounds(one), bounds(other)))
    return first[1] > second[0]


def bounds(tensor: Tensor) -> tuple[int, int]:
    """The first byte in the storage, and the one after the last."""
    last = sum(int((size - 1) * stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start * tensor.element_size(), (start + last + 1) * tensor.element_size()


def named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def storage_names(model: nn.Module) -> dict[int, str]:
    """The names of parameters and buffers, by what holds their numbers."""
    return {storage_of(tensor): name for name, tensor in named(model)}


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
