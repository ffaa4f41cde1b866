"""The tensors of a model as it is handed over: what the program couldn't hold as it is there is refused."""

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from autoplan.errors import InputsError, TraceError
from autoplan.trace.initialise.plain import check_plain, named

COMPILED = "_orig_mod"  # what torch.compile names the module that it wraps, in state dicts too


def check_tensors(model: nn.Module) -> None:
    """InputsError for a model in a wrapper, and as ``check_plain`` raises them; TraceError for two tensors that share
    memory, one of which is trained."""
    for path, module in model.named_modules():
        if isinstance(module, (DataParallel, DistributedDataParallel)):
            kind = type(module).__name__
            cause = f"{kind} wraps {f'module {path!r}' if path else 'the model'}, and what it does isn't in a plan"
            raise InputsError(kind, cause, "hand over what it wraps, its .module")
        if COMPILED in dict(module.named_children()):
            where = f"module {path!r}" if path else "the model"
            cause = f"{where} is what it returned, and each name in it would begin with {COMPILED}"
            raise InputsError("torch.compile", cause, f"hand over its .{COMPILED}: a plan compiles by itself")
    check_plain(model)
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


def storage_names(model: nn.Module) -> dict[int, str]:
    """The names of parameters and buffers, by what holds their numbers."""
    return {storage_of(tensor): name for name, tensor in named(model)}


def storage_of(tensor: Tensor) -> int:
    return id(tensor.untyped_storage())
