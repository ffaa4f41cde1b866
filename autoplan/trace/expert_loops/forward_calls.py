"""What forward called: each value as the function that made it and what that was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class Unlike(Exception):
    """A loop computes something else than a sum of experts; the message says what."""


@dataclass(frozen=True, eq=False)
class Call:
    """A value that forward has made.

    name    of the function, without underscores
    args    with a Call in place of each tensor that has one
    result  what it gave; it is held, so that its id stays its own
    chosen  whether it follows from which tokens an expert got, so that no graph holds its size
    """

    name: str
    function: Callable
    args: tuple
    kwargs: Mapping[str, Any]
    result: Any
    chosen: bool = False

    @property
    def tensor(self) -> Tensor:
        assert isinstance(self.result, Tensor)
        return self.result


CASTS = frozenset({"to", "type_as", "float", "double", "half", "bfloat16", "type", "bool", "long", "int"})
PLAIN = frozenset({"contiguous", "clone", "detach", "alias"})
SHAPED = frozenset({"view", "reshape", "squeeze", "unsqueeze", "flatten"})
TURNED = frozenset({"T", "mT", "t", "transpose", "permute", "swapaxes"})
MULTIPLIED = frozenset({"mul", "rmul", "imul", "multiply"})
DROPPING = frozenset({"dropout", "dropout1d", "alpha_dropout", "feature_dropout"})
AUGMENTED = {f"__i{name}__": name for name in ("add", "sub", "mul", "pow")} | {"__itruediv__": "div"}
GETTERS = {Tensor.T.__get__: "T", Tensor.mT.__get__: "mT", Tensor.shape.__get__: "shape"}  # type: ignore[attr-defined]


def name_of(function: Callable) -> str:
    """"mul" for ``torch.mul``, ``Tensor.mul_`` and ``Tensor.__mul__``."""
    return GETTERS.get(function) or getattr(function, "__name__", "").strip("_")


def plain(value: Any) -> Any:
    """Arguments with tensors in place of calls."""
    return mapped(value, lambda one: one.result if isinstance(one, Call) else one)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)(mapped(one, change) for one in value) if type(value) in (tuple, list) else value
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from leaves(one)
    elif isinstance(value, dict):
        yield from leaves(tuple(value.values()))
    else:
        yield value


def calls_in(value: Any) -> Iterator[Call]:
    return (one for one in leaves(value) if isinstance(one, Call))


def result_of(value: Call | Tensor) -> Tensor:
    return value.tensor if isinstance(value, Call) else value


def dropping(call: Call) -> float:
    """The part that a dropout drops; 0 where it drops nothing."""
    names = ("input", "p", "training", "inplace")
    given = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    return float(given.get("p", 0.5)) if given.get("training", True) else 0.0


def stripped(value: Any, dropped: list[float] | None = None) -> Any:
    """What a value holds, without casts, copies and other shapes of it. Unlike where something of it is dropped.

    dropped  gets what ``F.dropout`` drops, where that may be
    """
    while isinstance(value, Call):
        if value.name in DROPPING:
            part = dropping(value)
            if part and (dropped is None or value.name != "dropout"):
                raise Unlike("an expert drops of its rows or a gate; dropout is read behind an activation or product")
            if part and dropped is not None:
                dropped.append(part)
        elif value.name in SHAPED:
            if beside_ones(value.tensor) != beside_ones(result_of(value.args[0])):
                raise Unlike("an expert gives its rows another shape")
        elif value.name == "detach" and value.chosen:
            raise Unlike("an expert's rows, scores or result are detached: no gradient goes through them")
        elif value.name not in CASTS | PLAIN:
            return value
        value = value.args[0]
    return value


def undropped(value: Any) -> tuple[Any, tuple[float, ...]]:
    """What ``F.dropout`` is of, and the parts that it drops, of several the last first."""
    dropped = []
    while isinstance(value, Call) and value.name == "dropout":
        dropped += [part] if (part := dropping(value)) else []
        value = value.args[0]
    return value, tuple(dropped)


def beside_ones(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


def writes(function: Callable) -> bool:
    """Whether a function changes its first argument: ``Tensor.mul_``, ``Tensor.__imul__``."""
    name = getattr(function, "__name__", "")
    return name in AUGMENTED or (name.endswith("_") and not name.startswith("__"))


def out_of_place(function: Callable) -> Callable:
    """``torch.mul`` for ``Tensor.mul_`` and ``Tensor.__imul__``."""
    name = getattr(function, "__name__", "")
    plain_name = AUGMENTED.get(name, name.rstrip("_")) if writes(function) else ""
    return getattr(torch, plain_name, function) if plain_name else function
