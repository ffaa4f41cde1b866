"""Plain values: ``KEY=VALUE`` of the command line, options by name, numbers."""

import ast
import math
from collections.abc import Iterable, Mapping, Sequence

from autoplan.arguments.keywords import instead
from autoplan.errors import InputsError, ParallelismError

Settings = tuple[tuple[str, object], ...]
"""Options by name, sorted: a mapping that can be hashed and written to plan.json."""
KINDS = {
    int: "a whole number", float: "a number", bool: "true or false", list: "several values", tuple: "several values",
}  # fmt: skip
EFFORTS = ("full", "fast")
TRAINERS = ("megatron", "torchtitan", "deepspeed", "accelerate", "nanotron")  # whose configurations are written
WORDS = {"true": True, "false": False, "none": None, "null": None}


def parse_settings(
    settings: Iterable[str], defaults: Mapping[str, object], what: str, others: Mapping[str, str] | None = None
) -> dict[str, object]:
    """The settings, each of its default's type.

    what    names in the error what they are settings of
    others  names from elsewhere, and what to write instead (``autoplan.arguments.synonyms``)
    Raises InputsError for what isn't KEY=VALUE, a key that has no default (the nearest are named), another type.
    """
    values: dict[str, object] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key:
            example = "precision=bf16-mixed" if "precision" in defaults else "num_layers=4"
            raise InputsError(repr(text), f"{what} takes KEY=VALUE", f"write for example {example}")
        if key not in defaults:
            raise InputsError(text, f"{what} has no {key!r}", instead(key, value, sorted(defaults), others or {}))
        if key in values:
            raise InputsError(text, f"{what} has {key!r} already", "give it once")
        values[key] = parse_value(text, value, defaults[key], what)
    return values


def parse_value(text: str, value: str, default: object, what: str) -> object:
    """The value as its default's type; what it looks like where the default is None."""
    if isinstance(default, str):
        return value
    found = WORDS[value.lower()] if value.lower() in WORDS else literal(value)
    if default is None or found is None:
        return found
    if isinstance(default, float) and isinstance(found, int) and not isinstance(found, bool):
        return float(found)
    if isinstance(default, (list, tuple)):
        found = type(default)(found) if isinstance(found, (list, tuple)) else type(default)([found])
    if not isinstance(found, type(default)) or (isinstance(found, bool) and not isinstance(default, bool)):
        kind = KINDS.get(type(default), type(default).__name__)
        raise InputsError(text, f"{what} takes {kind} there", f"write for example {text.partition('=')[0]}={default}")
    return found


def literal(value: str) -> object:
    """A Python literal where the text is one, else the text."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def settings(what: str, given: object) -> Settings:
    """Options as sorted pairs; ParallelismError where a name is given twice, or a value is not plain data."""
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    paired = isinstance(pairs, Sequence) and all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs)
    if not paired or not all(isinstance(name, str) for name, _ in pairs):  # type: ignore[attr-defined]
        raise ParallelismError(f"{what} {given!r}", "they are values by name", "give for example {'amsgrad': True}")
    found = {name: plain_value(what, name, value) for name, value in pairs}  # type: ignore[attr-defined]
    if len(found) < len(pairs):  # type: ignore[arg-type]
        raise ParallelismError(f"{what} {given!r}", "a name stands there twice", "give each once")
    return tuple(sorted(found.items()))


def plain_value(what: str, name: str, value: object) -> object:
    """What plan.json can hold: numbers, texts, None, and tuples of them."""
    if isinstance(value, tuple | list):
        return tuple(plain_value(what, name, item) for item in value)
    if value is None or isinstance(value, str | bool | int) or is_number(value):
        return value
    raise ParallelismError(f"{what}: {name}={value!r}", "plan.json holds plain data alone", "give a number or a text")


def is_number(value: object) -> bool:
    """Whether this is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_pair(value: object) -> bool:
    """Whether these are two shares."""
    return isinstance(value, tuple) and len(value) == 2 and all(map(is_share, value))


def is_whole(value: object) -> bool:
    """Whether this is a whole number; True and False, which Python counts among them, are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_share(value: object) -> bool:
    """Whether this is a number from 0 to below 1."""
    return is_number(value) and 0 <= value < 1  # type: ignore[operator]


def check_effort(effort: object) -> None:
    """ParallelismError for an effort that is none."""
    if effort not in EFFORTS:
        raise ParallelismError(f"effort={effort!r}", "no such effort", f"use one of {EFFORTS}")


def options_text(options: Mapping[str, object]) -> str:
    """``lr=0.1, betas=(0.9, 0.95)``."""
    return ", ".join(f"{name}={value!r}" for name, value in options.items())
