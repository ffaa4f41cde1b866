"""Which expert each of a token's choices names, from the mask that a loop over experts goes by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autoplan.trace.expert_loops.forward_calls import CASTS, MULTIPLIED, PLAIN, SHAPED, Call, Unlike, plain, result_of

CHOOSING = frozenset({"topk", "argmax", "sort", "argsort", "max"})
NEAR = 8  # calls between a mask of experts and what it was made of


@dataclass(frozen=True)
class Selection:
    """The places where one expert's mask is true, as ``torch.where`` gives them.

    mask    bool or a count, of any dims
    expert  whose it is
    """

    mask: Call
    expert: int


@dataclass(frozen=True)
class Classes:
    """What is true at one class at most, along one of its dims.

    index   of the other dims: the class
    dim     of the classes
    count   of them
    masked  whether somewhere there is none
    """

    index: Tensor
    dim: int
    count: int
    masked: bool = False


def expert_of(mask: Any) -> int | None:
    """Whose mask this is: an entry of what ``one_hot`` gave, or where a choice equals a number; None for none."""
    call = unshaped(mask)
    if not isinstance(call, Call):
        return None
    if call.name == "getitem" and isinstance(call.args[1], int):
        return int(call.args[1]) if near(call.args[0], frozenset({"one_hot"})) else None
    if call.name == "eq" and isinstance(call.args[1], int) and near(call.args[0], CHOOSING):
        return int(call.args[1])
    return None


def asked_of(value: Any) -> tuple[Call, bool] | None:
    """Of ``mask.any()`` and ``mask.sum() == 0``: an expert's mask, and the answer where the expert has tokens."""
    if not isinstance(value, Call) or not value.args:
        return None
    if value.name == "any" and len(value.args) == 1 and not value.kwargs:
        return (value.args[0], True) if expert_of(value.args[0]) is not None else None
    if value.name in ("eq", "gt", "greater", "ne") and len(value.args) == 2 and value.args[1] == 0:
        count = value.args[0]
        summed = isinstance(count, Call) and count.name == "sum" and len(count.args) == 1 and not count.kwargs
        if summed and expert_of(count.args[0]) is not None:
            return count.args[0], value.name != "eq"
    return None


def near(value: Any, names: frozenset[str], most: int = NEAR) -> bool:
    """Whether a value was made by one of these, a few calls ago."""
    if not isinstance(value, Call) or not most:
        return False
    return value.name in names or any(near(one, names, most - 1) for one in value.args)


def is_above_zero(mask: Any) -> bool:
    """Whether a mask of experts says which have any token, and isn't compared with another number."""
    call = unshaped(mask)
    compared = isinstance(call, Call) and call.name in ("gt", "greater", "ne", "eq")
    return not compared or (call.name != "eq" and isinstance(call.args[1], (int, float)) and call.args[1] == 0)


def possible(mask: Any, classes: int) -> int:
    """How many classes of a mask of ``one_hot`` may be true: as many as were chosen among, where that is known."""
    while isinstance(mask, Call) and mask.name != "one_hot":
        mask = next((one for one in mask.args if near(one, frozenset({"one_hot"}))), None)
    chosen = unshaped(mask.args[0]) if isinstance(mask, Call) else None
    if isinstance(chosen, Call) and chosen.name == "part":
        chosen = chosen.args[0]
    if not isinstance(chosen, Call) or chosen.name not in ("topk", "argmax"):
        return classes
    after = 1 + (chosen.name == "topk")
    dim = chosen.kwargs.get("dim", chosen.args[after] if len(chosen.args) > after else -1)
    return classes if dim is None else min(classes, result_of(chosen.args[0]).shape[dim])


def unshaped(value: Any) -> Any:
    while isinstance(value, Call) and value.name in CASTS | PLAIN | SHAPED:
        value = value.args[0]
    return value


def index_like(selection: Selection, experts: int) -> tuple[Tensor, int]:
    """Which expert is named at each place of a selection's mask, and one more than the greatest number of one.

    experts  that the loop goes over: what equals a number names one of them, or none
    """
    made = unshaped(selection.mask)
    if made.name == "eq":
        index, count = result_of(made.args[0]), experts
    else:
        classes = classes_of(made.args[0])
        if classes is None or classes.dim:
            raise Unlike("the experts' mask is none of what one_hot gives, turned so that experts come first")
        index, count = classes.index, classes.count
        if classes.masked:
            index, count = torch.where((result_of(made.args[0]) != 0).any(0), index, count), count + 1
        if result_of(made).ndim > index.ndim:  # an expert of [1], as an entry of nonzero's
            index = index.unsqueeze(0)
    return shaped_as(selection.mask, made)(index), count


def shaped_as(value: Call, below: Call) -> Callable[[Tensor], Tensor]:
    """What a value's shape was made by, of another tensor of the same shape."""

    def shape(index: Tensor) -> Tensor:
        steps = []
        call: Any = value
        while call is not below:
            steps += [call] if call.name in SHAPED else []
            call = call.args[0]
        for step in reversed(steps):
            index = step.function(index, *plain(step.args[1:]), **plain(step.kwargs))
        return index

    return shape


def classes_of(value: Any) -> Classes | None:
    """What is made of ``one_hot`` so that still one class at most is true; None for anything else."""
    if not isinstance(value, Call):
        return None
    if value.name == "one_hot":
        index = result_of(value.args[0])
        return Classes(index, index.ndim, value.tensor.shape[-1])
    if value.name in MULTIPLIED:
        both = [classes_of(one) for one in value.args[:2]]
        found = next((one for one in both if one is not None), None)
        of = value.args[0] if both[0] is not None else value.args[1]
        if found is None or result_of(of).shape != value.tensor.shape:
            return None
        return Classes(found.index, found.dim, found.count, masked=True)
    below = classes_of(value.args[0]) if value.args else None
    if below is None or value.name in CASTS | PLAIN:
        return below
    if value.name in ("permute", "transpose", "swapaxes"):
        return turned(value, below)
    if value.name in SHAPED and below.dim == below.index.ndim and value.tensor.shape[-1] == below.count:
        lead = value.tensor.shape[:-1]
        return Classes(below.index.reshape(lead), len(lead), below.count, below.masked)
    return None


def turned(value: Call, below: Classes) -> Classes:
    rank = value.tensor.ndim
    dims = list(range(rank))
    given = plain(value.args[1:]) or tuple(plain(dict(value.kwargs)).values())
    if value.name == "permute":
        dims = [d % rank for d in (given[0] if isinstance(given[0], (tuple, list, torch.Size)) else given)]
    else:
        one, other = (d % rank for d in given)
        dims[one], dims[other] = other, one
    rest = [d - (d > below.dim) for d in dims if d != below.dim]
    return Classes(below.index.permute(rest), dims.index(below.dim), below.count, below.masked)
