"""Functions and classes whose modules are imported when they are first called.

A process imports what it runs. A rank that trains needs no search, prices, verification or rehearsal, which with SciPy
and the solvers take half a second and 33 MB. A command that prints a plan needs no runtime: torch's sharded tensors and
its compiler take two seconds. A loaded plan brings each when it is asked for something of theirs.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def deferred(name: str) -> Callable[..., Any]:
    """The function or class of a full name, ``"autoplan.replan.replan"``; the first call imports its module."""
    module, _, function = name.rpartition(".")

    def call(*args: Any, **options: Any) -> Any:
        return getattr(import_module(module), function)(*args, **options)

    call.__name__ = call.__qualname__ = function
    return call
