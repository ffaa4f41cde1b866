"""The table of canonical forms: one function for each operator of an exported graph that is not canonical already."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from autoplan.ir.graph import Ref
from autoplan.trace.builder import Builder, Value

Form = Callable[..., "Ref | tuple[Ref | None, ...]"]
AnyForm = TypeVar("AnyForm", bound=Form)
_FORMS: dict[str, Form] = {}  # filled by the decorator at import


def form(*ops: str) -> Callable[[AnyForm], AnyForm]:
    """Registers the canonical form of operators. The function takes the builder, then the operator's arguments."""

    def register(function: AnyForm) -> AnyForm:
        for op in ops:
            _FORMS[op] = function
        return function

    return register


def renamed(op: str, *others: str) -> None:
    """Operators that are another one of the same arguments."""

    @form(*others)
    def other_name(b: Builder, *args: Ref | float) -> Ref:
        return b.emit(op, *args)


def forms() -> Mapping[str, Form]:
    return MappingProxyType(_FORMS)


def positive(dim: int, rank: int) -> int:
    """A dim counted from the front."""
    return dim + rank if dim < 0 else dim


def positives(dims: Value, rank: int) -> tuple[int, ...]:
    """Several dims; none given means all."""
    if dims is None or dims == ():
        return tuple(range(rank))
    assert isinstance(dims, (tuple, list, int))
    return tuple(positive(d, rank) for d in ((dims,) if isinstance(dims, int) else dims))


__all__ = ["Builder", "Form", "Ref", "form", "forms", "positive", "positives", "renamed"]
