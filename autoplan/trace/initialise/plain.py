"""The tensors of a model as it is handed over: those that the program couldn't hold as they are are refused."""

from collections.abc import Iterator

from torch import Tensor, nn, strided
from torch.nn.parameter import is_lazy

from autoplan.errors import InputsError, TraceError
from autoplan.trace.initialise.lifting import plain_tensors

PLAIN = (Tensor, nn.Parameter, nn.Buffer)


def check_plain(model: nn.Module) -> None:
    """InputsError for lazy parameters, and for tensors that can't be trained; TraceError for those that are more than
    numbers."""
    check_shaped(model)
    for name, tensor in named(model):
        if tensor.is_inference():
            cause = "it was made under torch.inference_mode(), and can't be trained"
            raise InputsError(name, cause, "make the model outside of it")
    for name, tensor in (*named(model), *(("a tensor in an attribute", held) for held in plain_tensors(model))):
        if type(tensor) not in PLAIN or tensor.layout is not strided:
            kind = type(tensor).__name__ if type(tensor) not in PLAIN else str(tensor.layout)
            cause = f"it is a {kind}, and the program's parameters and buffers are plain dense tensors"
            remedy = "hand over the model with plain ones: of a sparse matrix the values and indices, for index_add_"
            raise TraceError(name, cause, remedy if tensor.layout is not strided else "hand over the model with those")


def check_shaped(model: nn.Module) -> None:
    """InputsError for lazy parameters."""
    for name, tensor in named(model):
        if is_lazy(tensor):
            remedy = "run the model once on a batch before planning, which gives its lazy layers their shapes"
            raise InputsError(name, "it is lazy and has no shape yet", remedy)


def named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
