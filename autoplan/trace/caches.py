"""Functions of a model's code that remember what they gave: ``functools.lru_cache`` around one that makes a tensor.

A trace would leave a tensor without values there, and the user's own model would compute with it afterwards; and a
tensor that an earlier forward left there would be a constant to the trace. So they forget, before a trace and after.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FunctionType
from typing import Any

from torch import nn

Cache: Any = type(lru_cache(lambda: None))
DEEPEST = 3  # functions that wrap one another, as decorators do


@contextmanager
def forgetting(model: nn.Module) -> Iterator[None]:
    """Within it the functions start without what they gave before, and what they give within is forgotten."""
    caches = list(caches_of(model))
    for cache in caches:
        cache.cache_clear()
    try:
        yield
    finally:
        for cache in caches:
            cache.cache_clear()


def caches_of(model: nn.Module) -> Iterator[Any]:
    """Of the submodules' classes, and of the files that these are written in; torch's own are left alone."""
    classes = {kind for module in model.modules() for kind in type(module).__mro__}
    own = [kind for kind in classes if kind.__module__.split(".")[0] not in ("torch", "builtins")]
    files = [vars(sys.modules[name]) for name in {kind.__module__ for kind in own} if name in sys.modules]
    for held in (*map(vars, own), *files):
        for value in list(held.values()):
            yield from caches_in(value, 0)


def caches_in(value: object, depth: int) -> Iterator[Any]:
    """A function itself, or what it wraps."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, Cache):
        yield value
    elif isinstance(value, FunctionType) and depth < DEEPEST:
        for cell in value.__closure__ or ():
            try:
                inside = cell.cell_contents
            except ValueError:  # a name that isn't set yet
                continue
            yield from caches_in(inside, depth + 1)
