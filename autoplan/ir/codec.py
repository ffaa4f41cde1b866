"""Frozen dataclasses <-> plain data for plan.json.

The dataclasses' own type annotations are the schema: what is read must have the shape that they say, and an error
names the place. States are written as their one-letter text, layouts as an axis-to-state table per dim. A field that
doesn't count when two values are compared isn't written.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping

from autoplan.errors import PlanFileError
from autoplan.ir.graph import Argument, DType, Ref
from autoplan.ir.layout import State

REMEDY = "plan again and export, or undo the edit"


def encode(value: object) -> object:
    """Plain data: dicts, lists, texts, numbers."""
    if isinstance(value, State):
        return str(value)
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [encode(item) for item in (sorted(value) if isinstance(value, frozenset) else value)]
    assert value is None or isinstance(value, str | int | float | bool), f"{type(value)} has no place in plan.json"
    return value


def decode(kind: typing.Any, data: object, where: str) -> typing.Any:
    """The value of that type; PlanFileError, naming the place, where the data aren't one.

    kind   a type annotation: a dataclass, tuple[X, ...], tuple[X, Y], X | None, int, float, str, bool, object
    where  path for the error, "plan.json: chosen.mesh"
    """
    return _Decoder().decode(kind, data, where)


def decode_parts(kinds: Mapping[str, typing.Any], data: Mapping[str, object], where: str) -> dict[str, typing.Any]:
    """Several values by name, each of its type, as ``decode`` reads one."""
    decoder = _Decoder()
    return {name: decoder.decode(kind, data[name], f"{where}: {name}") for name, kind in kinds.items()}


class _Decoder:
    """Reads values. ``fields`` holds the dataclasses' fields that are written, by class: resolving their annotations
    takes longer than reading an instance."""

    def __init__(self) -> None:
        self.fields: dict[type, dict[str, typing.Any]] = {}

    def fields_of(self, kind: type) -> dict[str, typing.Any]:
        if kind not in self.fields:
            hints = typing.get_type_hints(kind)
            self.fields[kind] = {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.compare}
        return self.fields[kind]

    def decode(self, kind: typing.Any, data: object, where: str) -> typing.Any:
        origin = typing.get_origin(kind)
        if kind is State:
            return self.decode_state(data, where)
        if kind is object or kind == Argument:
            return self.decode_argument(data, where)
        if dataclasses.is_dataclass(kind):
            return self.decode_dataclass(kind, data, where)
        if origin is tuple:
            return self.decode_tuple(typing.get_args(kind), data, where)
        if origin in (typing.Union, types.UnionType):
            return self.decode_union(typing.get_args(kind), data, where)
        if origin in (dict, Mapping) or origin is typing.get_origin(Mapping[str, int]):
            return self.decode_mapping(typing.get_args(kind), data, where)
        return self.decode_scalar(kind, data, where)

    def decode_state(self, data: object, where: str) -> State:
        try:
            return State.parse(expect(data, str, where))
        except ValueError as error:
            raise PlanFileError(f"{where} = {data!r}", str(error), REMEDY) from None

    def decode_argument(self, data: object, where: str) -> Argument:
        if isinstance(data, dict):
            if set(data) == {"ref"}:
                return Ref(expect(data["ref"], str, where))
            if set(data) == {"dtype"}:
                return DType(expect(data["dtype"], str, where))
            if set(data) == {"complex"}:
                return complex(*self.decode_tuple((float, float), data["complex"], where))
            cause = "an argument is a number, a text, a list, a ref or a dtype"
            raise PlanFileError(f"{where} = {data!r}", cause, REMEDY)
        if isinstance(data, list):
            return tuple(self.decode_argument(item, f"{where}[{i}]") for i, item in enumerate(data))
        return data

    def decode_dataclass(self, kind: typing.Any, data: object, where: str) -> typing.Any:
        given = expect(data, dict, where)
        hints = self.fields_of(kind)
        missing, unknown = [n for n in hints if n not in given], [n for n in given if n not in hints]
        if missing or unknown:
            said = [f"lacks {missing}" if missing else "", f"has unknown {unknown}" if unknown else ""]
            raise PlanFileError(where, f"a {kind.__name__} {' and '.join(s for s in said if s)}", REMEDY)
        return kind(**{n: self.decode(hint, given[n], f"{where}.{n}") for n, hint in hints.items()})

    def decode_tuple(self, kinds: tuple, data: object, where: str) -> tuple:
        items = expect(data, list, where)
        if len(kinds) == 2 and kinds[1] is Ellipsis:
            return tuple(self.decode(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(items))
        if len(kinds) != len(items):
            raise PlanFileError(where, f"{len(items)} items where {len(kinds)} belong", REMEDY)
        pairs = enumerate(zip(kinds, items, strict=True))
        return tuple(self.decode(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)

    def decode_union(self, kinds: tuple, data: object, where: str) -> typing.Any:
        if data is None and type(None) in kinds:
            return None
        error: PlanFileError | None = None
        for kind in kinds:
            if kind is not type(None):
                try:
                    return self.decode(kind, data, where)
                except PlanFileError as other:
                    error = error or other
        assert error is not None
        raise error

    def decode_mapping(self, kinds: tuple, data: object, where: str) -> dict:
        given = expect(data, dict, where)
        return {key: self.decode(kinds[1], item, f"{where}.{key}") for key, item in given.items()}

    def decode_scalar(self, kind: type, data: object, where: str) -> object:
        if kind is float and isinstance(data, int) and not isinstance(data, bool):
            return float(data)
        return expect(data, kind, where)


def expect(data: object, kind: type, where: str) -> typing.Any:
    if not isinstance(data, kind) or (kind in (int, float) and isinstance(data, bool)):
        found = f"{type(data).__name__} {data!r}"[:80]
        raise PlanFileError(where, f"{kind.__name__} belongs here, found {found}", REMEDY)
    return data
