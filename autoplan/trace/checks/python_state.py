"""What forward changes beside a graph's tensors: Python attributes, tensors that are no buffers, random states.

A trace sees one step. A counter, an average kept in an attribute, or a draw from Python's random would stay what it
was in that step, so forward is watched for them.
"""

import random
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
OPAQUE = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type, nn.Module)  # told apart by what they are
OWN = ("_parameters", "_buffers", "_modules")
DEEPEST, LONGEST = 4, 4096  # attributes of attributes; entries of a list that are looked at
TENSOR = "tensor"
State = dict[str, object]


def state_of(model: nn.Module) -> State:
    """Every attribute of every submodule, by its path: equal where nothing has changed."""
    known: dict[int, object] = {}
    return {
        f"{path}.{name}" if path else name: print_of(value, known, 0)
        for path, module in model.named_modules()
        for name, value in attributes(module)
    }


def attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    for name, value in vars(module).items():
        if name == "_buffers":  # a graph holds what becomes of them
            yield from ((key, held is None) for key, held in value.items())
        elif name == "_non_persistent_buffers_set":
            continue  # a buffer that is registered is told as itself
        elif name in OWN:
            yield from ((key, id(held)) for key, held in value.items())
        elif not is_hooks(name):
            yield name, value


def is_hooks(name: str) -> bool:
    """Whether an attribute is where torch keeps hooks: forward may register one for itself, and remove it."""
    return name.startswith("_") and "_hooks" in name


def changed(before: State, after: State) -> list[str]:
    """Names of attributes that were set, replaced or mutated."""
    absent = object()
    return [name for name in dict.fromkeys((*before, *after)) if before.get(name, absent) != after.get(name, absent)]


def mutated(before: State, after: State) -> list[str]:
    """Names of attributes that hold a tensor that was changed in place."""

    def in_place(name: str) -> bool:
        then, now = dict(versions(before.get(name))), dict(versions(after.get(name)))
        return any(then[tensor] != now[tensor] for tensor in then.keys() & now.keys())

    return [name for name in changed(before, after) if in_place(name)]


def versions(printed: object) -> Iterator[tuple[int, object]]:
    """The tensors of a print, with how often each was changed in place."""
    if isinstance(printed, tuple) and len(printed) == 3 and printed[0] == TENSOR:
        yield printed[1], printed[2]
    elif isinstance(printed, tuple):
        for part in printed:
            yield from versions(part)


def print_of(value: Any, known: dict[int, object], depth: int) -> object:
    """A value that is equal as long as the object is as it was."""
    if isinstance(value, PLAIN):
        return type(value).__name__, repr(value)
    if isinstance(value, torch.Tensor):
        return TENSOR, id(value), None if value.is_inference() else value._version
    if isinstance(value, weakref.ref):
        return print_of(value(), known, depth)
    if isinstance(value, OPAQUE) or depth > DEEPEST:
        return id(value)
    if id(value) not in known:
        known[id(value)] = id(value)  # of itself, where it holds itself
        known[id(value)] = print_inside(value, known, depth + 1)
    return known[id(value)]


def print_inside(value: Any, known: dict[int, object], depth: int) -> object:
    if isinstance(value, Mapping):
        items = list(value.items())[:LONGEST]
        return len(value), tuple((repr(key), print_of(held, known, depth)) for key, held in items)
    if isinstance(value, (list, tuple, deque)):
        return len(value), tuple(print_of(held, known, depth) for held in list(value)[:LONGEST])
    if isinstance(value, (set, frozenset)):
        return len(value), tuple(sorted(map(repr, value)))
    drawn = generator_state(value)
    if drawn is not None:
        return drawn
    held = None if type(value).__module__.startswith("torch.") else getattr(value, "__dict__", None)
    return (id(value), *((key, print_of(one, known, depth)) for key, one in held.items())) if held else id(value)


def generator_state(value: Any) -> object:
    """The state of a random generator of Python or NumPy; None for anything else. torch's can't be traced at all."""
    if isinstance(value, random.Random):
        return hash(value.getstate())
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, numpy.Generator):
        return repr(value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.RandomState):
        return repr(value.get_state(legacy=False))
    return None


def random_states() -> dict[str, object]:
    """The states of the generators that Python's and NumPy's functions draw from."""
    states: dict[str, object] = {"random": hash(random.getstate())}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        name, keys, *rest = numpy.get_state()
        states["numpy.random"] = (name, keys.tobytes(), *map(repr, rest))
    return states
