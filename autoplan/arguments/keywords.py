"""Unknown and missing arguments as errors that name the nearest: what Python itself answers with a TypeError.

    @keywords(ParallelismError, {"lr": "learning_rate"})
    @dataclass(frozen=True)
    class Training: …

    Training(lr=1e-4)    # ParallelismError: lr=0.0001: Training has no 'lr'. write learning_rate=0.0001.
"""

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from autoplan.errors import AutoplanError

Called = TypeVar("Called", bound=Callable[..., Any])
LONGEST = 60  # characters of a value that are told
MOST = 4  # names that are told as near


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> list[str]:
    """The known names that one may stand for, the likeliest first, whatever their case."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=MOST, cutoff=cutoff)
    return [by_lower[each] for each in near]


def near_text(name: str, known: Iterable[str], prefix: str = "") -> str:
    """A remedy: "did you mean tp or pp?", or all that there is where nothing is near."""
    names = list(known)
    near = nearest(name, names)
    if near:
        return f"did you mean {' or '.join(prefix + each for each in near)}?"
    return f"use one of {', '.join(prefix + each for each in names)}"


def shown(value: object) -> str:
    """A value in a few characters: a tensor's would be pages."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def keywords(error: type[AutoplanError], others: Mapping[str, str] | None = None) -> Callable[[Called], Called]:
    """A decorator of a function or a class: a call that doesn't fit its signature raises ``error``.

    others  what people write from elsewhere, with what to write instead: {"lr": "learning_rate", "fsdp": "zero=3"}. A
            name of an argument takes the value that was given
    """

    def decorate(called: Called) -> Called:
        if inspect.isclass(called):
            setattr(called, "__init__", checked(called.__init__, called.__name__, error, others or {}))  # noqa: B010
            return called
        return cast(Called, checked(called, called.__name__, error, others or {}))

    return decorate


def checked(
    function: Callable[..., Any], name: str, error: type[AutoplanError], others: Mapping[str, str]
) -> Callable[..., Any]:
    """The function, which looks at its arguments' names before it runs."""
    signature = inspect.signature(function)
    known = [each for each in signature.parameters if each != "self"]

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        for key, value in given.items():
            if key not in known:
                raise error(f"{key}={shown(value)}", f"{name} has no {key!r}", instead(key, value, known, others))
        try:
            signature.bind(*args, **given)
        except TypeError as mistake:
            raise error(f"{name}()", str(mistake), f"it takes {taken(signature)}") from None
        return function(*args, **given)

    return call


def taken(signature: inspect.Signature) -> str:
    """A function's arguments, those apart that are given by name alone."""
    each = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    named = [parameter.name for parameter in each if parameter.kind is parameter.KEYWORD_ONLY]
    plain = [parameter.name for parameter in each if parameter.name not in named]
    return ", ".join(plain) + ("; by name " * bool(plain and named)) + ", ".join(named)


def instead(key: str, value: object, known: Iterable[str], others: Mapping[str, str]) -> str:
    """What to write in place of a name that isn't known."""
    if key.lower() not in others:
        return near_text(key, known)
    other = others[key.lower()]
    told = value if isinstance(value, str) and re.fullmatch(r"\S+", value) else shown(value)
    return f"write {other}={told}" if other in known else f"write {other}"
