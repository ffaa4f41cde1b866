"""Plain values, as a checkpoint's state.json holds them: what JSON has, tuples, and mappings by any plain key."""

import json
import os
from pathlib import Path

from autoplan.errors import InputsError

TUPLE, ITEMS = "(tuple)", "(items)"


def encode(value: object, where: str) -> object:
    """The value as JSON has it. InputsError, naming the place, for what isn't plain."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {TUPLE: [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value) and not {TUPLE, ITEMS} & value.keys():
        return {key: encode(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, dict):
        return {ITEMS: [[encode(k, where), encode(item, f"{where}[{k!r}]")] for k, item in value.items()]}
    raise InputsError(
        f"{where} of {type(value).__name__}",
        "a checkpoint holds plain values there: numbers, texts, lists, tuples, dicts of them",
        "give .item() or .tolist() of a tensor",
    )


def decode(data: object) -> object:
    """The value that ``encode`` made the data of."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if isinstance(data, dict) and data.keys() == {TUPLE}:
        return tuple(decode(data[TUPLE]))  # type: ignore[arg-type]
    if isinstance(data, dict) and data.keys() == {ITEMS}:
        return {decode(key): decode(item) for key, item in data[ITEMS]}
    if isinstance(data, dict):
        return {key: decode(item) for key, item in data.items()}
    return data


def frozen(value: object, where: str) -> object:
    """A copy that nobody else holds, as a checkpoint gives it back. InputsError for what isn't plain."""
    try:
        data = encode(value, where)
        return decode(json.loads(json.dumps(data)))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputsError):
            raise
        cause = "it holds itself, or is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise InputsError(where, cause, "give plain values that JSON can hold") from None


def path_of(given: object, what: str) -> Path:
    """A path that a user gives; InputsError for what is none. ``what``: what belongs there, "a checkpoint's folder"."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise InputsError(repr(given), f"it is no path of {what}", "give one as a text, such as 'runs/step-1'")
    return Path(given)
